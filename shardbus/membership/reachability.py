"""Who cannot reach whom.

Every observer has one row: the subjects it monitors and cannot reach, and a version that grows with
each change of the row. Only the observer changes its row, so two copies merge by taking the one
with the higher version. A subject is unreachable as soon as one observer says so, and reachable
again when every observer that said so has taken it back.

    reachable <──> unreachable ──> terminated
         └─────> quarantined ──────────^

`terminated` means that the observer has proof that the subject's process is gone. `quarantined`
means that the subject answers, but messages that must arrive do not: who has missed one of them
must start anew. Both are final.
Reachable subjects are not stored: a row without a subject says «reachable».

Rows of observers that are down or removed carry no weight; callers leave them out by `ignore`.

Source: S1.20, S1.24, S1.25, B.10; docs/architecture.md; T.U5.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from shardbus.ids import NodeId


class Flag(IntEnum):
    """What an observer says of a subject; the higher number is the worse news."""

    REACHABLE = 0
    UNREACHABLE = 1
    QUARANTINED = 2
    TERMINATED = 3


FINAL = (Flag.QUARANTINED, Flag.TERMINATED)


@dataclass(frozen=True, slots=True)
class ObserverRow:
    """One observer's word. `flags` holds only subjects that are not reachable."""

    version: int
    flags: Mapping[NodeId, Flag]

    def merge(self, other: ObserverRow) -> ObserverRow:
        """The newer row; rows of one version are equal, and are united if a defect made them
        differ."""
        if self.version != other.version:
            return self if self.version > other.version else other
        flags = dict(self.flags)
        for subject, flag in other.flags.items():
            flags[subject] = max(flag, flags.get(subject, Flag.REACHABLE))
        return ObserverRow(self.version, flags)


@dataclass(frozen=True, slots=True)
class Reachability:
    """All rows. Immutable."""

    rows: Mapping[NodeId, ObserverRow] = field(default_factory=dict)

    def flag(self, observer: NodeId, subject: NodeId) -> Flag:
        """What the observer says of the subject."""
        row = self.rows.get(observer)
        return row.flags.get(subject, Flag.REACHABLE) if row else Flag.REACHABLE

    def marked(self, observer: NodeId, subject: NodeId, flag: Flag) -> Reachability:
        """With the observer's new word on the subject. The same object if that changes nothing: it
        said so already, or it had said what is final."""
        before = self.flag(observer, subject)
        if before is flag or (before in FINAL and flag < before):
            return self
        row = self.rows.get(observer, ObserverRow(0, {}))
        flags = {s: f for s, f in row.flags.items() if s != subject}
        if flag is not Flag.REACHABLE:
            flags[subject] = flag
        return Reachability({**self.rows, observer: ObserverRow(row.version + 1, flags)})

    def merge(self, other: Reachability) -> Reachability:
        """Per observer the newer row."""
        rows = dict(self.rows)
        for observer, row in other.rows.items():
            rows[observer] = rows[observer].merge(row) if observer in rows else row
        return Reachability(rows)

    def without(self, nodes: Container[NodeId]) -> Reachability:
        """Without these nodes, as observers and as subjects."""
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
        """True if nobody says anything else."""
        return not any(row.flags for row in self.rows.values())

    def records(self, ignore: Container[NodeId] = ()) -> list[tuple[NodeId, NodeId, Flag]]:
        """Every (observer, subject, flag) that is not reachable, in address order."""
        return sorted(
            (observer, subject, flag)
            for observer, row in self.rows.items()
            if observer not in ignore
            for subject, flag in row.flags.items()
        )

    def verdicts(self, ignore: Container[NodeId] = ()) -> dict[NodeId, Flag]:
        """Every subject that somebody cannot reach, with the worst word on it, in address order."""
        worst: dict[NodeId, Flag] = {}
        for _, subject, flag in self.records(ignore):
            worst[subject] = max(flag, worst.get(subject, Flag.REACHABLE))
        return dict(sorted(worst.items()))
