"""Which entities of a shard are woken for their reminders, and when: a pure machine.

The store has an index of each shard: when the first reminder of each entity is due. A home that
has raised the shard's fence is the only one that changes it, so the entries that it has read stay
true. It reads a *window*, the first entries up to a horizon, and the next window once this one runs
low: memory and reads do not grow with the number of reminders, and nothing is read while nothing
is due.

    claimed ──> LOADING ──loaded──> READY ──fewer than LOW are left, and there are more──┐
                   ^   └──failed: again after a pause                                    │
                   └─────────────────────────────────────────────────────────────────────┘

- **Saved**: an entity has stored its reminders. An entry before the horizon enters the window; one
  behind it will be read. An entry that is saved during a read is newer than the answer of the read.
- **Doubtful**: a save has no answer, so its time may be the stored one. The earlier counts.
- **Wake**: the entity is handed a message, and looks for itself which reminders are due. It is not
  woken again before that has *ended*: so a due moment fires once. If nothing is due, none fires.
- **Ended**, in vain: it is woken again after a pause that doubles. Without an end it is woken again
  after `WOKEN_MS`; the shell finds out whether the message is still on its way.

Times are milliseconds of the wall clock. If it is set back, pauses that were to end later are cut.

Source: docs/how-to/reminders.md; B.119.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias, assert_never

import msgspec

from shardbus.backoff import doubling
from shardbus.store.protocol import Due

WINDOW = 256
"""Entries of a read."""
LOW = WINDOW // 4
"""Entries in the window below which the next ones are read."""
HELD_MAX = 4 * WINDOW
"""Entries in the window. With more, the horizon comes nearer."""
WOKEN_MAX = 64
"""Entities of a shard that are woken at once."""
WOKEN_MS = 60_000
PAUSE_MS, PAUSE_MAX_MS = 200, 30_000
END: Due = (2**63, "")
"""The horizon behind the last entry."""


# Into the machine.


class IndexRead(msgspec.Struct, frozen=True):
    """Answer to ReadIndex."""

    entries: tuple[Due, ...]


class Saved(msgspec.Struct, frozen=True):
    """An entity has stored its reminders, the first of which is due then; 0 for none."""

    entity_id: str
    due: int


class Doubtful(msgspec.Struct, frozen=True):
    """A save of these reminders has no answer."""

    entity_id: str
    due: int


class Ended(msgspec.Struct, frozen=True):
    """A woken entity has looked after its reminders. Not `done`: it is to be woken again. `raised`:
    the handler of a reminder has failed; else the entity did not start, or the store failed."""

    entity_id: str
    done: bool
    raised: bool = False


Event: TypeAlias = IndexRead | Saved | Doubtful | Ended


# Out of it.


class ReadIndex(msgspec.Struct, frozen=True):
    """Read the index after this entry, `limit` entries at most. Answer: IndexRead, at some time."""

    after: Due | None
    limit: int = WINDOW


class Wake(msgspec.Struct, frozen=True):
    """Hand this entity the message that lets it look after its reminders. Answer: Ended.
    `attempt`: 1 and the handlers that have raised in a row."""

    entity_id: str
    attempt: int


Effect: TypeAlias = ReadIndex | Wake


class ReminderSchedule:
    """The reminders of one shard at its home, which has raised the shard's fence."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        """The window: when the first reminder of each entity is due."""
        self._heap: list[tuple[int, str]] = []
        """When to wake each, and former such times, which are skipped."""
        self._at: dict[str, int] = {}
        """When to wake each entity of the window that is not woken."""
        self._horizon: Due | None = None
        """Every entry up to it is in the window; None before the first read."""
        self._touched: dict[str, int] | None = None
        """Due times that were saved during a read, by entity; None if no read is under way."""
        self._woken: dict[str, int] = {}
        """Until when each entity that is woken has time."""
        self._failures: dict[str, int] = {}
        """Failures in a row, of entities of the window."""
        self._raised: dict[str, int] = {}
        """Failures in a row that handlers have raised, by entity."""
        self._pauses: dict[str, tuple[int, int]] = {}
        """By entity: when the reminder was due whose handler has raised, and when to try again."""
        self._now = 0

    @property
    def is_complete(self) -> bool:
        """True if every entry of the shard is in the window."""
        return self._horizon == END and self._touched is None

    def may_have(self, entity_id: str) -> bool:
        """True unless it is known that the entity has no reminders."""
        return not self.is_complete or entity_id in self._due

    @property
    def held(self) -> int:
        """Entries in memory."""
        return len(self._due)

    def overdue(self, now: int) -> tuple[int, int]:
        """Return how many entities of the window are due, and for how many milliseconds the first
        has been."""
        due = [at for at in self._due.values() if at <= now]
        return len(due), now - min(due, default=now)

    def begin(self) -> list[Effect]:
        """Read the first window: the shard's fence is raised."""
        self._touched = {}
        return [ReadIndex(None)]

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Return the effects of an event."""
        match event:
            case IndexRead(entries):
                self._on_loaded(entries)
            case Saved(entity_id, due):
                if self._touched is not None:
                    self._touched[entity_id] = due
                self._put(entity_id, due)
            case Doubtful(entity_id, due):
                planned = self._due.get(entity_id, 0)
                self._put(entity_id, min(planned or due, due or planned))
            case Ended():
                self._on_ended(event, now)
            case _:
                assert_never(event)
        return self.tick(now)

    def tick(self, now: int) -> list[Effect]:
        """Return the entities to wake by now, and the next read if the window runs low."""
        if now < self._now:
            self._clock_set_back(now)
        self._now = now
        effects: list[Effect] = []
        for entity_id, until in list(self._woken.items()):
            if until <= now:
                self._woken[entity_id] = now + WOKEN_MS
                effects.append(Wake(entity_id, self._raised.get(entity_id, 0) + 1))
        while self._heap and self._heap[0][0] <= now and len(self._woken) < WOKEN_MAX:
            at, entity_id = heappop(self._heap)
            if self._at.get(entity_id) == at:
                del self._at[entity_id]
                self._woken[entity_id] = now + WOKEN_MS
                effects.append(Wake(entity_id, self._raised.get(entity_id, 0) + 1))
        if self._touched is None and self._horizon not in (None, END) and len(self._due) < LOW:
            self._touched = {}
            effects.append(ReadIndex(self._horizon))
        return effects

    def deadline(self) -> int | None:
        """Return when to call `tick`, None if nothing is due at any time."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        times = list(self._woken.values())
        if self._heap and len(self._woken) < WOKEN_MAX:
            times.append(self._heap[0][0])
        return min(times, default=None)

    def _on_loaded(self, entries: tuple[Due, ...]) -> None:
        touched, self._touched = self._touched or {}, None
        self._horizon = entries[-1] if len(entries) >= WINDOW else END
        for due, entity_id in entries:
            if entity_id not in self._due:
                self._put(entity_id, due)
        for entity_id, due in touched.items():
            self._put(entity_id, due)

    def _on_ended(self, ended: Ended, now: int) -> None:
        entity_id = ended.entity_id
        if self._woken.pop(entity_id, None) is None:
            return
        due = self._due.get(entity_id, 0)
        if ended.done or not due:
            self._forget_failures(entity_id)
            self._put(entity_id, due)
            return
        self._raised[entity_id] = self._raised.get(entity_id, 0) + ended.raised
        failures = self._failures[entity_id] = self._failures.get(entity_id, 0) + 1
        again = now + round(doubling(PAUSE_MS, PAUSE_MAX_MS, failures))
        if ended.raised:
            self._pauses[entity_id] = due, again
        self._wake_at(entity_id, max(due, again))

    def _put(self, entity_id: str, due: int) -> None:
        """Note when the first reminder of an entity is due; 0 for none."""
        inside = bool(due) and self._horizon is not None and (due, entity_id) <= self._horizon
        if not inside and not (due and self._touched is not None):
            self._due.pop(entity_id, None)
            self._at.pop(entity_id, None)
            self._forget_failures(entity_id)
            return
        self._due[entity_id] = due
        failed, again = self._pauses.get(entity_id, (due, 0))
        if due > failed:  # that reminder is gone, or put off
            self._forget_failures(entity_id)
            again = 0
        if entity_id not in self._woken:
            self._wake_at(entity_id, max(due, again))
        if len(self._due) > HELD_MAX and self._touched is None:
            self._shrink()

    def _forget_failures(self, entity_id: str) -> None:
        self._failures.pop(entity_id, None)
        self._raised.pop(entity_id, None)
        self._pauses.pop(entity_id, None)

    def _wake_at(self, entity_id: str, at: int) -> None:
        self._at[entity_id] = at
        heappush(self._heap, (at, entity_id))
        if len(self._heap) > 4 * HELD_MAX + 4 * len(self._at):
            self._heap = [(at, entity) for entity, at in self._at.items()]
            heapify(self._heap)

    def _shrink(self) -> None:
        """Bring the horizon nearer: entries behind it are read again later."""
        entries = sorted((due, entity_id) for entity_id, due in self._due.items())
        self._horizon = entries[WINDOW - 1]
        for _, entity_id in entries[WINDOW:]:
            if entity_id not in self._woken:
                del self._due[entity_id]
                self._at.pop(entity_id, None)
                self._forget_failures(entity_id)
        self._heap = [(at, entity) for entity, at in self._at.items()]
        heapify(self._heap)

    def _clock_set_back(self, now: int) -> None:
        """Let no pause end later than it would have begun now."""
        for entity_id, until in self._woken.items():
            self._woken[entity_id] = min(until, now + WOKEN_MS)
        for entity_id, (due, again) in self._pauses.items():
            self._pauses[entity_id] = due, min(again, now + PAUSE_MAX_MS)
        for entity_id in list(self._failures):
            at, due = self._at.get(entity_id), self._due.get(entity_id, 0)
            if at is not None:
                self._wake_at(entity_id, min(at, max(due, now + PAUSE_MAX_MS)))

    def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        horizon = self._horizon
        assert set(self._at).isdisjoint(self._woken)
        assert set(self._at) | set(self._woken) >= set(self._due), "an entry is never woken"
        assert set(self._at) <= set(self._due)
        entries = set(self._heap)
        assert all((at, entity) in entries for entity, at in self._at.items())
        assert all(at >= self._due[entity] for entity, at in self._at.items()), "woken early"
        if self._touched is None and horizon is not None:
            outside = [e for e in self._due.items() if (e[1], e[0]) > horizon]
            assert not [e for e in outside if e[0] not in self._woken], outside
        assert len(self._due) <= HELD_MAX + WINDOW + WOKEN_MAX + len(self._touched or ())
