"""Which entities have events that a projection has not handled, on one node: a pure machine.

A projection has one *part* for each entity of the type whose events it handles. A part is an entity
itself: it lives in the shard of its source, so one node works at it at a time, under the shard's
fence. Its stored record has the number of the last event that it has handled, and its state, so a
part begins where the last one has ended, and an event changes the state once. Journals stay the
only truth: this machine decides when a part looks into the journal of its source, and a look in
vain costs one read.

      news                    turn                   handled, and no news since
    ────────> DUE ──────────────────────> AT_WORK ─────────────────────────────> caught up
               ^                            │ news
               │   handled, there is more   v
               ├───────────────────────── BEHIND
               │                            │ failed, waits   failed `attempts` times
               └───────── PAUSED <──────────┴──────────────────────> STOPPED
                 pause over, or retried                    retried: DUE

**News** are appends of the source, which lives on the same node, and differences that a scan of the
journals finds: after a shard has come here, and after a store may have lost something. So a part
that was behind when its node died, or a projection that is added later, is found by the scan, and
everything else without one. Only parts that are not caught up take memory, `HELD_MAX` at most. With
more, the shard is scanned again later (`ScanAgain`), so nothing is lost.

**Failures.** A part whose handler raises tries again after a pause that doubles, and from then on
saves after each event until it has passed the failed one. After `attempts` failures in a row at
one event it is STOPPED: no event is skipped, later events of this entity wait, other entities go
on. It tries again when an operator says so, and at its next home. A store that does not answer
never stops a part.

**Waits.** A part whose deliveries to other entities wait for their confirmation handles no event
for a moment: a backlog of events does not become one of deliveries.

Times are seconds of a clock that never goes back.

Not here: which events there are (`entities.projecting`), and the scan (`entities.journal_scan`).

Source: docs/how-to/event-sourcing.md; S2.74.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TypeAlias, assert_never

import msgspec

from shardbus.backoff import doubling
from shardbus.transitions import following

AT_WORK_MAX = 32
"""Parts of a projection that work on one node at once."""
WORK_S = 60.0
"""Seconds after which a part at work that has not answered is looked after."""
PAUSE_S, PAUSE_MAX_S = 0.2, 30.0
HELD_MAX = 20_000
"""Parts in memory that are not caught up."""
SCANNED_MAX = 1000
"""A scan adds that many parts in one step, at most, and waits while as many are due."""
ERROR_MAX = 1000
"""Characters of an error."""


class PartState(Enum):
    """The progress of one part."""

    CAUGHT_UP = "caught up"
    """Nothing is known that it has not handled. Such a part is not in memory."""
    DUE = "due"
    AT_WORK = "at work"
    BEHIND = "at work, with news"
    PAUSED = "paused"
    STOPPED = "stopped"


class Trigger(Enum):
    """The events that move a part on."""

    NEWS = "news"
    TURN = "turn"
    HANDLED = "handled"
    GOES_ON = "goes on"
    WAITS = "waits"
    FAILED = "failed"
    GIVES_UP = "gives up"
    RESUMES = "resumes"


WORKING = (PartState.AT_WORK, PartState.BEHIND)

TRANSITIONS: dict[tuple[PartState, Trigger], PartState] = {
    (PartState.CAUGHT_UP, Trigger.NEWS): PartState.DUE,
    (PartState.DUE, Trigger.NEWS): PartState.DUE,
    (PartState.AT_WORK, Trigger.NEWS): PartState.BEHIND,
    (PartState.BEHIND, Trigger.NEWS): PartState.BEHIND,
    (PartState.PAUSED, Trigger.NEWS): PartState.PAUSED,
    (PartState.STOPPED, Trigger.NEWS): PartState.STOPPED,
    (PartState.DUE, Trigger.TURN): PartState.AT_WORK,
    (PartState.AT_WORK, Trigger.HANDLED): PartState.CAUGHT_UP,
    (PartState.BEHIND, Trigger.HANDLED): PartState.DUE,
    **{(state, Trigger.GOES_ON): PartState.DUE for state in WORKING},
    **{(state, Trigger.WAITS): PartState.PAUSED for state in WORKING},
    **{(state, Trigger.FAILED): PartState.PAUSED for state in WORKING},
    **{(state, Trigger.GIVES_UP): PartState.STOPPED for state in WORKING},
    (PartState.PAUSED, Trigger.RESUMES): PartState.DUE,
    (PartState.STOPPED, Trigger.RESUMES): PartState.DUE,
}


# Into the machine.


class News(msgspec.Struct, frozen=True):
    """The journal of an entity in this shard may have events that its part has not handled."""

    shard: str
    source_id: str


class Handled(msgspec.Struct, frozen=True):
    """Answer to HandleEvents: the events up to this number are handled, and that is stored. `more`:
    the journal had later ones."""

    source_id: str
    number: int
    more: bool


class Waits(msgspec.Struct, frozen=True):
    """Answer to HandleEvents: no event is handled now, because earlier deliveries wait."""

    source_id: str


class Failed(msgspec.Struct, frozen=True):
    """Answer to HandleEvents: it has failed at the event of this number, 0 if none was reached. Not
    `raised`: the store did not answer, or the part has left memory."""

    source_id: str
    number: int
    error: str
    raised: bool


class Retry(msgspec.Struct, frozen=True):
    """Let this part try again at once; without an id, all that have failed."""

    source_id: str = ""


class ShardGone(msgspec.Struct, frozen=True):
    """A shard has left this node: forget its parts."""

    shard: str


Event: TypeAlias = News | Handled | Waits | Failed | Retry | ShardGone


# Out of it.


class HandleEvents(msgspec.Struct, frozen=True):
    """Let this part handle events. `single`: one event only, because one has failed. Answer:
    Handled, Waits or Failed."""

    shard: str
    source_id: str
    single: bool


class ScanAgain(msgspec.Struct, frozen=True):
    """Too many parts are behind: scan the journals of this shard once there is room."""

    shard: str


Effect: TypeAlias = HandleEvents | ScanAgain


class Part(msgspec.Struct):
    """A part that is not caught up."""

    shard: str
    since: float
    """When it fell behind, as far as this node knows."""
    state: PartState = PartState.CAUGHT_UP
    until: float = 0.0
    """When its pause ends, or when a part at work is looked after."""
    failures: int = 0
    """Failures in a row, of whatever kind."""
    raised: int = 0
    """Failures in a row that its handler has raised at `number`."""
    number: int = 0
    """The number of the event at which it has failed, 0 if it has not."""
    error: str = ""

    def step(self, trigger: Trigger) -> PartState:
        """Move on to the state that follows, and return it."""
        self.state = following(TRANSITIONS, self.state, trigger, "a part of a projection")
        return self.state


class ProjectedParts:
    """The parts of one projection on one node. A part stops after `attempts` failures at one event;
    0: it never stops."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._parts: dict[str, Part] = {}
        self._due: deque[str] = deque()
        """Ids of parts that are due, in the order of their turns. An id may stand there whose part
        is not due any more."""
        self._at_work: dict[str, Part] = {}
        self._paused: dict[str, Part] = {}

    # ---- for the shell and for operators

    @property
    def has_room(self) -> bool:
        """True if a scan may add `SCANNED_MAX` parts."""
        waits = len(self._due) + len(self._at_work)
        return waits < SCANNED_MAX and len(self._parts) <= HELD_MAX - SCANNED_MAX

    @property
    def behind(self) -> int:
        """Parts that are not caught up."""
        return len(self._parts)

    @property
    def failing(self) -> list[tuple[str, Part]]:
        """Return the parts that have failed and not passed the event yet, stopped ones first."""
        failing = [(key, part) for key, part in self._parts.items() if part.failures]
        return sorted(failing, key=lambda row: (row[1].state is not PartState.STOPPED, row[0]))

    @property
    def stopped(self) -> int:
        """Parts that have stopped."""
        return sum(part.state is PartState.STOPPED for part in self._parts.values())

    def lag(self, now: float) -> float:
        """Return for how many seconds the first part that is behind has been so."""
        return now - min((part.since for part in self._parts.values()), default=now)

    def state_of(self, source_id: str) -> PartState:
        """Return the state of a part."""
        part = self._parts.get(source_id)
        return PartState.CAUGHT_UP if part is None else part.state

    # ---- the machine

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event."""
        effects: list[Effect] = []
        match event:
            case News(shard, source_id):
                effects += self._on_news(shard, source_id, now)
            case Handled(source_id, number, more):
                self._on_handled(source_id, number, now, more=more)
            case Waits(source_id):
                self._on_waits(source_id, now)
            case Failed():
                self._on_failed(event, now)
            case Retry(source_id):
                self._on_retry(source_id)
            case ShardGone(shard):
                for key in [key for key, part in self._parts.items() if part.shard == shard]:
                    self._forget(key)
            case _:
                assert_never(event)
        return effects + self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """End the pauses that are over, and return the parts whose turn it is."""
        for key in [key for key, part in self._paused.items() if part.until <= now]:
            self._resume(key)
        effects: list[Effect] = []
        for key, part in self._at_work.items():
            if part.until <= now:
                part.until = now + WORK_S
                effects.append(self._work(key, part))
        while self._due and len(self._at_work) < AT_WORK_MAX:
            key = self._due.popleft()
            due = self._parts.get(key)
            if due is not None and due.state is PartState.DUE:
                due.step(Trigger.TURN)
                due.until = now + WORK_S
                self._at_work[key] = due
                effects.append(self._work(key, due))
        return effects

    def deadline(self) -> float | None:
        """Return when to call `tick`, None if nothing is to be done at any time."""
        waiting = [*self._paused.values(), *self._at_work.values()]
        return min((part.until for part in waiting), default=None)

    def _work(self, key: str, part: Part) -> HandleEvents:
        return HandleEvents(part.shard, key, single=part.failures > 0)

    def _on_news(self, shard: str, source_id: str, now: float) -> list[Effect]:
        part = self._parts.get(source_id)
        if part is None:
            if len(self._parts) >= HELD_MAX:
                return [ScanAgain(shard)]
            part = self._parts[source_id] = Part(shard, now)
            self._due.append(source_id)
        part.step(Trigger.NEWS)
        return []

    def _on_handled(self, source_id: str, number: int, now: float, *, more: bool) -> None:
        part = self._at_work.pop(source_id, None)
        if part is None:
            return  # an answer to an earlier question
        if number >= part.number:
            part.failures = part.raised = part.number = 0
            part.error = ""
        if part.step(Trigger.GOES_ON if more else Trigger.HANDLED) is PartState.CAUGHT_UP:
            del self._parts[source_id]
            return
        if not more:
            part.since = now
        self._due.append(source_id)

    def _on_waits(self, source_id: str, now: float) -> None:
        part = self._at_work.pop(source_id, None)
        if part is not None:
            part.step(Trigger.WAITS)
            part.until = now + PAUSE_S
            self._paused[source_id] = part

    def _on_failed(self, failed: Failed, now: float) -> None:
        part = self._at_work.pop(failed.source_id, None)
        if part is None:
            return
        part.failures += 1
        if failed.raised:
            part.raised = part.raised + 1 if failed.number == part.number else 1
            part.number = failed.number
        part.error = failed.error[:ERROR_MAX]
        if failed.raised and 0 < self._attempts <= part.raised:
            part.step(Trigger.GIVES_UP)
            return
        part.step(Trigger.FAILED)
        part.until = now + doubling(PAUSE_S, PAUSE_MAX_S, part.failures)
        self._paused[failed.source_id] = part

    def _on_retry(self, source_id: str) -> None:
        for key in [source_id] if source_id else list(self._parts):
            part = self._parts.get(key)
            if part is not None and part.state in (PartState.PAUSED, PartState.STOPPED):
                part.raised = 0
                self._resume(key)

    def _resume(self, key: str) -> None:
        self._paused.pop(key, None)
        self._parts[key].step(Trigger.RESUMES)
        self._due.append(key)

    def _forget(self, key: str) -> None:
        del self._parts[key]
        self._at_work.pop(key, None)
        self._paused.pop(key, None)

    def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        states: dict[str, PartState] = {key: part.state for key, part in self._parts.items()}
        assert PartState.CAUGHT_UP not in states.values()
        assert {k for k, s in states.items() if s in WORKING} == set(self._at_work)
        assert {k for k, s in states.items() if s is PartState.PAUSED} == set(self._paused)
        assert {k for k, s in states.items() if s is PartState.DUE} <= set(self._due), "never woken"
        assert len(self._at_work) <= AT_WORK_MAX
        assert len(self._parts) <= HELD_MAX
        for key, part in self._parts.items():
            assert part.failures > 0 or part.state is not PartState.STOPPED, key
            assert not self._attempts or part.raised <= self._attempts
