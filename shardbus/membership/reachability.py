"""Reachability: which observer cannot reach which subject.

Each observer has one row: the subjects it monitors and cannot reach, and a version that grows with
each change of the row. Only the observer changes its row, so a merge takes the row with the higher
version. A subject is unreachable as soon as one observer flags it, and reachable again when all
observers that flagged it have cleared their flags.

    reachable <──> unreachable ──> terminated
         └─────> quarantined ──────────^

`terminated`: the observer has proof that the subject's process is gone. `quarantined`: the subject
answers heartbeats, but messages that must arrive do not. Its process has missed one of them, so it
must restart. Both flags are final, with one exception: an observer that could not reach another
subject, and reaches it again, takes back `quarantined`. It may have been at fault itself, and
quarantines again the subjects that messages still do not reach.

Reachable subjects are not stored: a subject that is not in a row is reachable.

Rows of observers that are Down or removed do not count. Callers exclude them with `ignore`.

Source: S1.20, S1.24, S1.25, B.10; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum

import msgspec

from shardbus.ids import NodeId


class Flag(IntEnum):
    """An observer's flag for a subject. A higher number is worse."""

    REACHABLE = 0
    UNREACHABLE = 1
    QUARANTINED = 2
    TERMINATED = 3


FINAL = (Flag.QUARANTINED, Flag.TERMINATED)


class ObserverRow(msgspec.Struct, frozen=True):
    """One observer's flags. `flags` holds only subjects that are not reachable."""

    version: int
    flags: Mapping[NodeId, Flag]

    def merge(self, other: ObserverRow) -> ObserverRow:
        """Return the newer row. Rows of one version are equal; if a defect made them differ, unite
        them."""
        if self.version != other.version:
            return self if self.version > other.version else other
        flags = dict(self.flags)
        for subject, flag in other.flags.items():
            flags[subject] = max(flag, flags.get(subject, Flag.REACHABLE))
        return ObserverRow(self.version, flags)


class Reachability(msgspec.Struct, frozen=True):
    """The rows of all observers. Immutable."""

    rows: Mapping[NodeId, ObserverRow] = msgspec.field(default_factory=dict)

    def flag(self, observer: NodeId, subject: NodeId) -> Flag:
        """Return the observer's flag for the subject."""
        row = self.rows.get(observer)
        return row.flags.get(subject, Flag.REACHABLE) if row else Flag.REACHABLE

    def marked(self, observer: NodeId, subject: NodeId, flag: Flag) -> Reachability:
        """Set the observer's flag for the subject. Return the same object if nothing changes: the
        flag is already set, or the present flag is final. An observer that reaches a subject again
        takes back its quarantines."""
        before = self.flag(observer, subject)
        if before is flag or (before in FINAL and flag < before):
            return self
        row = self.rows.get(observer, ObserverRow(0, {}))
        ended = (Flag.QUARANTINED,) if flag is Flag.REACHABLE else ()
        flags = {s: f for s, f in row.flags.items() if s != subject and f not in ended}
        if flag is not Flag.REACHABLE:
            flags[subject] = flag
        return Reachability({**self.rows, observer: ObserverRow(row.version + 1, flags)})

    def merge(self, other: Reachability) -> Reachability:
        """Take the newer row of each observer."""
        rows = dict(self.rows)
        for observer, row in other.rows.items():
            rows[observer] = rows[observer].merge(row) if observer in rows else row
        return Reachability(rows)

    def without(self, nodes: Container[NodeId]) -> Reachability:
        """Remove these nodes, as observers and as subjects."""
        rows = {}
        for observer, row in self.rows.items():
            if observer in nodes:
                continue
            if any(s in nodes for s in row.flags):
                row = ObserverRow(
                    row.version, {s: f for s, f in row.flags.items() if s not in nodes}
                )
            rows[observer] = row
        return Reachability(rows)

    def all_reachable(self) -> bool:
        """True if no observer flags any subject."""
        return not any(row.flags for row in self.rows.values())

    def records(self, ignore: Container[NodeId] = ()) -> list[tuple[NodeId, NodeId, Flag]]:
        """Return each (observer, subject, flag) that is not reachable, in address order."""
        return sorted(
            (observer, subject, flag)
            for observer, row in self.rows.items()
            if observer not in ignore
            for subject, flag in row.flags.items()
        )

    def unreachable(self, ignore: Container[NodeId] = ()) -> dict[NodeId, Flag]:
        """Return each subject that some observer cannot reach, with the worst flag on it, in
        address order."""
        worst: dict[NodeId, Flag] = {}
        for _, subject, flag in self.records(ignore):
            worst[subject] = max(flag, worst.get(subject, Flag.REACHABLE))
        return dict(sorted(worst.items()))
