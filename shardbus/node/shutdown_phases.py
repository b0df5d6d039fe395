"""The phases of leaving, with Akka's names: applications add tasks to them.

    before-service-unbind             everything still works: warn a load balancer
    service-unbind                    accept no further work from outside
    service-requests-done             finish the work under way
    service-stop                      stop serving
    before-cluster-shutdown           the last phase of a full member: messages are answered
    cluster-sharding-shutdown-region  shards are handed off, or stopped with the whole cluster
    cluster-leave                     the member leaves, and clients leave it
    cluster-shutdown                  membership has ended, or could not be ended in time

The tasks of a phase run concurrently, together with the node's own work of that phase. A phase ends
when all have ended, or at its timeout; late tasks are cancelled and not waited for. A task that
fails is logged and stops no other. A function that blocks the loop cannot be cut off: for that case
the process has a deadline (`run`).

Source: docs/how-to/operate.md; S2.52.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.config.settings import ShutdownSettings
from shardbus.error_text import callable_name
from shardbus.guarded_log import GuardedLog

log = GuardedLog("shardbus.node")

HAND_OFF = "cluster-sharding-shutdown-region"
LEAVE = "cluster-leave"
LAST = "cluster-shutdown"
PHASES = (
    "before-service-unbind",
    "service-unbind",
    "service-requests-done",
    "service-stop",
    "before-cluster-shutdown",
    HAND_OFF,
    LEAVE,
    LAST,
)
HAND_OFF_MORE_S = 10.0
"""Seconds for handing off beyond the longest `handoff_timeout`, unless configured."""

Task = Callable[[], Any]
Progress = Callable[[str], None]


class Phases:
    """The tasks and timeouts of each phase. `current`: the running phase, empty at first."""

    def __init__(self, settings: ShutdownSettings) -> None:
        self.current = ""
        self.begin: Callable[[], None] | None = None
        """Begins to leave, once the process can."""
        self._running: dict[asyncio.Future[Any], str] = {}
        self._seconds = {
            "before-service-unbind": settings.before_service_unbind,
            "service-unbind": settings.service_unbind,
            "service-requests-done": settings.service_requests_done,
            "service-stop": settings.service_stop,
            "before-cluster-shutdown": settings.before_cluster_shutdown,
            HAND_OFF: settings.cluster_sharding_shutdown_region,
            LEAVE: settings.cluster_leave,
            LAST: settings.cluster_shutdown,
        }
        self._tasks: dict[str, list[Task]] = {phase: [] for phase in PHASES}

    def add(self, phase: str, task: Task) -> None:
        """Run `task`, a plain or async function, in a phase that has not begun."""
        self._tasks[phase].append(task)

    def seconds(self, phase: str, handoff_timeout: float) -> float:
        """The timeout of a phase in seconds. `handoff_timeout`: the longest of all types."""
        return self._seconds[phase] or handoff_timeout + HAND_OFF_MORE_S

    def total(self, handoff_timeout: float) -> float:
        """The sum of all timeouts, in seconds."""
        return sum(self.seconds(phase, handoff_timeout) for phase in PHASES)

    @property
    def unfinished(self) -> list[str]:
        """The tasks of the running phase that have not ended, by name. May be read from any
        thread."""
        return [name for task, name in self._running.items() if not task.done()]

    async def run(
        self,
        phase: str,
        seconds: float,
        progress: Progress,
        work: Coroutine[Any, Any, None] | None = None,
    ) -> bool:
        """Run one phase, with `work` as the node's work in it. True if that work ended in time."""
        self.current = phase
        running = self._running = {
            asyncio.ensure_future(_guarded(phase, task)): callable_name(task)
            for task in self._tasks[phase]
        }
        if running:
            progress(f"{phase}: {', '.join(running.values())}")
        mine = asyncio.ensure_future(work) if work is not None else None
        waiting = {*running, *([mine] if mine is not None else [])}
        late = waiting
        try:
            if waiting:
                _, late = await asyncio.wait(waiting, timeout=seconds)
        finally:
            for task in late:
                task.cancel()
        names = [name for task, name in running.items() if task in late]
        if names:
            progress(f"{phase}: not done after {seconds:g} s, going on: {', '.join(names)}")
        if mine is None:
            return True
        if mine in late:
            return False
        mine.result()
        return True


async def _guarded(phase: str, task: Task) -> None:
    try:
        result = task()
        if inspect.isawaitable(result):
            await result
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException:
        log.exception("%s: %s failed", phase, callable_name(task))
