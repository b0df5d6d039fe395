"""The stages of a unit's workers: starts, restarts and the end. Pure.

    WAITING ──> STARTING ──> JOINING ──> READY          the process runs: loads, serves, is Up
                   ^  └─────────┴──────────┤
                   │ after the pause       │ it ended
                   └───── RESTING <────────┴──> GONE    left by order, or the unit ends

    ended with            before it was READY              once it was READY
    0, and it has left    GONE                             GONE
    2, 3 as it starts     the unit ends with that code
    another code          the unit ends with that code,    RESTING, then restarted
                          if it was never ready itself;
                          else RESTING, then restarted
    a signal              RESTING, then restarted          the same

While the unit starts, a failure ends it, because the operator waits for the result. Later, workers
are restarted. A worker that was READY runs handlers, and a handler may end its process with any
code (`os._exit`): then that code says nothing about the unit. So 0 counts as left by order only if
the worker has reported that it leaves. The pause before a restart is 0.5 s; it doubles with each
end, up to 30 s, and is 0.5 s again after a worker was READY for a minute. Restarts never stop: the
other workers serve, and readiness names the missing one.

When the unit leaves, every worker first receives `close`: it takes no more shards, and reports when
the whole cluster has seen that. When all have reported, or after 5 s, all receive `leave` at the
same time. If a worker handed off shards before that, other workers of the unit would get them. A
worker that has not ended by the deadline is killed; workers state that deadline when they start to
serve.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import msgspec

from shardbus_cli.children import group
from shardbus_cli.children.group import ChildEffect, Word

LONGEST_PAUSE_S = 30.0
CLOSE_S = 5.0
"""For all workers to close; a cluster with a silent member may not converge."""
LEAVE_MARGIN_S = 5.0
"""By which the supervisor's deadline is later than a worker's own."""
LEAVE_AT_LEAST_S = 30.0
STOP_S = 5.0
"""For workers to end after `stop`, or after they were killed."""
NOT_DRAINED = 7
PERMANENT = (2, 3)
"""Exit codes after which a restart is of no use: invalid settings, or a broken application."""


class WorkerStage(Enum):
    """The stage of a worker."""

    WAITING = "waiting"
    STARTING = "starting"
    JOINING = "joining"
    READY = "ready"
    RESTING = "resting"
    GONE = "gone"


RUNNING = (WorkerStage.STARTING, WorkerStage.JOINING, WorkerStage.READY)


class WorkerState(msgspec.Struct):
    """One worker. `until` is the end of its pause."""

    stage: WorkerStage = WorkerStage.WAITING
    ready_at: float = 0.0
    until: float = 0.0
    pause: group.RestartPause = msgspec.field(
        default_factory=lambda: group.RestartPause(LONGEST_PAUSE_S)
    )
    starts: int = 0
    leaves: bool = False
    """It has reported that it leaves."""


class WorkerGroup:
    """The workers of one unit, as a state machine."""

    def __init__(self, workers: int) -> None:
        self.states = [WorkerState() for _ in range(workers)]
        self.announced = False
        self.leaving = False
        self._leave_requested = self._stopping = self._closing = False
        self._open: set[int] = set()
        self._code = group.OK
        self._deadline = 0.0
        self._leave_within = LEAVE_AT_LEAST_S

    @property
    def ready(self) -> bool:
        """True if every worker that has not left is ready, and there is one."""
        stages = {state.stage for state in self.states} - {WorkerStage.GONE}
        return stages == {WorkerStage.READY} and not self.leaving

    @property
    def ends_by(self) -> float:
        """The time by which the workers of a unit that leaves have ended, or are killed."""
        leaving = self._leave_within + LEAVE_MARGIN_S if self._closing else 0.0
        return self._deadline + leaving

    @property
    def ending(self) -> list[int]:
        """The workers whose processes run, while the unit leaves."""
        return self._running() if self.leaving else []

    def handle(self, event: group.ChildEvent, now: float) -> list[ChildEffect]:
        """Handle an event and return its effects."""
        match event:
            case group.StartAll():
                return [self._start(0)]
            case group.ChildServes(number, seconds):
                return self._on_serving(number, seconds)
            case group.ChildReady(number):
                return self._on_ready(number, now)
            case group.ChildClosed(number):
                self._open.discard(number)
                return self._leave_if_closed(now)
            case group.ChildLeaves(number):
                self.states[number].leaves = True
                return []
            case group.ChildExited(number, code):
                return self._on_exited(number, code, now)
            case group.Interrupt():
                return self._on_leave(now)
            case group.ChildLoaded() | group.SourceChanged():
                return []  # of `dev`
            case _:
                assert_never(event)

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, None if there is none."""
        rests = [s.until for s in self.states if s.stage is WorkerStage.RESTING]
        return min(rests, default=None) if not self.leaving else self._deadline

    def tick(self, now: float) -> list[ChildEffect]:
        """Restart workers whose pause is over; enforce the deadlines of leaving."""
        if self.leaving:
            if now < self._deadline:
                return []
            if self._closing:
                return self._leave_now(now)
            self._deadline = now + STOP_S
            self._code = max(self._code, group.FAILED if self._stopping else NOT_DRAINED)
            return [group.KillChild(n) for n in self._running()]
        rested = [
            n
            for n, s in enumerate(self.states)
            if s.stage is WorkerStage.RESTING and s.until <= now
        ]
        return [self._start(n) for n in rested]

    def check(self) -> None:
        """Assert that no worker waits for a start while the unit leaves, and that only worker 0
        starts first."""
        stages = [state.stage for state in self.states]
        if self.leaving:
            assert not {WorkerStage.RESTING, WorkerStage.WAITING} & set(stages)
        if WorkerStage.WAITING in stages[1:]:
            assert set(stages[1:]) == {WorkerStage.WAITING}

    # ---- one worker

    def _running(self) -> list[int]:
        return [n for n, s in enumerate(self.states) if s.stage in RUNNING]

    def _start(self, number: int) -> group.SpawnChild:
        """Start a worker. All join by all, except worker 0 at its first start."""
        state = self.states[number]
        state.stage, state.starts = WorkerStage.STARTING, state.starts + 1
        state.leaves = False
        peers = range(len(self.states)) if number or state.starts > 1 else ()
        return group.SpawnChild(number, number, tuple(peers))

    def _on_serving(self, number: int, seconds: float) -> list[ChildEffect]:
        self.states[number].stage = WorkerStage.JOINING
        self._leave_within = max(self._leave_within, seconds)
        if self.leaving:
            return []
        waiting = [n for n, s in enumerate(self.states) if s.stage is WorkerStage.WAITING]
        return [self._start(n) for n in waiting]

    def _on_ready(self, number: int, now: float) -> list[ChildEffect]:
        state = self.states[number]
        state.stage, state.ready_at = WorkerStage.READY, now
        if self.announced or not self.ready:
            return []
        self.announced = True
        return [group.AllReady()]

    def _on_exited(self, number: int, code: int, now: float) -> list[ChildEffect]:
        state = self.states[number]
        before, state.stage = state.stage, WorkerStage.GONE
        if self.leaving:
            self._open.discard(number)
            return [*self._leave_if_closed(now), *self._on_gone(group.FAILED if code < 0 else code)]
        if code == group.OK and before is WorkerStage.STARTING:
            code = group.FAILED
        if code == group.OK and state.leaves:
            return self._on_gone(group.OK)
        failed = before is WorkerStage.STARTING and code in PERMANENT
        if failed or (before is not WorkerStage.READY and code > 0 and not self.announced):
            self._code = code
            return self._all_leave(now)
        rest = state.pause.next(now - state.ready_at if before is WorkerStage.READY else 0.0)
        state.stage, state.until = WorkerStage.RESTING, now + rest
        return [group.RestartLater(number, code, rest)]

    def _on_gone(self, code: int) -> list[ChildEffect]:
        self._code = max(self._code, code)
        if any(state.stage is not WorkerStage.GONE for state in self.states):
            return [group.AllReady()] if self._first_ready() else []
        return [group.EndAll(self._code)]

    def _first_ready(self) -> bool:
        """True if the unit is ready for the first time, because the missing worker has left."""
        first = self.ready and not self.announced
        self.announced = self.announced or first
        return first

    # ---- the end

    def _on_leave(self, now: float) -> list[ChildEffect]:
        first, self._leave_requested = not self._leave_requested, True
        if not self.leaving:
            return [group.Ending(), *self._all_leave(now)]
        if first or self._stopping:
            return []
        self._stopping, self._closing = True, False
        self._deadline = now + STOP_S
        self._code = max(self._code, group.FAILED)
        return [group.CommandChild(n, Word.STOP) for n in self._running()]

    def _all_leave(self, now: float) -> list[ChildEffect]:
        """Start to leave. A worker that does not serve yet has nothing to close."""
        self.leaving = self._closing = True
        self._deadline = now + CLOSE_S
        for state in self.states:
            if state.stage not in RUNNING:
                state.stage = WorkerStage.GONE
        running = self._running()
        if not running:
            return [group.EndAll(self._code)]
        starting = [n for n in running if self.states[n].stage is WorkerStage.STARTING]
        self._open = set(running) - set(starting)
        commands: list[ChildEffect] = [
            group.CommandChild(n, Word.CLOSE) for n in sorted(self._open)
        ]
        commands += [group.CommandChild(n, Word.LEAVE) for n in starting]
        return [*commands, *self._leave_if_closed(now)]

    def _leave_if_closed(self, now: float) -> list[ChildEffect]:
        return self._leave_now(now) if self._closing and not self._open else []

    def _leave_now(self, now: float) -> list[ChildEffect]:
        self._closing = False
        self._deadline = now + self._leave_within + LEAVE_MARGIN_S
        return [group.CommandChild(n, Word.LEAVE) for n in self._running()]
