"""Who of a unit's workers runs, and what is to be done about it. Pure: `now` is passed in.

    WAITING ──> STARTING ──> JOINING ──> READY          the process runs: loads, serves, is Up
                   ^  └─────────┴──────────┤
                   │ in time               │ it ended
                   └───── RESTING <────────┴──> GONE    left by order, or the unit ends

    ended with            before the unit was ready        afterwards
    0                     GONE                             GONE
    2, 3                  the unit ends with that code     the same
    another code          the unit ends with that code     RESTING, then started again
    a signal              RESTING, then started again      the same

A start that fails, fails: who started the unit is waiting for it and should know. Later, a worker's
end is what a supervisor is for. A rest is 0.5 s, doubles with each end up to 30 s, and begins anew
for who was READY for a minute. It is not given up: the other workers serve on, and readiness says
who is missing.

When all shall go, every worker is first told to close: it takes no shard any more, and says so once
the whole cluster knows. When all have, or after 5 s, they are told to leave, at the same time. Were
the first shards handed off before that, others of the unit would get them. Whoever has not ended by
the deadline, which workers said themselves when they began to serve, is killed.

Source: the package's page; B.139.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

FIRST_REST_S, LONGEST_REST_S = 0.5, 30.0
RAN_WELL_S = 60.0
CLOSE_S = 5.0
"""For all to close: a cluster with a silent member may not come to agree."""
LEAVE_MARGIN_S = 5.0
"""For the supervisor to be later than a worker's own deadline."""
LEAVE_AT_LEAST_S = 30.0
STOP_S = 5.0
"""For a worker that shall stop at once."""
OK, FAILED, NOT_DRAINED = 0, 1, 7
PERMANENT = (2, 3)
"""Exit codes that another start would not mend: settings, and the application."""


class WorkerStage(Enum):
    """Where a worker stands."""

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
    """A worker listens. `leave_within`: seconds in which it leaves or ends itself."""

    worker: int
    leave_within: float


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker is Up, with its regions registered."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerClosed:
    """A worker takes no shard any more, and everybody knows."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended; below 0 by that signal."""

    worker: int
    code: int


@dataclass(frozen=True, slots=True)
class LeaveUnit:
    """The unit shall leave; said again, it shall stop at once."""


Event = StartUnit | WorkerServing | WorkerReady | WorkerClosed | WorkerExited | LeaveUnit


# Effects


@dataclass(frozen=True, slots=True)
class SpawnWorker:
    """Start a worker's process."""

    worker: int
    again: bool


@dataclass(frozen=True, slots=True)
class CommandWorker:
    """Tell a worker: "close", "leave", or "stop"."""

    worker: int
    word: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker's process by force."""

    worker: int


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """All are ready, for the first time."""


@dataclass(frozen=True, slots=True)
class RestartLater:
    """A worker ended and is started again in so many seconds."""

    worker: int
    code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EndUnit:
    """No process is left: the unit ends."""

    code: int


Effect = SpawnWorker | CommandWorker | KillWorker | AnnounceReady | RestartLater | EndUnit


@dataclass(slots=True)
class WorkerState:
    """One worker. `until` is the end of its rest; `ends` counts those since it last ran well."""

    stage: WorkerStage = WorkerStage.WAITING
    ready_at: float = 0.0
    until: float = 0.0
    ends: int = 0
    starts: int = 0


