"""The reminders of one entity: a value, and its successor after a due moment.

A record is stored with the entity's state, in one write. A firing ends by replacing the record with
its successor, so a save of the handler stores its effect and the end of the firing together. If the
process dies before, the moment is due again: it has the same `delivery` then.

    due ──> not late, or `once`, or `all` ──> fires ──> `all`: the next moment, however old
        │                                           └─> else: the next one that is to come
        └─> `skip`, and late ──> does not fire ──> the next one that is not late

Not here: which entities are woken (`schedule`), and the store.

Source: docs/how-to/reminders.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

import msgspec
from msgspec.structs import replace

from shardbus.errors import ConfigError
from shardbus.reminders.rule import MOMENT_MAX, Late, Rule, datetime_of

NAME_MAX = 128
"""Characters of a name."""
REMINDERS_MAX = 100
"""Reminders of one entity."""
RECORD_MAX = 256 * 1024
"""Bytes of a record."""
VERSION = 1
LATE_MS = 10_000
"""After this, a moment that has not fired is late: `skip` leaves it out."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One reminder. `moment`: when it is due next; `due`: the same with its jitter; `payload`: the
    arguments of the handler; `token`: a random number of 63 bits; `number`: of the moment, from
    1."""

    name: str
    handler: str
    payload: bytes
    token: int
    moment: int
    due: int
    rule: Rule
    number: int = 1

    @property
    def delivery(self) -> str:
        """A text that is the same each time this moment is delivered, and no other."""
        return f"{self.token:x}-{self.number}"

    def at(self, moment: int) -> Entry:
        """Return the same, due at a later moment."""
        number = self.number + 1
        due = min(moment + jitter(self.rule, self.token, number), MOMENT_MAX)
        return replace(self, moment=moment, due=due, number=number)


@dataclass(frozen=True, slots=True)
class Reminder:
    """A reminder, as an entity and operators see it."""

    name: str
    handler: str
    due: datetime
    """In UTC."""
    number: int
    """Of its due moments, from 1."""
    delivery: str
    """The same each time this due moment is delivered, and of no other: a key by which effects on
    other systems happen once."""
    every: float
    """Seconds; 0 if it has no interval."""
    cron: str
    tz: str
    late: Late


def shown(entry: Entry) -> Reminder:
    """Return a reminder as others see it."""
    rule = entry.rule
    due = datetime_of(entry.moment)
    every = rule.every_ms / 1000
    return Reminder(
        entry.name, entry.handler, due, entry.number, entry.delivery, every, rule.cron, rule.tz,
        rule.late,
    )  # fmt: skip


def jitter(rule: Rule, token: int, number: int) -> int:
    """Return by how many milliseconds a firing is put off: the same for each delivery of it."""
    if not rule.jitter_ms:
        return 0
    return crc32(b"%d/%d" % (token, number)) % (rule.jitter_ms + 1)


class Record(msgspec.Struct, frozen=True):
    """All reminders of an entity, by name."""

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)

    @property
    def due(self) -> int:
        """When the first is due; 0 if there is none."""
        return min((entry.due for entry in self.entries.values()), default=0)

    def setting(self, entry: Entry) -> Record:
        """Return the record with this reminder, instead of one of the same name.

        Raises:
            ConfigError: there are too many, or they are too long.
        """
        after = Record({**self.entries, entry.name: entry})
        if len(after.entries) > REMINDERS_MAX:
            raise ConfigError(f"an entity has at most {REMINDERS_MAX} reminders")
        if sum(len(stored.payload) + 200 for stored in after.entries.values()) > RECORD_MAX:
            raise ConfigError(f"the reminders of an entity have at most {RECORD_MAX} bytes")
        return after

    def beside(self, stored: Record) -> Record:
        """Return the record to store before the events that this one belongs to: of each name the
        reminder that is due first, here or in the stored record. So none is lost if the events are
        stored or not. Returns `stored` itself if nothing is added to it."""
        entries = dict(stored.entries)
        for name, entry in self.entries.items():
            other = entries.get(name)
            if other is None or entry.due < other.due:
                entries[name] = entry
        return stored if entries == stored.entries else Record(entries)

    def without(self, names: Iterable[str]) -> Record:
        """Return the record without these reminders."""
        gone = set(names)
        return Record({name: entry for name, entry in self.entries.items() if name not in gone})

    def first_due(self, now: int) -> Entry | None:
        """Return the reminder that is due first, None if none is by now."""
        entries = (entry for entry in self.entries.values() if entry.due <= now)
        return min(entries, key=lambda entry: (entry.due, entry.name), default=None)

    def after_firing(self, delivery: str, at: int) -> Record:
        """Return the record after a firing that began at this time; itself if none of its moments
        has this `delivery`."""
        fired = (entry for entry in self.entries.values() if entry.delivery == delivery)
        entry = next(fired, None)
        return self if entry is None else self.past(entry, at)

    def past(self, entry: Entry, now: int) -> Record:
        """Return the record after the moment of this entry has fired, or was left out."""
        rule, late = entry.rule, entry.rule.late
        if late == "all":
            moment = rule.after(entry.moment)
        else:
            ended = now - LATE_MS if late == "skip" else now
            moment = rule.after_missed(entry.moment, max(ended, entry.moment))
        if moment is None:
            return self.without([entry.name])
        return Record({**self.entries, entry.name: entry.at(moment)})


EMPTY = Record()


def is_left_out(entry: Entry, now: int) -> bool:
    """True if a due moment is so late that its policy leaves it out."""
    return entry.rule.late == "skip" and now - entry.due > LATE_MS


class _Stored(msgspec.Struct, array_like=True):
    version: int
    entries: list[Entry]


_decoder = msgspec.msgpack.Decoder(_Stored)
_encoder = msgspec.msgpack.Encoder()


def encoded(record: Record) -> bytes | None:
    """Return a record as it is stored; None if it is empty."""
    if not record.entries:
        return None
    return _encoder.encode(_Stored(VERSION, list(record.entries.values())))


def decoded(data: bytes | None) -> Record:
    """Return a stored record.

    Raises:
        ValueError: it is damaged, or of a later version.
    """
    if data is None:
        return EMPTY
    stored = _decoder.decode(data)
    if stored.version != VERSION:
        raise ValueError(f"the reminders have version {stored.version}, this reads {VERSION}")
    return Record({entry.name: entry for entry in stored.entries})
