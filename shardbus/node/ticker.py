"""The ticker: runs a node's periodic tasks, twenty times a second.

Parts register a callable with a period in ticks of 50 ms. The endpoint calls `beat` at each tick of
its coarse clock. The tasks that are due run in the order of registration, and get the tick. Most
beats run the tasks of every tick, and look at no other.

A task that raises is a defect. The error is logged with the task's name, once in `QUIET_TICKS`;
the other tasks and the next beat run. A beat that ended here would stop the sign of life to the
cluster thread, and the node would be declared down, and after it the next node that gets its
entities.

Source: docs/architecture.md; S1.60, S2.52.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shardbus.guarded_log import GuardedLog
from shardbus.transport.asks import CoarseClock

log = GuardedLog("shardbus.node")

SECOND = 1000 // CoarseClock.TICK_MS
"""A second, in ticks."""
QUIET_TICKS = 30 * SECOND
"""Between two logged failures of one task."""


class _Task(msgspec.Struct):
    name: str
    run: Callable[[int], object]
    period: int
    due: int
    """The tick of its next run."""
    quiet_until: int | None = None


class Ticker:
    """Runs registered tasks."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []
        self._of_every_tick: list[_Task] = []
        self._others_due = 0
        """The tick at which a task of a longer period is due."""

    def add(self, name: str, run: Callable[[int], object], period: int = 1) -> None:
        """Call `run` with the current tick every `period` ticks: from the next beat on, or once the
        period has passed."""
        task = _Task(name, run, period, due=period)
        self._tasks.append(task)
        if period == 1:
            self._of_every_tick.append(task)
        self._others_due = 0

    def stop(self) -> None:
        """Run no task any more."""
        self._tasks, self._of_every_tick = [], []

    def beat(self, tick: int) -> None:
        """Run the tasks that are due at this tick."""
        for task in self._of_every_tick if tick < self._others_due else self._due(tick):
            try:
                task.run(tick)
            except Exception:
                if task.quiet_until is None or tick >= task.quiet_until:
                    task.quiet_until = tick + QUIET_TICKS
                    log.exception("%s: the periodic task failed, the others go on", task.name)

    def _due(self, tick: int) -> list[_Task]:
        due = [task for task in self._tasks if task.period == 1 or tick >= task.due]
        for task in due:
            task.due = tick + task.period
        self._others_due = min((t.due for t in self._tasks if t.period > 1), default=tick)
        return due
