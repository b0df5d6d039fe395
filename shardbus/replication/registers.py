"""The rows of one disk: how a replica answers one request on its keys.

    PrepareBallot b   b at least the promise: it becomes b                    Promised, else No
    AcceptValue b     b at least the promise: the value is stored under b     Yes, else No
    AcceptChange b    the same, if the row is at the base                     Yes, No or OtherBase
    ReadRow           nothing changes                                         RowShown
    ScanBucket        nothing changes                                         BucketRows

A request that comes again changes nothing: a ballot stands for one value, so a row at that ballot
has it. The promise rises with each accepted ballot too. Of these, only TakeChange has another
effect when it comes again: the disk takes the write twice (`quorum`).

**The driver** calls `handle` for the requests that have come, then writes the records of
`take_records` to its log and syncs it, and only then sends *any* of these answers, answers to reads
included: an answer shows rows that a crash must not lose. If the sync fails, it sends
nothing and ends; the disk counts as lost. At the start it calls `replay` for each record of its
log, in order. A log may begin with all rows of a time between two turns (`rows`, written as
ValueRecord and PromiseRecord), and go on with records that those rows have already, because a
record that is behind its row changes nothing.

**Ages.** A lease's row has the time at which this disk stored its value, which is not logged:
after a start the age counts from the first look at the row, so that no lease is taken over too
early, and each one ends. A value that is settled brings its age along.

**Digests.** `digests` has a number for each bucket, the sum of a mark of each key and its ballot.
Two disks with the same rows have the same digests (`repair`). Promises are not in it: a disk
without a promise refuses less, and no majority leans on it.

**Tombstones** of replicated values go, and their clocks stay in one row of the bucket: `data_rows`.

Source: docs/architecture.md; Lamport, "Paxos made simple".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never
from zlib import crc32

from shardbus.replication import messages as msg
from shardbus.replication.data_rows import DataRows
from shardbus.replication.journal_rows import JournalValue
from shardbus.replication.values import (
    BUCKETS,
    DATA,
    LEASE,
    REMOVED,
    ListValue,
    StateValue,
    Value,
    bucket_at,
    bucket_of,
    changed,
    length_of,
    removed_key,
)
from shardbus.replication.versions import (
    NOTHING,
    Clock,
    DataChange,
    DataValue,
    NotTaken,
    covers,
    joined,
    taken,
)

MASK = 2**64 - 1
ROW_BYTES = 460
"""Memory of a row, beside its key and its value: measured."""
YES = msg.YES
_made = tuple.__new__
"""Makes a named tuple in half the time that its class takes."""


class Registers:
    """The rows of one disk. Reading a row that is not there gives `EMPTY`."""

    __slots__ = ("_accepted_at", "_buckets", "_records", "bytes", "data", "digests", "rows")

    def __init__(self, disk: int = -1) -> None:
        self.data = DataRows(disk)
        self.rows: dict[str, msg.Row] = {}
        self.bytes = 0
        """Bytes of memory that the rows take, about."""
        self.digests = [0] * BUCKETS
        self._buckets: dict[int, set[str]] = {}
        self._records: list[msg.Record] = []
        self._accepted_at: dict[str, float] = {}

    def handle(self, request: msg.Request, now: float) -> msg.Answer:
        """Answer a request. `now`: seconds of a clock that only goes forward.

        Raises:
            TypeError: a change does not fit the value. Nothing changed.
        """
        if isinstance(request, msg.AcceptValue):  # a save, faster than by its pattern
            key, ballot, value, age = request
            return self._accept(key, ballot, value, now - age)
        match request:
            case msg.PrepareBallot(key, ballot):
                return self._prepare(key, ballot, now)
            case msg.ReadRow(key):
                row = self.row(key)
                if row is msg.EMPTY and key[0] == DATA:
                    row = self._dropped(key)
                return msg.RowShown(row.promise, row.ballot, row.value, self._age(key, now))
            case msg.TakeChange(key, change):
                return self._take(key, change)
            case msg.MergeValue(key, value):
                return self._merge_value(key, value, settled=True)
            case msg.ListChanges():
                return self.data.changes(request)
            case msg.AcceptChange():
                return self._change(request, now)
            case msg.ScanBucket(bucket, prefix):
                keys = sorted(
                    key for key in self._buckets.get(bucket, ()) if key.startswith(prefix)
                )
                rows = ((key, self.rows[key]) for key in keys)
                return msg.BucketRows(
                    tuple((k, row.ballot, is_there(row.value)) for k, row in rows)
                )
            case _:
                assert_never(request)

    def row(self, key: str) -> msg.Row:
        """Return the row of the key."""
        return self.rows.get(key, msg.EMPTY)

    def content(self, bucket: int, now: float) -> tuple[tuple[str, msg.Row, float], ...]:
        """Return the rows of a bucket, each with its key and its age, for another disk."""
        keys = sorted(self._buckets.get(bucket, ()))
        return tuple((key, self.rows[key], self._age(key, now)) for key in keys)

    def take_records(self) -> list[msg.Record]:
        """Return the changes since the last call, for the log."""
        records, self._records = self._records, []
        return records

    def replay(self, record: msg.Record) -> None:
        """Take a record of the disk's own log. Ages are not known any more.

        Raises:
            ValueError: the log lacks the record before this one.
        """
        row = self.row(record.key)
        match record:
            case msg.PromiseRecord(key, promise):
                self._put(key, row, msg.merged(row, msg.Row(promise, msg.ZERO, None)))
            case msg.ValueRecord(key, ballot, value):
                self._put(key, row, msg.merged(row, msg.Row(ballot, ballot, value)))
            case msg.ChangeRecord(key, ballot, base, change):
                if ballot <= row.ballot:
                    return
                if base != row.ballot:
                    raise ValueError(
                        f"a change of {key!r} is of {base}, and the row at {row.ballot}"
                    )
                self._put(
                    key, row, msg.Row(max(row.promise, ballot), ballot, changed(row.value, change))
                )
            case _:
                assert_never(record)

    def merge(
        self, key: str, other: msg.Row, now: float, age: float = 0.0, *, settled: bool = False
    ) -> bool:
        """Merge the row of another disk: for repair, moves and restores. Its value is `age` seconds
        old there. `settled`: this disk has all rows of the partition (`data_rows`). Returns True if
        its value is newer."""
        row = self.row(key)
        if isinstance(other.value, DataValue):
            self._merge_value(key, other.value, settled=settled)
            return self.row(key).ballot > row.ballot
        after = msg.merged(row, other)
        is_newer = after.ballot > row.ballot
        if after.ballot > row.ballot:
            self._store(key, row, after, now - age)
            self._records.append(msg.ValueRecord(key, after.ballot, after.value))
        if after.promise > max(row.promise, after.ballot):
            self._put(key, self.row(key), after)
            self._records.append(msg.PromiseRecord(key, after.promise))
        return is_newer

    def remove_tombstones(self, bucket: int) -> None:
        """Every disk of the partition has the tombstones of this bucket: drop them, and keep their
        clock."""
        removed = DataValue(self.data.clock_of_tombstones(bucket), ())
        self._merge_value(removed_key(bucket), removed, settled=True)

    def forget(self, buckets: Iterable[int]) -> list[str]:
        """Drop the rows of buckets that the disk does not hold any more; return their keys. The
        driver leaves them out when it next writes all rows."""
        dropped: list[str] = []
        for bucket in buckets:
            keys = self._buckets.pop(bucket, set())
            self.digests[bucket] = 0
            for key in keys:
                row = self.rows.pop(key)
                self.bytes -= weight_of(key, row)
                self._accepted_at.pop(key, None)
                if isinstance(row.value, DataValue):
                    self.data.note(key, row, None)
            dropped += sorted(keys)
        return dropped

    def forget_values(self, buckets: Iterable[int]) -> None:
        """Drop the replicated values of buckets, as `forget`."""
        for bucket in buckets:
            for key in [k for k in self._buckets.get(bucket, ()) if k[0] in (DATA, REMOVED)]:
                self._drop(key)

    def check(self) -> None:
        """Audit the whole state. For tests."""
        digests = [0] * BUCKETS
        for key, row in self.rows.items():
            assert row.ballot <= row.promise, (key, row)
            assert key in self._buckets[bucket_of(key)], key
            digests[bucket_of(key)] = (digests[bucket_of(key)] + mark_of(key, row.ballot)) & MASK
        assert digests == self.digests
        assert self.bytes == sum(weight_of(key, row) for key, row in self.rows.items())
        assert sum(map(len, self._buckets.values())) == len(self.rows)
        values = {k: row.value for k, row in self.rows.items() if isinstance(row.value, DataValue)}
        assert self.data.count == len(values)
        dotless = {key for key, value in values.items() if key[0] == DATA and not value.dots}
        assert dotless == {key for keys in self.data.tombstones.values() for key in keys}
        assert all(not covers(self._removed(key), values[key].clock) for key in dotless)

    def _prepare(self, key: str, ballot: msg.Ballot, now: float) -> msg.Answer:
        row = self.row(key)
        if ballot < row.promise:
            return msg.No(row.promise)
        if ballot > row.promise:
            self._put(key, row, row._replace(promise=ballot))
            self._records.append(msg.PromiseRecord(key, ballot))
        return msg.Promised(row.promise, row.ballot, row.value, self._age(key, now))

    def _accept(self, key: str, ballot: msg.Ballot, value: Value, since: float) -> msg.Answer:
        row = self.rows.get(key, msg.EMPTY)
        if ballot < row.promise:
            return msg.No(row.promise)
        if ballot == row.ballot:
            return YES
        after = _made(msg.Row, (ballot, ballot, value))
        if key[0] == LEASE:
            self._store(key, row, after, since)
        else:
            self._put(key, row, after)
        self._records.append(_made(msg.ValueRecord, (key, ballot, value)))
        return YES

    def _change(self, request: msg.AcceptChange, now: float) -> msg.Answer:
        key, ballot, base, change = request
        row = self.row(key)
        if ballot < row.promise:
            return msg.No(row.promise)
        if ballot == row.ballot:
            return YES
        if base != row.ballot:
            return msg.OtherBase(row.ballot)
        self._store(key, row, msg.Row(ballot, ballot, changed(row.value, change)), now)
        self._records.append(msg.ChangeRecord(key, ballot, base, change))
        return YES

    # -- replicated values

    def _removed(self, key: str) -> Clock:
        """Return the clock up to which keys of this one's bucket count as dropped."""
        row = self.rows.get(removed_key(bucket_of(key)))
        return row.value.clock if row is not None and isinstance(row.value, DataValue) else ()

    def _dropped(self, key: str) -> msg.Row:
        """Return the row of a key that has none here."""
        removed = self._removed(key)
        return msg.data_row(DataValue(removed, ())) if removed else msg.EMPTY

    def _value(self, key: str, *, settled: bool) -> DataValue:
        row = self.rows.get(key)
        if row is not None:
            return row.value if isinstance(row.value, DataValue) else NOTHING
        return DataValue(self._removed(key), ()) if settled and key[0] == DATA else NOTHING

    def _take(self, key: str, change: DataChange) -> msg.Taken | NotTaken:
        step = taken(self._value(key, settled=True), self.data.disk, self.data.counter, change)
        if isinstance(step, NotTaken):
            return step
        self._store_value(key, step[0])
        return msg.Taken(step[0])

    def _merge_value(self, key: str, value: DataValue, *, settled: bool) -> msg.Yes | msg.Gone:
        former = self._value(key, settled=settled)
        after = joined(former, value)
        if key not in self.rows and not after.dots:
            if value.dots:
                return msg.Gone()
            if key[0] == DATA and covers(self._removed(key), value.clock):
                return YES
        self._store_value(key, after)
        return YES

    def _store_value(self, key: str, value: DataValue) -> None:
        row, after = self.row(key), msg.data_row(value)
        if after.ballot != row.ballot:
            self._records.append(msg.ValueRecord(key, after.ballot, value))
            self._put(key, row, after)

    def _drop_removed(self, bucket: int) -> None:
        """Drop the tombstones that the clock of the bucket covers."""
        tombstones = self.data.tombstones.get(bucket)
        if not tombstones:
            return
        removed = self._removed(next(iter(tombstones)))
        for key, clock in list(tombstones.items()):
            if covers(removed, clock):
                self._drop(key)

    def _drop(self, key: str) -> None:
        row, bucket = self.rows.pop(key), bucket_of(key)
        self.bytes -= weight_of(key, row)
        self._buckets[bucket].discard(key)
        self.digests[bucket] = (self.digests[bucket] - mark_of(key, row.ballot)) & MASK
        self.data.note(key, row, None)

    def _store(self, key: str, row: msg.Row, after: msg.Row, since: float) -> None:
        if key[0] == LEASE:
            if row.value == after.value:
                since = min(since, self._accepted_at.get(key, since))
            self._accepted_at[key] = since
        self._put(key, row, after)

    def _put(self, key: str, row: msg.Row, after: msg.Row) -> None:
        self.rows[key] = after
        former, ballot = row[1], after[1]
        if row is msg.EMPTY:
            self.bytes += weight_of(key, after)
        elif former == ballot:
            return  # a promise
        else:
            self.bytes += length_of(after[2]) - length_of(row[2])
        number = crc32(key.encode())
        bucket = bucket_at(key, number)
        if row is msg.EMPTY:
            self._buckets.setdefault(bucket, set()).add(key)
        digest = self.digests[bucket] - _mark(number, former) + _mark(number, ballot)
        self.digests[bucket] = digest & MASK
        if isinstance(after.value, DataValue):
            self.data.note(key, row, after)
            if not after.value.dots:
                self._drop_removed(bucket)

    def _age(self, key: str, now: float) -> float:
        """Return the seconds since the value was stored, or, after a start, since its first
        look."""
        return now - self._accepted_at.setdefault(key, now) if key[0] == LEASE else 0.0


def weight_of(key: str, row: msg.Row) -> int:
    """Return the bytes of memory of a row, about."""
    return ROW_BYTES + len(key) + length_of(row.value)


def is_there(value: Value) -> bool:
    """True if a list of states or of shards has this value."""
    match value:
        case StateValue():
            return value.data is not None
        case ListValue():
            return bool(value.entity_ids or value.due or value.open)
        case DataValue():
            return bool(value.dots)
        case JournalValue():
            return value.there
        case _:
            return value is not None


def mark_of(key: str, ballot: msg.Ballot) -> int:
    """Return the number that stands in a digest for a key at a ballot, 64 bits. A key that was only
    promised has 0: the disk has nothing to give."""
    return _mark(crc32(key.encode()), ballot)


def _mark(number: int, ballot: msg.Ballot) -> int:
    """Return the mark of a key with this CRC-32."""
    fence, round_, session, k = ballot
    if fence < 0:  # ZERO
        return 0
    mixed = (
        session ^ k * 0x9E3779B97F4A7C15 ^ fence * 0xC2B2AE3D27D4EB4F ^ round_ * 0x165667B1
    ) & MASK
    mixed = ((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 + number * 0x94D049BB133111EB) & MASK
    return mixed ^ mixed >> 32
