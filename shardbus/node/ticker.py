"""The ticker: runs a node's periodic tasks, twenty times a second.

Parts register a callable with a period in ticks of 50 ms. At each beat the tasks that are due run
in the order of registration, and get the current tick of the coarse clock.

A task that raises is a defect. The error is logged with the task's name, once in `QUIET_TICKS`;
the other tasks and the next beat run. A beat that ended here would stop the sign of life to the
cluster thread, and the node would be declared down, and after it the next node that gets its
entities.

Source: docs/architecture.md; S1.60, S2.52.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from shardbus.guarded_log import GuardedLog
from shardbus.transport.asks import CoarseClock

log = GuardedLog("shardbus.node")

EVERY_S = CoarseClock.TICK_MS / 1000
SECOND = 1000 // CoarseClock.TICK_MS
"""A second, in ticks."""
QUIET_TICKS = 30 * SECOND
"""Between two logged failures of one task."""


class _Task(msgspec.Struct):
    name: str
    run: Callable[[int], object]
    period: int
    last: int = 0
    quiet_until: int | None = None


class Ticker:
    """Runs registered tasks in `loop`. `clock` gives the tick."""

    def __init__(self, clock: CoarseClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock, self._loop = clock, loop
        self._tasks: list[_Task] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str, run: Callable[[int], object], period: int = 1) -> None:
        """Call `run` with the current tick every `period` ticks, from the next beat on."""
        self._tasks.append(_Task(name, run, period))

    def start(self) -> None:
        """Run the first beat now, and the others after it."""
        self._beat()

    def stop(self) -> None:
        """Run no further beat."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        tick = self._clock.tick
        self._timer = self._loop.call_later(EVERY_S, self._beat)
        for task in self._tasks:
            if tick - task.last >= task.period or task.period == 1:
                task.last = tick
                self._run(task, tick)

    @staticmethod
    def _run(task: _Task, tick: int) -> None:
        try:
            task.run(tick)
        except Exception:
            if task.quiet_until is None or tick >= task.quiet_until:
                task.quiet_until = tick + QUIET_TICKS
                log.exception("%s: the periodic task failed, the others go on", task.name)
