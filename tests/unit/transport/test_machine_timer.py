"""One timer for one machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shardbus.transport.machine_timer import MachineTimer
from tests.waiting import turns, until


async def test_it_ticks_at_the_deadline_and_again_at_the_next() -> None:
    loop = asyncio.get_running_loop()
    deadlines, ticked = [loop.time(), loop.time() + 0.01], []

    def tick() -> None:
        ticked.append(deadlines.pop(0))

    MachineTimer(lambda: deadlines[0] if deadlines else None, tick).arm()
    await until(lambda: not deadlines, "two ticks")
    assert ticked == sorted(ticked)
    assert len(ticked) == 2


async def test_a_stopped_timer_cannot_be_set_again() -> None:
    due, ticked = asyncio.get_running_loop().time(), []
    machine_timer = MachineTimer(lambda: due, lambda: ticked.append(1))
    machine_timer.arm()
    machine_timer.stop()
    machine_timer.arm()
    await turns(20)
    assert ticked == []


async def test_a_handle_that_does_not_know_its_time_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop returns one of `call_soon` for a time within the millisecond."""
    loop = asyncio.get_running_loop()
    made: list[asyncio.Handle] = []

    def call_at(when: float, callback: Callable[[], None]) -> asyncio.Handle:
        made.append(loop.call_soon(callback))
        return made[-1]

    deadlines, ticked = [loop.time() + 60], []

    def tick() -> None:
        ticked.append(deadlines.pop())

    timer = MachineTimer(lambda: deadlines[0] if deadlines else None, tick)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_at", call_at)
        timer.arm()
        timer.arm()
        assert len(made) == 1
        deadlines[0] = loop.time()
        timer.arm()
        assert len(made) == 2
        assert made[0].cancelled()
    await until(lambda: ticked, "the tick")
