"""Replicated values as rows of disks: stamps, tombstones, changes, and the ring."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shardbus.replication import data_rows
from shardbus.replication.kinds import Register
from shardbus.replication.messages import (
    Gone,
    KeysChanged,
    ListChanges,
    MergeValue,
    ReadRow,
    RowShown,
    ScanBucket,
    TakeChange,
    Taken,
    Yes,
    data_row,
)
from shardbus.replication.moves import AskDisk, BucketContent, RingDisk
from shardbus.replication.refounding import differences, merge_rows, shown_key
from shardbus.replication.registers import Registers
from shardbus.replication.ring import (
    AdoptRing,
    ReplicaRing,
    RingMember,
    StoreCall,
    first_ring,
    next_ring,
)
from shardbus.replication.values import (
    BUCKETS,
    bucket_of,
    data_key,
    partition_of,
    removed_key,
)
from shardbus.replication.versions import NOTHING, DataChange, DataValue

KEY = data_key("k")
LATER_S = 60.0
"""After which requests without an answer are given up."""
BUCKET, PARTITION = bucket_of(KEY), partition_of(KEY)
OTHER = next(
    key for key in map(data_key, map(str, range(100_000))) if bucket_of(key) == BUCKET != key
)


def putting(value: object, seen: DataValue = NOTHING) -> DataChange:
    change = Register().set(value).changes.change()
    assert change is not None
    return change._replace(seen=seen.clock)


def take(registers: Registers, change: DataChange, key: str = KEY) -> DataValue:
    answer = registers.handle(TakeChange(key, change), 0.0)
    registers.check()
    assert isinstance(answer, Taken)
    return answer.value


def value_of(registers: Registers, key: str = KEY) -> DataValue:
    answer = registers.handle(ReadRow(key), 0.0)
    assert isinstance(answer, RowShown)
    return answer.value if isinstance(answer.value, DataValue) else NOTHING


def test_rows_of_values_that_merged_are_alike_in_digest_and_ballot() -> None:
    disk_a, disk_b = Registers(1), Registers(2)
    a, b = take(disk_a, putting("a")), take(disk_b, putting("b"))
    for registers, value in ((disk_a, b), (disk_b, a)):
        assert registers.handle(MergeValue(KEY, value), 0.0) == Yes()
        registers.check()
    assert disk_a.rows == disk_b.rows
    assert disk_a.digests == disk_b.digests
    assert disk_a.row(KEY).ballot > max(data_row(a).ballot, data_row(b).ballot)
    before = disk_a.take_records()
    assert disk_a.handle(MergeValue(KEY, b), 0.0) == Yes()
    assert before
    assert disk_a.take_records() == []


def test_counters_go_on_after_a_restart_and_above_all_that_was_seen() -> None:
    disk_a = Registers(1)
    take(disk_a, putting("a"))
    disk_a.handle(MergeValue(OTHER, DataValue(((7, 41),), ())), 0.0)
    assert take(disk_a, putting("b")).clock[0] == (1, 42)
    again = Registers()
    for record in disk_a.take_records():
        again.replay(record)
    again.data.disk = 1
    again.check()
    assert take(again, putting("c")).clock[0] == (1, 43)


def deleted(disk_a: Registers, disk_b: Registers) -> DataValue:
    """Put and delete a key on both. Returns the value that was deleted."""
    value = take(disk_a, putting("a"))
    tombstone = take(disk_a, DataChange("", seen=value.clock))
    disk_b.handle(MergeValue(KEY, tombstone), 0.0)
    return value


def test_a_removed_tombstone_leaves_a_clock_and_a_late_value_stays_out() -> None:
    disk_a, disk_b = Registers(1), Registers(2)
    value = deleted(disk_a, disk_b)
    disk_a.remove_tombstones(BUCKET)
    disk_a.check()
    assert KEY not in disk_a.rows
    assert disk_a.handle(MergeValue(KEY, value), 0.0) == Gone()
    assert value_of(disk_a).dots == ()
    assert disk_a.handle(ScanBucket(BUCKET, "d"), 0.0).rows == ()  # type: ignore[union-attr]
    again = take(disk_a, putting("b"))
    assert disk_a.handle(MergeValue(KEY, value), 0.0) == Yes()
    assert value_of(disk_a) == again


def test_the_clock_of_removed_tombstones_spreads_as_a_row_and_removes_them_elsewhere() -> None:
    disk_a, disk_b = Registers(1), Registers(2)
    deleted(disk_a, disk_b)
    disk_a.remove_tombstones(BUCKET)
    assert disk_b.data.tombstones
    for key, row, age in disk_a.content(BUCKET, 0.0):
        disk_b.merge(key, row, 0.0, age, settled=True)
    disk_b.check()
    assert disk_a.rows == disk_b.rows
    assert list(disk_a.rows) == [removed_key(BUCKET)]
    assert disk_a.digests == disk_b.digests
    tombstone = DataValue(value_of(disk_a).clock, ())
    assert disk_a.handle(MergeValue(KEY, tombstone), 0.0) == Yes()
    assert KEY not in disk_a.rows


def test_a_disk_without_all_rows_takes_a_live_value_that_the_clock_covers() -> None:
    disk_a, blank = Registers(1), Registers(3)
    live = take(disk_a, putting("live"), OTHER)
    deleted(disk_a, Registers(2))
    disk_a.remove_tombstones(BUCKET)
    content = disk_a.content(BUCKET, 0.0)
    for key, row, age in reversed(content):
        blank.merge(key, row, 0.0, age, settled=False)
    blank.check()
    assert value_of(blank, OTHER) == live
    assert blank.rows == disk_a.rows


def test_the_log_brings_back_neither_a_tombstone_nor_its_value() -> None:
    disk_a = Registers(1)
    deleted(disk_a, Registers(2))
    disk_a.remove_tombstones(BUCKET)
    again = Registers(1)
    for record in disk_a.take_records():
        again.replay(record)
    again.check()
    assert again.rows == disk_a.rows
    assert again.digests == disk_a.digests


def changes(registers: Registers, since: int, prefix: str = "") -> KeysChanged:
    answer = registers.handle(ListChanges(prefix, registers.data.run, since), 0.0)
    assert isinstance(answer, KeysChanged)
    return answer


def test_changes_are_listed_once_each_by_prefix_and_since_a_number() -> None:
    disk_a = Registers(1)
    for name in ("a1", "a2", "b1", "a1"):
        take(disk_a, putting(1, value_of(disk_a, data_key(name))), data_key(name))
    shown = changes(disk_a, 0, "a")
    assert sorted(shown.keys) == [data_key("a1"), data_key("a2")]
    assert shown.complete
    assert changes(disk_a, shown.until) == KeysChanged(
        disk_a.data.run, shown.until, (), complete=True
    )
    assert changes(disk_a, 3).keys == (data_key("a1"),)
    disk_b = disk_a.handle(ListChanges("", disk_a.data.run + 1, 0), 0.0)
    assert disk_b == KeysChanged(disk_a.data.run, 4, (), complete=False)


def test_changes_that_are_forgotten_are_not_complete_and_long_lists_come_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, shown = 60, 25
    monkeypatch.setattr(data_rows, "CHANGES_KEPT", kept)
    monkeypatch.setattr(data_rows, "CHANGES_SHOWN", shown)
    disk_a = Registers(1)
    for number in range(kept + 5):
        disk_a.handle(MergeValue(data_key(f"k{number}"), DataValue(((2, number + 1),), ())), 0.0)
    assert not changes(disk_a, 0).complete
    assert not changes(disk_a, 4).complete
    since, keys = 5, set[str]()
    while True:
        part = changes(disk_a, since)
        assert part.complete
        assert len(part.keys) <= shown
        if not part.keys:
            break
        keys |= set(part.keys)
        since = part.until
    assert len(keys) == kept


def test_keys_of_values_lie_in_all_partitions_and_a_clock_in_its_bucket() -> None:
    assert len({partition_of(data_key(str(n))) for n in range(4000)}) == 256
    assert {bucket_of(removed_key(bucket)) for bucket in range(BUCKETS)} == set(range(BUCKETS))
    assert shown_key(data_key("rate:eur")) == "value rate:eur"


def test_disks_that_stand_still_are_merged_and_compared_by_values() -> None:
    disk_a, disk_b, whole = Registers(1), Registers(2), Registers()
    take(disk_a, putting("a"))
    disk_b.handle(MergeValue(KEY, value_of(disk_a)), 0.0)
    take(disk_a, putting("b", value_of(disk_a)))
    take(disk_b, putting("c"), OTHER)
    behind = {(d.key, d.disk) for d in differences({1: disk_a, 2: disk_b})}
    assert behind == {(KEY, 2), (OTHER, 1)}
    merge_rows(whole, [disk_a, disk_b])
    whole.check()
    assert (Register(value_of(whole)).value, Register(value_of(whole, OTHER)).value) == ("b", "c")


# -- in a ring


class Ring:
    """Disks of one ring that reach each other at once."""

    def __init__(self, count: int = 3) -> None:
        members = tuple(RingMember(disk) for disk in range(1, count + 1))
        self.ring = first_ring(members, count)
        self.disks = {disk: RingDisk(disk, [PARTITION]) for disk in range(1, count + 1)}
        self.away: set[int] = set()
        self.now = 0.0
        for disk in self.disks.values():
            disk.adopt(self.ring, 0.0)

    def call(self, disk: int, request: TakeChange | MergeValue | ReadRow) -> object:
        return self.disks[disk].answer(StoreCall(1, self.ring.number, request), 0.0).answer

    def spread(self, value: DataValue, disks: Iterable[int], key: str = KEY) -> None:
        for disk in disks:
            assert self.call(disk, MergeValue(key, value)) == Yes()

    def change(self, ring: ReplicaRing) -> None:
        self.ring = ring
        for disk in self.disks.values():
            self.carry(disk.disk, disk.adopt(ring, self.now))

    def repair(self, disk: int) -> None:
        self.now += LATER_S
        self.carry(disk, self.disks[disk].tick(self.now))
        self.carry(disk, self.disks[disk].repair(self.now))

    def carry(self, asker: int, effects: list[AskDisk]) -> None:
        for effect in effects:
            reached = effect.disk in self.disks and effect.disk not in self.away
            if not reached or isinstance(effect.request, AdoptRing):
                continue
            answer = self.disks[effect.disk].show(effect.request, self.now)
            if isinstance(answer, BucketContent):
                assert answer.complete
            self.carry(asker, self.disks[asker].take(effect.disk, answer, self.now))
        for disk in self.disks.values():
            disk.check()


def delete_in(ring: Ring, disks: Iterable[int]) -> DataValue:
    """Put at all disks, delete at these. Returns the value that was there."""
    value = take(ring.disks[1].registers, putting("a"))
    ring.spread(value, ring.disks)
    ring.spread(take(ring.disks[1].registers, DataChange("", seen=value.clock)), disks)
    return value


def test_a_tombstone_stays_until_every_disk_has_it() -> None:
    ring = Ring()
    delete_in(ring, (1, 2))
    ring.away = {3}
    ring.repair(1)
    ring.repair(2)
    assert all(KEY in ring.disks[disk].registers.rows for disk in (1, 2))
    ring.away = set()
    ring.repair(3)
    ring.repair(1)
    for disk in (2, 3):
        ring.repair(disk)
    for disk in ring.disks.values():
        assert list(disk.registers.rows) == [removed_key(BUCKET)]


def test_an_unspread_write_of_another_key_keeps_the_tombstone() -> None:
    ring = Ring()
    late = take(ring.disks[1].registers, putting("late"), OTHER)
    delete_in(ring, (1, 2, 3))
    ring.away = {1}
    ring.repair(2)
    ring.repair(3)
    assert all(KEY in ring.disks[disk].registers.rows for disk in (1, 2, 3))
    ring.spread(late, (2, 3), OTHER)
    assert value_of(ring.disks[2].registers, OTHER) == late


def test_a_disk_alone_drops_its_tombstones_at_a_repair() -> None:
    ring = Ring(1)
    delete_in(ring, (1,))
    ring.repair(1)
    assert list(ring.disks[1].registers.rows) == [removed_key(BUCKET)]


def test_a_disk_that_is_alone_keeps_its_tombstones_until_it_has_merged() -> None:
    ring = Ring(2)
    value = delete_in(ring, ())
    ring.away = {2}
    ring.change(next_ring(ring.ring, ring.ring.members[:1]))
    take(ring.disks[1].registers, DataChange("", seen=value.clock))
    ring.repair(1)
    assert PARTITION not in ring.disks[1].merged
    ring.away = set()
    ring.repair(1)
    ring.repair(1)
    assert PARTITION in ring.disks[1].merged
    assert list(ring.disks[1].registers.rows) == [removed_key(BUCKET)]


def test_a_disk_that_comes_back_to_a_partition_brings_no_deleted_value_back() -> None:
    ring = Ring(4)
    value = delete_in(ring, ())
    away = ring.disks.pop(4)
    ring.change(next_ring(ring.ring, ring.ring.members[:3]))
    away.adopt(ring.ring, 0.0)
    ring.spread(take(ring.disks[1].registers, DataChange("", seen=value.clock)), (1, 2, 3))
    for disk in (1, 2, 3):
        ring.repair(disk)
    assert all(KEY not in disk.registers.rows for disk in ring.disks.values())
    assert value_of(away.registers) == value
    ring.change(next_ring(ring.ring, (*ring.ring.members, RingMember(4))))
    ring.disks[4] = away
    effects = away.adopt(ring.ring, ring.now)
    log = away.take_records()
    ring.carry(4, effects)
    for disk in (1, 2, 3, 4):
        ring.repair(disk)
    assert PARTITION in away.merged
    assert all(value_of(disk.registers).dots == () for disk in ring.disks.values())
    again = RingDisk(-1, [PARTITION])
    for record in [*log, *away.take_records()]:
        again.replay(record)
    again.identify(4)
    assert again.registers.rows == away.registers.rows


def test_a_new_disk_has_the_values_before_it_votes() -> None:
    ring = Ring(3)
    value = take(ring.disks[1].registers, putting(4))
    ring.spread(value, (2, 3))
    ring.disks[4] = RingDisk(4, [PARTITION])
    ring.change(next_ring(ring.ring, (*ring.ring.members, RingMember(4))))
    assert PARTITION in ring.disks[4].voting
    assert value_of(ring.disks[4].registers) == value
    assert ring.call(4, ReadRow(KEY)) == ring.call(1, ReadRow(KEY))
