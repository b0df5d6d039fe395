"""The phases of leaving, in Akka's names: where applications hang what they want done on the way.

    before-service-unbind             everything still works: tell a load balancer
    service-unbind                    take no new work from outside
    service-requests-done             finish what is under way
    service-stop                      stop serving
    before-cluster-shutdown           the last phase of a full member: messages are answered
    cluster-sharding-shutdown-region  shards are handed off, or stopped with the whole cluster
    cluster-leave                     the member leaves, clients part
    cluster-shutdown                  membership is over, or could not be ended in time

The tasks of a phase run side by side, and with the node's own work where a phase has some. A phase
ends when they have, or at its timeout: then what is late is cancelled and not waited for. A task
that fails is logged and stops nobody. A plain function that blocks the loop cannot be cut off: for
that the process has a deadline (`run`).

Source: S2.52; B.141, C.8; T.S8; docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.config.settings import ShutdownSettings

log = logging.getLogger("shardbus.node")

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
"""What handing off may take beyond the longest `handoff_timeout`, if no setting says."""

Task = Callable[[], Any]
Progress = Callable[[str], None]


class Phases:
    """See the module. `current` is empty until the node begins to leave."""

    def __init__(self, settings: ShutdownSettings) -> None:
        self.current = ""
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
        """Call it, plain or async, in that phase. Once the phase has begun it is too late."""
        self._tasks[phase].append(task)

    def seconds(self, phase: str, handoff_timeout: float) -> float:
        """How long a phase may take; `handoff_timeout` is the longest of a type."""
        return self._seconds[phase] or handoff_timeout + HAND_OFF_MORE_S

    def total(self, handoff_timeout: float) -> float:
        """How long all of them may take."""
        return sum(self.seconds(phase, handoff_timeout) for phase in PHASES)

    async def run(
        self,
        phase: str,
        seconds: float,
        progress: Progress,
        own: Coroutine[Any, Any, None] | None = None,
    ) -> bool:
        """One phase; whether the node's own work in it is done."""
        self.current = phase
        running: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(_guarded(phase, task)): _name(task) for task in self._tasks[phase]
        }
        if running:
            progress(f"{phase}: {', '.join(running.values())}")
        mine = asyncio.ensure_future(own) if own is not None else None
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
    except Exception:
        log.exception("%s: %s failed", phase, _name(task))


def _name(task: Task) -> str:
    return getattr(task, "__qualname__", "") or type(task).__name__