class WorkerGroup:
    """See the module."""

    def __init__(self, workers: int) -> None:
        self.standings = [WorkerState() for _ in range(workers)]
        self.announced = False
        self.leaving = False
        self._asked = self._stopping = self._closing = False
        self._open: set[int] = set()
        self._code = OK
        self._deadline = 0.0
        self._leave_within = LEAVE_AT_LEAST_S

    @property
    def ready(self) -> bool:
        """Every worker that has not left is ready, and there is one."""
        stages = {standing.stage for standing in self.standings} - {WorkerStage.GONE}
        return stages == {WorkerStage.READY} and not self.leaving

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What follows from an event."""
        match event:
            case StartUnit():
                return [self._start(0)]
            case WorkerServing(number, seconds):
                return self._on_serves(number, seconds)
            case WorkerReady(number):
                return self._on_ready(number, now)
            case WorkerClosed(number):
                self._open.discard(number)
                return self._if_closed(now)
            case WorkerExited(number, code):
                return self._on_ended(number, code, now)
            case LeaveUnit():
                return self._on_leave(now)
            case _:
                assert_never(event)

    def deadline(self) -> float | None:
        """When `tick` is due."""
        rests = [s.until for s in self.standings if s.stage is WorkerStage.RESTING]
        return min(rests, default=None) if not self.leaving else self._deadline

    def tick(self, now: float) -> list[Effect]:
        """Rests end, and so does patience."""
        if self.leaving:
            if now < self._deadline:
                return []
            if self._closing:
                return self._let_go(now)
            self._deadline = now + STOP_S
            self._code = max(self._code, FAILED if self._stopping else NOT_DRAINED)
            return [KillWorker(n) for n in self._running()]
        rested = [
            n
            for n, s in enumerate(self.standings)
            if s.stage is WorkerStage.RESTING and s.until <= now
        ]
        return [self._start(n) for n in rested]

    def check(self) -> None:
        """Nobody rests or waits while the unit leaves; nobody but worker 0 starts before it."""
        stages = [standing.stage for standing in self.standings]
        if self.leaving:
            assert not {WorkerStage.RESTING, WorkerStage.WAITING} & set(stages)
        if WorkerStage.WAITING in stages[1:]:
            assert set(stages[1:]) == {WorkerStage.WAITING}

    # ---- one worker

    def _running(self) -> list[int]:
        return [n for n, s in enumerate(self.standings) if s.stage in RUNNING]

    def _start(self, number: int) -> SpawnWorker:
        standing = self.standings[number]
        standing.stage, standing.starts = WorkerStage.STARTING, standing.starts + 1
        return SpawnWorker(number, again=standing.starts > 1)

    def _on_serves(self, number: int, seconds: float) -> list[Effect]:
        self.standings[number].stage = WorkerStage.JOINING
        self._leave_within = max(self._leave_within, seconds)
        if self.leaving:
            return []
        waiting = [n for n, s in enumerate(self.standings) if s.stage is WorkerStage.WAITING]
        return [self._start(n) for n in waiting]

    def _on_ready(self, number: int, now: float) -> list[Effect]:
        standing = self.standings[number]
        standing.stage, standing.ready_at = WorkerStage.READY, now
        if self.announced or not self.ready:
            return []
        self.announced = True
        return [AnnounceReady()]

    def _on_ended(self, number: int, code: int, now: float) -> list[Effect]:
        standing = self.standings[number]
        before, standing.stage = standing.stage, WorkerStage.GONE
        if self.leaving:
            self._open.discard(number)
            return [*self._if_closed(now), *self._gone(FAILED if code < 0 else code)]
        if code == OK and before is WorkerStage.STARTING:
            code = FAILED
        if code == OK:
            return self._gone(OK)
        if code in PERMANENT or (code > 0 and not self.announced):
            self._code = code
            return self._all_leave(now)
        if before is WorkerStage.READY and now - standing.ready_at >= RAN_WELL_S:
            standing.ends = 0
        rest = min(FIRST_REST_S * 2.0**standing.ends, LONGEST_REST_S)
        standing.ends += rest < LONGEST_REST_S
        standing.stage, standing.until = WorkerStage.RESTING, now + rest
        return [RestartLater(number, code, rest)]

    def _gone(self, code: int) -> list[Effect]:
        self._code = max(self._code, code)
        if any(standing.stage is not WorkerStage.GONE for standing in self.standings):
            return [AnnounceReady()] if self._first_ready() else []
        return [EndUnit(self._code)]

    def _first_ready(self) -> bool:
        """Whoever was missing for readiness has left."""
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
        """Begin the end. Who does not serve yet has nothing to close."""
        self.leaving = self._closing = True
        self._deadline = now + CLOSE_S
        for standing in self.standings:
            if standing.stage not in RUNNING:
                standing.stage = WorkerStage.GONE
        running = self._running()
        if not running:
            return [EndUnit(self._code)]
        starting = [n for n in running if self.standings[n].stage is WorkerStage.STARTING]
        self._open = set(running) - set(starting)
        told: list[Effect] = [CommandWorker(n, "close") for n in sorted(self._open)]
        told += [CommandWorker(n, "leave") for n in starting]
        return [*told, *self._if_closed(now)]

    def _if_closed(self, now: float) -> list[Effect]:
        return self._let_go(now) if self._closing and not self._open else []

    def _let_go(self, now: float) -> list[Effect]:
        self._closing = False
        self._deadline = now + self._leave_within + LEAVE_MARGIN_S
        return [CommandWorker(n, "leave") for n in self._running()]
