"""The periodic tasks of a node: each is on its own, and the next beat comes in any case."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest

from shardbus.node.ticker import QUIET_TICKS, SECOND, Ticker

TASKS = {"time": 1, "loads": SECOND, "drops": 1, "sign of life": 1}
"""Task to its period in ticks."""


class World:
    """A ticker that has had its first beat. `broken`: the task that raises."""

    def __init__(self, broken: str = "") -> None:
        self.done: Counter[str] = Counter()
        self.broken = broken
        self.tick = 0
        self.ticker = Ticker()
        for name, period in TASKS.items():
            self.ticker.add(name, self.task(name), period)
        self.beat(0)

    def task(self, name: str) -> Callable[[int], None]:
        def run(tick: int) -> None:
            assert tick == self.tick
            self.done[name] += 1
            if name == self.broken:
                raise ArithmeticError(name)

        return run

    def beat(self, ticks: int = SECOND) -> None:
        """Beat `ticks` later."""
        self.tick += ticks
        self.ticker.beat(self.tick)


@pytest.mark.parametrize("broken", TASKS)
def test_a_task_that_raises_stops_neither_the_others_nor_the_next_beat(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    well, ill = World(), World(broken)
    for _ in range(3):
        well.beat()
        ill.beat()
    assert ill.done == well.done
    assert ill.done["sign of life"] == 4
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_failures_of_a_task_are_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("drops")
    while world.tick < 2 * QUIET_TICKS:
        world.beat()
    assert len(caplog.records) == 3


def test_a_task_runs_once_in_its_period_and_not_after_the_stop() -> None:
    world = World()
    for _ in range(2 * SECOND):
        world.beat(1)
    assert world.done["loads"] == 2
    assert world.done["time"] == 2 * SECOND + 1
    world.ticker.stop()
    world.done.clear()
    world.beat()
    assert not world.done


def test_tasks_run_in_the_order_of_their_registration_whatever_their_periods() -> None:
    order: list[str] = []
    ticker = Ticker()
    for name, period in TASKS.items():
        ticker.add(name, lambda tick, name=name: order.append(name), period)
    ticker.beat(SECOND)
    assert order == list(TASKS)


def test_a_task_that_comes_later_runs_at_the_next_beat() -> None:
    world = World()
    world.beat()
    world.ticker.add("joining", world.task("joining"), SECOND)
    world.beat(1)
    assert world.done["joining"] == 1


def test_a_late_beat_runs_each_task_once() -> None:
    world = World()
    world.beat(5 * SECOND)
    assert world.done == {"time": 2, "loads": 1, "drops": 2, "sign of life": 2}
