"""Ballots, rows, and the messages between a store object and a replica.

A **ballot** orders all writes of a key: `(fence, round, session, k)`, compared in this order.

    fence     of the entity, the table or the list; 0 for keys without
    round     a duel under one fence raises it
    session   a random number of 63 bits, of one store object, for its life
    k         counts the requests of that store object

Ballots with the same first three parts are a **group**: one store object makes them, one after the
other. Two writes never have one ballot, so the ballot stands for the value.

A **row** is one disk's record of a key: the promise, the ballot and the value. Copies of a row
merge by the higher promise and the higher ballot, in any order and number.

The row of a **replicated value** (`versions`) is no register: values merge by their vector clocks,
and nothing is promised. Its ballot is made of the clock (`data_row`), so that digests, logs,
repair, backups and comparisons treat it as any other row: equal clocks have one ballot, and a clock
that covers another one has a higher ballot.

| request | answer | |
|---|---|---|
| PrepareBallot | Promised or No | refuse lower ballots from now on; show the row |
| AcceptValue | Yes or No | store the value under the ballot |
| AcceptChange | Yes, No or OtherBase | the same, as a change of the value under `base` |
| ReadRow | RowShown | the row |
| TakeChange | Taken or NotTaken | stamp a write of a replicated value, and store it |
| MergeValue | Yes or Gone | merge a replicated value |
| ScanBucket | BucketRows | the rows of one bucket, without values |
| ListChanges | KeysChanged | the replicated values that changed since |

Calls that carry requests, and replies that carry answers, have the number of a ring (`ring`). Every
value here is an immutable tuple, so that a codec may take it field by field.

Source: docs/architecture.md; Lamport, "Paxos made simple"; Rystsov, "CASPaxos".
"""

from __future__ import annotations

from typing import NamedTuple

from shardbus.replication.values import AnyChange, Value
from shardbus.replication.versions import (
    DataChange,
    DataValue,
    NotTaken,
    events_in,
    joined,
    number_of,
)


class Ballot(NamedTuple):
    """The place of a write in the order of all writes of its key."""

    fence: int
    round: int
    session: int
    k: int

    def same_group(self, other: Ballot) -> bool:
        """True if one store object made both under one promise."""
        return self[:3] == other[:3]


ZERO = Ballot(-1, 0, 0, 0)
"""Below every ballot: nothing was promised, nothing stored."""


class Row(NamedTuple):
    """One disk's record of a key."""

    promise: Ballot
    """The disk refuses ballots below this one."""
    ballot: Ballot
    """The ballot of `value`, at most `promise`."""
    value: Value


EMPTY = Row(ZERO, ZERO, None)
"""The row of a key that a disk has nothing of."""


def data_row(value: DataValue) -> Row:
    """Return the row of a replicated value."""
    ballot = Ballot(0, events_in(value.clock), number_of(value.clock), 0)
    return Row(ballot, ballot, value)


def merged(row: Row, other: Row) -> Row:
    """Return the row that both make together."""
    if isinstance(row.value, DataValue) and isinstance(other.value, DataValue):
        return row if row.ballot == other.ballot else data_row(joined(row.value, other.value))
    newer = other if other.ballot > row.ballot else row
    return Row(max(row.promise, other.promise), newer.ballot, newer.value)


# -- requests ------------------------------------------------------------------------------------


class PrepareBallot(NamedTuple):
    """Promise to refuse lower ballots, and show the row. Answer: Promised or No."""

    key: str
    ballot: Ballot


class AcceptValue(NamedTuple):
    """Store the value. Answer: Yes or No. `age`: seconds that the value has been stored elsewhere,
    for leases."""

    key: str
    ballot: Ballot
    value: Value
    age: float = 0.0


class AcceptChange(NamedTuple):
    """Store the value that the disk has under `base`, changed. Answer: Yes, No or OtherBase."""

    key: str
    ballot: Ballot
    base: Ballot
    change: AnyChange


class ReadRow(NamedTuple):
    """Show the row. Answer: RowShown."""

    key: str


class ScanBucket(NamedTuple):
    """Show the keys of a bucket that begin with `prefix`. Answer: BucketRows."""

    bucket: int
    prefix: str


class TakeChange(NamedTuple):
    """Stamp a write of a replicated value, and store it. Answer: Taken or NotTaken."""

    key: str
    change: DataChange


class MergeValue(NamedTuple):
    """Merge a replicated value. Answer: Yes, or Gone."""

    key: str
    value: DataValue


class ListChanges(NamedTuple):
    """Show the replicated values that changed since `since`, of those whose keys begin with
    `prefix`. `run`: of the replica, when it gave that number. Answer: KeysChanged."""

    prefix: str
    run: int
    since: int


KeyRequest = PrepareBallot | AcceptValue | AcceptChange | ReadRow
DataRequest = TakeChange | MergeValue
Request = KeyRequest | DataRequest | ScanBucket | ListChanges


# -- answers -------------------------------------------------------------------------------------


class Promised(NamedTuple):
    """The promise is given. The fields have the row as it was before."""

    promise: Ballot
    ballot: Ballot
    value: Value
    age: float
    """Seconds since the disk stored the value; 0 for all but leases."""


class Yes(NamedTuple):
    """The value is stored under its ballot, now or before."""


YES = Yes()


class No(NamedTuple):
    """Refused: the disk has promised a higher ballot. Nothing changed."""

    promise: Ballot


class OtherBase(NamedTuple):
    """Refused: the disk has the value of another ballot than the base. Nothing changed."""

    ballot: Ballot


class RowShown(NamedTuple):
    """The row, and the seconds since the disk stored its value; 0 for all but leases."""

    promise: Ballot
    ballot: Ballot
    value: Value
    age: float


class BucketRows(NamedTuple):
    """Each key of the bucket, its ballot, and whether its value is there: a state with data, a list
    that is not empty."""

    rows: tuple[tuple[str, Ballot, bool], ...]


class Taken(NamedTuple):
    """The write is stored. The value that the disk has with it."""

    value: DataValue


class Gone(NamedTuple):
    """Refused: all dots of the value were dropped before, and the tombstone is removed. Nothing
    changed."""


class KeysChanged(NamedTuple):
    """Keys, each once, that changed up to `until`. `complete` False: the disk does not remember all
    of them."""

    run: int
    until: int
    keys: tuple[str, ...]
    complete: bool


KeyAnswer = Promised | Yes | No | OtherBase | RowShown
Answer = KeyAnswer | Taken | NotTaken | Gone | BucketRows | KeysChanged


# -- records -------------------------------------------------------------------------------------


class PromiseRecord(NamedTuple):
    """A line of a disk's log: a promise was given."""

    key: str
    promise: Ballot


class ValueRecord(NamedTuple):
    """A line of a disk's log: a value was stored."""

    key: str
    ballot: Ballot
    value: Value


class ChangeRecord(NamedTuple):
    """A line of a disk's log: the value under `base` was changed."""

    key: str
    ballot: Ballot
    base: Ballot
    change: AnyChange


Record = PromiseRecord | ValueRecord | ChangeRecord
