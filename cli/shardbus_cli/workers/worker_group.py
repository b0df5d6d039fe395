"""The stages of a unit's workers: starts, restarts and the end. Pure: `now` is passed in.

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
the whole cluster knows. When all have reported, or after 5 s, all receive `leave` at the same time.
If a worker handed off shards before that, other workers of the unit would get them. A worker that
has not ended by the deadline is killed; workers state that deadline when they start to serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RAN_WELL_S = 60.0
CLOSE_S = 5.0
"""For all workers to close; a cluster with a silent member may not converge."""
LEAVE_MARGIN_S = 5.0
"""By which the supervisor's deadline is later than a worker's own."""
LEAVE_AT_LEAST_S = 30.0
STOP_S = 5.0
"""For workers to end after `stop`, or after they were killed."""
OK, FAILED, NOT_DRAINED = 0, 1, 7
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


# Events


@dataclass(frozen=True, slots=True)
class StartUnit:
    """Start the unit."""


@dataclass(frozen=True, slots=True)
class WorkerServing:
    """A worker listens. `leave_within`: seconds within which it leaves or ends itself."""

    worker: int
    leave_within: float


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker is Up, with its regions registered."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerClosed:
    """A worker takes no more shards, and the whole cluster knows."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker has begun to leave, or its membership has ended."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended; a negative `code` is a signal."""

    worker: int
    code: int


@dataclass(frozen=True, slots=True)
class LeaveUnit:
    """Let the unit leave; a second one stops it at once."""


Event = (
    StartUnit | WorkerServing | WorkerReady | WorkerClosed | WorkerLeaves | WorkerExited | LeaveUnit
)


# Effects


@dataclass(frozen=True, slots=True)
class SpawnWorker:
    """Start a worker's process."""

    worker: int
    again: bool


@dataclass(frozen=True, slots=True)
class CommandWorker:
    """Send a worker "close", "leave" or "stop"."""

    worker: int
    word: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker's process."""

    worker: int


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """Announce that all workers are ready, for the first time."""


@dataclass(frozen=True, slots=True)
class RestartLater:
    """Log that a worker ended and is restarted after `seconds`."""

    worker: int
    code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EndUnit:
    """End the unit with this exit code: no process is left."""

    code: int


Effect = SpawnWorker | CommandWorker | KillWorker | AnnounceReady | RestartLater | EndUnit


@dataclass(slots=True)
class WorkerState:
    """One worker. `until` is the end of its pause; `ends` counts its ends since it last was READY
    for RAN_WELL_S."""

    stage: WorkerStage = WorkerStage.WAITING
    ready_at: float = 0.0
    until: float = 0.0
    ends: int = 0
    starts: int = 0
    leaves: bool = False
    """It has reported that it leaves."""


