"""A write and a chain of rings, in every order: no ring's majority may miss a write that was
acknowledged.

A step is one disk adopting the next ring, one disk accepting the write in its ring, or one disk
merging from another. The next ring exists once the rule for it holds at some moment.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from shardbus.replication.messages import AcceptValue, Ballot, Yes
from shardbus.replication.moves import (
    ASK_AGAIN_S,
    AskDisk,
    BucketContent,
    MergedRecord,
    PlaceRecord,
    RingDisk,
    ShowBucket,
    ShowDigests,
    unmerged,
)
from shardbus.replication.ring import (
    AdoptRing,
    NotVoting,
    ReplicaRing,
    RingIs,
    RingMember,
    RingWanted,
    StoreCall,
    first_ring,
    majority,
    next_ring,
    step_error,
)
from shardbus.replication.values import node_key

KEY, PARTITIONS = node_key("k"), (0,)
WRITE = AcceptValue(KEY, Ballot(1, 0, 1, 1), "written")
COPIES = 5
State = tuple[tuple[RingDisk, ...], frozenset[tuple[int, int]], bool]
"""The disks, the rings in which disks have accepted the write, and whether it was acknowledged."""


def rings_of(chain: str) -> list[ReplicaRing]:
    """The rings of a chain like 123-124."""
    sets = [tuple(RingMember(int(disk)) for disk in each) for each in chain.split("-")]
    rings = [first_ring(sets[0], COPIES)]
    for members in sets[1:]:
        rings.append(next_ring(rings[-1], members))
    return rings


def twin_of(disk: RingDisk) -> RingDisk:
    twin = copy(disk)
    for name in ("voting", "merged", "sources"):
        setattr(twin, name, set(getattr(disk, name)))
    twin._comparisons = {key: copy(value) for key, value in disk._comparisons.items()}
    twin._compared = {key: set(value) for key, value in disk._compared.items()}
    twin.registers = copy(disk.registers)
    twin.registers.rows = dict(disk.registers.rows)
    twin.registers._buckets = {key: set(value) for key, value in disk.registers._buckets.items()}
    twin.registers.digests = list(disk.registers.digests)
    return twin


def identity(state: State) -> Any:
    disks, accepted, acked = state
    shapes = tuple(
        (
            disk.ring.number, *map(frozenset, (disk.voting, disk.merged, disk.sources)),
            bool(disk.registers.rows), frozenset(disk._compared.get(0, ())),
        )
        for disk in disks
    )  # fmt: skip
    return shapes, accepted, acked


def merge(disk: RingDisk, other: RingDisk) -> None:
    """Let a disk take all that the other one has for it."""
    disk._comparisons[0, other.disk].again_at = 0.0
    queue = [ask for ask in disk.tick(0.0) if ask.disk == other.disk]
    while queue:
        request = queue.pop().request
        if isinstance(request, AdoptRing):
            continue  # another step
        asks = disk.take(other.disk, other.show(request, 0.0), 0.0)
        queue += [ask for ask in asks if ask.disk == other.disk]


class Chain:
    """Every order of the steps of a chain of rings."""

    def __init__(self, chain: str) -> None:
        self.rings = rings_of(chain)
        self.ids = sorted({disk for ring in self.rings for disk in ring.disks})

    def steps(self, state: State) -> list[State]:
        disks, accepted, acked = state
        after: list[State] = []
        for at, disk in enumerate(disks):
            number = disk.ring.number

            def changed(at: int = at) -> tuple[tuple[RingDisk, ...], RingDisk]:
                twin = twin_of(disks[at])
                return (*disks[:at], twin, *disks[at + 1 :]), twin

            if number < len(self.rings) and self.exists(number, disks):
                twins, twin = changed()
                twin.adopt(self.rings[number], 0.0)
                after.append((twins, accepted, acked))
            for ring in self.rings:
                if disk.disk in ring.disks and (disk.disk, ring.number) not in accepted:
                    twins, twin = changed()
                    reply = twin.answer(StoreCall(1, ring.number, WRITE), 0.0)
                    if isinstance(reply.answer, Yes):
                        mine = accepted | {(disk.disk, ring.number)}
                        ready = [d for d, n in mine if n == ring.number]
                        enough = len(ready) >= majority(len(ring.members))
                        after.append((twins, mine, acked or enough))
            for other in disks:
                if (0, other.disk) in disk._comparisons:
                    twins, twin = changed()
                    merge(twin, other)
                    after.append((twins, accepted, acked))
        return after

    def exists(self, number: int, disks: tuple[RingDisk, ...]) -> bool:
        """True if ring `number + 1` has been decided, or may be."""
        statuses = [disk.status for disk in disks]
        begun = any(disk.ring.number > number for disk in disks)
        return begun or not unmerged(self.rings[number - 1], statuses, PARTITIONS)

    def misses(self, state: State) -> bool:
        disks, _, acked = state
        for ring in self.rings:
            without = [
                disk
                for disk in disks
                if disk.disk in ring.disks
                and disk.ring == ring
                and 0 in disk.voting
                and not disk.registers.rows
            ]
            if acked and len(without) >= majority(len(ring.members)):
                return True
        return False

    def explore(self, most: int) -> tuple[int, bool]:
        """Visit states; return their number, and whether one of them misses the write."""
        disks = tuple(RingDisk(disk, PARTITIONS) for disk in self.ids)
        for disk in disks:
            if disk.disk in self.rings[0].disks:
                disk.adopt(self.rings[0], 0.0)
        first: State = disks, frozenset(), False
        seen, stack = {identity(first)}, [first]
        while stack and len(seen) < most:
            for state in self.steps(stack.pop()):
                shape = identity(state)
                if shape not in seen:
                    seen.add(shape)
                    if self.misses(state):
                        return len(seen), True
                    stack.append(state)
        return len(seen), False


@pytest.mark.parametrize("chain", ["1-12", "12-1", "12-13-34", "123-124"])
def test_no_ring_misses_a_write(chain: str) -> None:
    assert Chain(chain).explore(10**6)[1] is False


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("chain", ["123-124-145", "12345-1234-123", "123-1234-124"])
def test_no_ring_of_a_longer_chain_misses_a_write(chain: str) -> None:
    assert Chain(chain).explore(10**7)[1] is False


def founded(disk: int, ring: ReplicaRing) -> RingDisk:
    place = RingDisk(disk)
    place.adopt(ring, 0.0)
    return place


def test_a_disk_answers_only_calls_of_its_ring() -> None:
    first, two = rings_of("12-13")
    disk = founded(1, first)
    disk.adopt(two, 0.0)
    assert disk.answer(StoreCall(7, 1, WRITE), 0.0).answer == RingIs(two)
    assert disk.answer(StoreCall(7, 3, WRITE), 0.0).answer == RingWanted(2)
    assert disk.answer(StoreCall(7, 2, WRITE), 0.0)[:3] == (7, 1, 2)


def test_a_new_disk_is_silent_until_it_has_merged_a_majority() -> None:
    first, two = rings_of("123-124")
    former = {disk: founded(disk, first) for disk in (1, 2, 3)}
    assert former[1].answer(StoreCall(1, 1, WRITE), 0.0).answer == Yes()
    fresh = RingDisk(4)
    fresh.adopt(two, 0.0)
    read = StoreCall(1, 2, WRITE)
    assert fresh.answer(read, 0.0).answer == NotVoting()
    assert isinstance(former[2].show(ShowDigests(2, 0), 0.0), RingWanted)
    for disk in (1, 2):
        former[disk].adopt(two, 0.0)
        merge(fresh, former[disk])
    assert 0 in fresh.voting
    assert fresh.registers.row(KEY).value == "written"


def test_a_disk_that_skipped_a_ring_is_new() -> None:
    first, _two, three = rings_of("123-124-145")
    disk = founded(1, first)
    disk.adopt(three, 0.0)
    assert disk.voting == disk.sources == set()


def test_a_partition_that_keeps_its_disks_goes_on_as_it_was() -> None:
    ring = first_ring(tuple(RingMember(disk) for disk in range(1, 7)), 3)
    after = next_ring(ring, tuple(RingMember(disk) for disk in range(1, 8)))
    disk = founded(1, ring)
    before = set(disk.voting)
    disk.adopt(after, 0.0)
    assert disk.voting <= before
    assert disk.merged
    assert disk.merged < disk.voting


def test_a_restart_changes_nothing() -> None:
    first, two = rings_of("123-124")
    disk = founded(1, first)
    disk.adopt(two, 0.0)
    disk.answer(StoreCall(1, 2, WRITE), 0.0)
    again = RingDisk(1)
    for record in disk.take_records():
        again.replay(record)
    again.check()
    assert again.status == disk.status
    assert again.registers.rows == disk.registers.rows
    assert isinstance(again.place, PlaceRecord)
    again.replay(MergedRecord(2, 5))
    assert 5 in again.merged


def test_a_late_disk_gets_the_ring_from_the_disk_that_it_asks() -> None:
    first, two = rings_of("12-13")
    late, ahead = founded(1, first), founded(2, first)
    ahead.adopt(two, 0.0)
    ask = late.repair(0.0)[0]
    assert isinstance(ask.request, ShowDigests)
    late.take(2, ahead.show(ask.request, 0.0), 0.0)
    assert late.ring == two
    assert founded(2, two).take(1, RingWanted(1), 0.0) == [AskDisk(1, AdoptRing(two))]


def test_a_step_changes_one_disk_of_a_partition() -> None:
    ring = first_ring(tuple(RingMember(disk, str(disk % 3)) for disk in range(1, 7)), 3)
    members = ring.members
    less = next_ring(ring, members[1:])
    assert step_error(ring, next_ring(ring, (*members[1:], RingMember(9, "1")))) == ""
    with pytest.raises(ValueError, match="more than one disk"):
        next_ring(ring, (*members[1:], RingMember(9, "0")))
    assert step_error(less, next_ring(less, (*members[1:], RingMember(9, "0")))) == ""
    with pytest.raises(ValueError, match="2 disks are added"):
        next_ring(ring, (*members, RingMember(8), RingMember(9)))


def test_repair_makes_digests_equal() -> None:
    (ring,) = rings_of("12")
    first, other = founded(1, ring), founded(2, ring)
    for at in range(50):
        request = AcceptValue(node_key(str(at)), Ballot(1, 0, 1, at + 1), "v")
        (first if at % 2 else other).answer(StoreCall(1, 1, request), 0.0)
    for disk, peer in ((first, other), (other, first)):
        queue = disk.repair(0.0)
        while queue:
            request = queue.pop(0).request
            assert isinstance(request, ShowDigests | ShowBucket)
            queue += disk.take(peer.disk, peer.show(request, 0.0), 0.0)
        disk.check()
    assert first.registers.digests == other.registers.digests
    assert len(first.registers.rows) == 50


def test_a_bucket_that_comes_in_parts_counts_with_the_last_part() -> None:
    [ring] = rings_of("12")
    behind, ahead = RingDisk(1, PARTITIONS), RingDisk(2, PARTITIONS)
    for disk in (behind, ahead):
        disk.adopt(ring, 0.0)
    ahead.answer(StoreCall(1, 1, WRITE), 0.0)
    [ask] = behind.repair(0.0)
    assert isinstance(ask.request, ShowDigests)
    [fetch] = behind.take(2, ahead.show(ask.request, 0.0), 0.0)
    assert isinstance(fetch.request, ShowBucket)
    content = ahead.show(fetch.request, 0.0)
    assert isinstance(content, BucketContent)
    behind.take(2, content._replace(rows=(), complete=False), 0.1)
    assert (behind.behind, behind.counts["rows"]) == (1, 0)
    behind.take(2, content, 0.2)
    assert (behind.behind, behind.counts["rows"]) == (0, 1)
    assert behind.registers.digests == ahead.registers.digests


def test_nothing_is_asked_of_a_disk_that_is_away_until_it_comes_back() -> None:
    rings = rings_of("123-124")
    new = RingDisk(4, PARTITIONS)
    new.away = {3}
    assert {ask.disk for ask in new.adopt(rings[1], 0.0)} == {1, 2}
    assert new.deadline() == ASK_AGAIN_S
    new.away = set()
    assert {ask.disk for ask in new.tick(0.1)} == {3}


def test_the_next_ring_waits_for_a_majority_that_has_merged() -> None:
    first, two = rings_of("123-124")
    disks = [founded(disk, first) for disk in (1, 2, 3)]
    assert unmerged(first, [disk.status for disk in disks[:2]], PARTITIONS) == []
    for disk in disks:
        disk.adopt(two, 0.0)
    assert unmerged(two, [disk.status for disk in disks], PARTITIONS) == [0]
    merge(disks[0], disks[1])
    assert unmerged(two, [disk.status for disk in disks], PARTITIONS) == [0]
    merge(disks[1], disks[2])
    assert unmerged(two, [disk.status for disk in disks], PARTITIONS) == []
