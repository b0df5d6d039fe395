"""The periodic tasks of a node: each is on its own, and the next beat comes in any case."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.node.ticker import QUIET_TICKS, SECOND, Ticker
from shardbus.transport.asks import CoarseClock

TASKS = {"time": 1, "loads": SECOND, "drops": 1, "sign of life": 1}
"""Task to its period in ticks."""


class World:
    """A ticker whose timer the test fires. `broken`: the task that raises."""

    def __init__(self, broken: str = "") -> None:
        self.done: Counter[str] = Counter()
        self.broken = broken
        self.clock = CoarseClock()
        self.timers: list[Callable[[], None]] = []
        loop: Any = SimpleNamespace(call_later=self.call_later)
        self.ticker = Ticker(self.clock, loop)
        for name, period in TASKS.items():
            self.ticker.add(name, self.task(name), period)

    def task(self, name: str) -> Callable[[int], None]:
        def run(tick: int) -> None:
            assert tick == self.clock.tick
            self.done[name] += 1
            if name == self.broken:
                raise ArithmeticError(name)

        return run

    def call_later(self, delay: float, beat: Callable[[], None]) -> Any:
        self.timers.append(beat)
        return SimpleNamespace(cancel=lambda: self.timers.remove(beat))

    def beat(self, ticks: int = SECOND) -> None:
        """Fire the one timer that is armed, `ticks` later."""
        [timer], self.timers = self.timers, []
        self.clock.tick += ticks
        timer()


def started(broken: str = "") -> World:
    world = World(broken)
    world.ticker.start()
    return world


@pytest.mark.parametrize("broken", TASKS)
def test_a_task_that_raises_stops_neither_the_others_nor_the_next_beat(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    well, ill = started(), started(broken)
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
    world = started("drops")
    while world.clock.tick < 2 * QUIET_TICKS:
        world.beat()
    assert len(caplog.records) == 3


def test_a_task_runs_once_in_its_period_and_not_after_the_stop() -> None:
    world = started()
    for _ in range(2 * SECOND):
        world.beat(1)
    assert world.done["loads"] == 2
    assert world.done["time"] == 2 * SECOND + 1
    world.ticker.stop()
    assert world.timers == []


def test_a_late_beat_runs_each_task_once() -> None:
    world = started()
    world.beat(5 * SECOND)
    assert world.done == {"time": 2, "loads": 1, "drops": 2, "sign of life": 2}