class WorkerGroup:
    """The workers of one unit, as a state machine."""

    def __init__(self, workers: int) -> None:
        self.states = [WorkerState() for _ in range(workers)]
        self.announced = False
        self.leaving = False
        self._asked = self._stopping = self._closing = False
        self._open: set[int] = set()
        self._code = OK
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

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event and return its effects."""
        match event:
            case StartUnit():
                return [self._start(0)]
            case WorkerServing(number, seconds):
                return self._on_serving(number, seconds)
            case WorkerReady(number):
                return self._on_ready(number, now)
            case WorkerClosed(number):
                self._open.discard(number)
                return self._leave_if_closed(now)
            case WorkerLeaves(number):
                self.states[number].leaves = True
                return []
            case WorkerExited(number, code):
                return self._on_exited(number, code, now)
            case LeaveUnit():
                return self._on_leave(now)
            case _:
                assert_never(event)

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, None if there is none."""
        rests = [s.until for s in self.states if s.stage is WorkerStage.RESTING]
        return min(rests, default=None) if not self.leaving else self._deadline

    def tick(self, now: float) -> list[Effect]:
        """Restart workers whose pause is over; enforce the deadlines of leaving."""
        if self.leaving:
            if now < self._deadline:
                return []
            if self._closing:
                return self._leave_now(now)
            self._deadline = now + STOP_S
            self._code = max(self._code, FAILED if self._stopping else NOT_DRAINED)
            return [KillWorker(n) for n in self._running()]
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

    def _start(self, number: int) -> SpawnWorker:
        state = self.states[number]
        state.stage, state.starts = WorkerStage.STARTING, state.starts + 1
        state.leaves = False
        return SpawnWorker(number, again=state.starts > 1)

    def _on_serving(self, number: int, seconds: float) -> list[Effect]:
        self.states[number].stage = WorkerStage.JOINING
        self._leave_within = max(self._leave_within, seconds)
        if self.leaving:
            return []
        waiting = [n for n, s in enumerate(self.states) if s.stage is WorkerStage.WAITING]
        return [self._start(n) for n in waiting]

    def _on_ready(self, number: int, now: float) -> list[Effect]:
        state = self.states[number]
        state.stage, state.ready_at = WorkerStage.READY, now
        if self.announced or not self.ready:
            return []
        self.announced = True
        return [AnnounceReady()]

    def _on_exited(self, number: int, code: int, now: float) -> list[Effect]:
        state = self.states[number]
        before, state.stage = state.stage, WorkerStage.GONE
        if self.leaving:
            self._open.discard(number)
            return [*self._leave_if_closed(now), *self._on_gone(FAILED if code < 0 else code)]
        if code == OK and before is WorkerStage.STARTING:
            code = FAILED
        if code == OK and state.leaves:
            return self._on_gone(OK)
        failed = before is WorkerStage.STARTING and code in PERMANENT
        if failed or (before is not WorkerStage.READY and code > 0 and not self.announced):
            self._code = code
            return self._all_leave(now)
        if before is WorkerStage.READY and now - state.ready_at >= RAN_WELL_S:
            state.ends = 0
        rest = min(FIRST_PAUSE_S * 2.0**state.ends, LONGEST_PAUSE_S)
        state.ends += rest < LONGEST_PAUSE_S
        state.stage, state.until = WorkerStage.RESTING, now + rest
        return [RestartLater(number, code, rest)]

    def _on_gone(self, code: int) -> list[Effect]:
        self._code = max(self._code, code)
        if any(state.stage is not WorkerStage.GONE for state in self.states):
            return [AnnounceReady()] if self._first_ready() else []
        return [EndUnit(self._code)]

    def _first_ready(self) -> bool:
        """True if the unit is ready for the first time, because the missing worker has left."""
        first = self.ready and not self.announced
        self.announced = self.announced or first
        return first

    # ---- the end

    def _on_leave(self, now: float) -> list[Effect]:
        first, self._asked = not self._asked, True
        if not self.leaving:
            return self._all_leave(now)
        if first or self._stopping:
            return []
        self._stopping, self._closing = True, False
        self._deadline = now + STOP_S
        self._code = max(self._code, FAILED)
        return [CommandWorker(n, "stop") for n in self._running()]

    def _all_leave(self, now: float) -> list[Effect]:
        """Start to leave. A worker that does not serve yet has nothing to close."""
        self.leaving = self._closing = True
        self._deadline = now + CLOSE_S
        for state in self.states:
            if state.stage not in RUNNING:
                state.stage = WorkerStage.GONE
        running = self._running()
        if not running:
            return [EndUnit(self._code)]
        starting = [n for n in running if self.states[n].stage is WorkerStage.STARTING]
        self._open = set(running) - set(starting)
        told: list[Effect] = [CommandWorker(n, "close") for n in sorted(self._open)]
        told += [CommandWorker(n, "leave") for n in starting]
        return [*told, *self._leave_if_closed(now)]

    def _leave_if_closed(self, now: float) -> list[Effect]:
        return self._leave_now(now) if self._closing and not self._open else []

    def _leave_now(self, now: float) -> list[Effect]:
        self._closing = False
        self._deadline = now + self._leave_within + LEAVE_MARGIN_S
        return [CommandWorker(n, "leave") for n in self._running()]
