"""SIGTERM and SIGINT of a node: the first lets it leave, the second stops it, and neither waits for
the loop to set the deadline of the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from shardbus.node.deadline import STOP_S
from shardbus.node.stop_signals import NAMES, StopSignals


class Orders:
    """A deadline that records its orders."""

    def __init__(self) -> None:
        self.orders: list[float] = []
        self.again = ""

    def within(self, seconds: float = 0.0) -> None:
        self.orders.append(seconds)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NAMES}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def listening(deadline: Orders) -> StopSignals:
    signals = StopSignals(cast("Any", deadline))
    signals.listen()
    return signals


@pytest.mark.parametrize("number", NAMES)
async def test_the_first_signal_asks_to_leave_and_the_second_to_stop(number: int) -> None:
    deadline = Orders()
    signals = listening(deadline)
    os.kill(os.getpid(), number)
    await signals.first.wait()
    assert not signals.second.is_set()
    assert deadline.orders == [0.0]
    assert deadline.again == f"a second {NAMES[signal.Signals(number)]}"
    os.kill(os.getpid(), signal.SIGTERM)
    await signals.second.wait()
    assert deadline.orders == [0.0, STOP_S]
    assert deadline.again == ""


async def test_a_loop_that_is_blocked_does_not_keep_a_signal_from_the_deadline() -> None:
    deadline = Orders()
    signals = listening(deadline)
    os.kill(os.getpid(), signal.SIGTERM)
    while not signals.count:
        pass  # the loop does not turn
    assert deadline.orders == [0.0]
    assert not signals.first.is_set()
    await signals.first.wait()


async def test_requests_of_operators_and_supervisors_are_the_same_events() -> None:
    signals = StopSignals(cast("Any", Orders()))
    signals.stop()
    assert signals.first.is_set()
    assert not signals.second.is_set()
    signals.stop()
    assert signals.second.is_set()
    others = StopSignals(cast("Any", Orders()))
    others.stop_at_once()
    assert others.first.is_set()
    assert others.second.is_set()


def test_a_signal_after_the_end_of_the_loop_sets_the_deadline_only() -> None:
    deadline = Orders()
    loop = asyncio.new_event_loop()

    async def make() -> StopSignals:
        return listening(deadline)

    signals = loop.run_until_complete(make())
    loop.close()
    os.kill(os.getpid(), signal.SIGTERM)
    while not signals.count:
        pass
    assert deadline.orders == [0.0]
