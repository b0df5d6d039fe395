"""Founding: one store at most, and nothing is served before every disk has the ring."""

from __future__ import annotations

from random import Random

import pytest

from shardbus.ids import Address
from shardbus.replication.founding import Founding, FoundingState
from shardbus.replication.ring import NO_RING, ReplicaRing, RingMember, next_ring

PEERS = tuple(Address("10.0.0.1", 7000 + n) for n in range(5))
BLANK, NAMED, FOUNDED = FoundingState


def replicas(n: int = 3, members: int = 0, zones: str = "") -> list[Founding]:
    return [
        Founding(PEERS[i], PEERS[:n], i + 1, zone=zones[i : i + 1], members=members)
        for i in range(n)
    ]


def tell(sender: Founding, receiver: Founding) -> bool:
    return receiver.on_report(sender.me, sender.report)


def all_tell(them: list[Founding]) -> None:
    for sender in them:
        for receiver in them:
            if sender is not receiver:
                tell(sender, receiver)


def states(them: list[Founding]) -> list[FoundingState]:
    return [disk.state for disk in them]


def test_a_store_of_one_replica_needs_no_other():
    [alone] = replicas(1)
    assert alone.start()
    assert alone.state is FOUNDED


def test_three_blank_disks_become_a_store():
    them = replicas()
    assert not any(disk.start() for disk in them)
    for _ in range(3):
        all_tell(them)
    assert states(them) == [FOUNDED] * 3
    assert len({disk.ring for disk in them}) == 1


def test_two_of_three_found_nothing():
    them = replicas()
    for _ in range(5):
        all_tell(them[:2])
    assert states(them) == [BLANK] * 3
    assert them[0].waits_for == {PEERS[2]: "it is not in sight"}


def test_nothing_is_served_before_every_disk_has_the_ring():
    a, b, c = replicas()
    tell(b, a)
    assert tell(c, a)
    assert states([a, b, c]) == [NAMED, BLANK, BLANK]
    tell(a, b)
    tell(b, a)
    assert states([a, b, c]) == [NAMED, NAMED, BLANK]
    assert a.waits_for == {PEERS[2]: "it has not stored the list of disks"}
    tell(a, c)
    tell(c, a)
    assert states([a, b, c]) == [FOUNDED, NAMED, NAMED]
    tell(a, b)
    assert states([a, b, c]) == [FOUNDED, FOUNDED, NAMED]


def test_only_the_first_makes_a_ring_and_only_if_it_may():
    a, b, c = replicas()
    for sender in (a, c):
        tell(sender, b)
    assert b.state is BLANK
    a.may_found = False
    for sender in (b, c):
        tell(sender, a)
    assert a.state is BLANK


def test_a_replica_that_went_away_does_not_count():
    a, b, c = replicas()
    tell(b, a)
    a.on_silent(PEERS[1])
    tell(c, a)
    assert a.state is BLANK


def test_a_new_disk_is_no_part_of_a_founded_store():
    a, b, c = replicas()
    for _ in range(3):
        all_tell([a, b, c])
    new = Founding(PEERS[2], PEERS[:3], 77)
    for _ in range(3):
        all_tell([a, b, new])
    assert states([a, b, new]) == [FOUNDED, FOUNDED, BLANK]
    assert new.waits_for == dict.fromkeys(
        PEERS[:2], "it is of a store that does not have this disk"
    )


def test_a_first_replica_with_a_new_disk_founds_no_second_store():
    them = replicas()
    for _ in range(3):
        all_tell(them)
    new = Founding(PEERS[0], PEERS[:3], 77)
    for _ in range(3):
        all_tell([new, *them[1:]])
    assert new.state is BLANK


def test_replicas_that_were_started_with_other_addresses_found_nothing():
    a, b, c = replicas()
    b.peers = PEERS[:2]
    for _ in range(3):
        all_tell([a, b, c])
    assert a.state is BLANK
    assert "other replicas" in a.waits_for[PEERS[1]]


def test_a_copied_disk_founds_nothing():
    a, b, c = replicas()
    c.disk = a.disk
    for _ in range(3):
        all_tell([a, b, c])
    assert states([a, b, c]) == [BLANK] * 3
    assert a.waits_for == {PEERS[2]: "its disk is a copy of this one"}


def test_a_disk_that_is_copied_later_is_noticed_by_both():
    a, b, c = replicas()
    for _ in range(3):
        all_tell([a, b, c])
    copy = Founding(PEERS[2], PEERS, a.disk, a.ring, founded=True)
    all_tell([a, b, copy])
    assert [disk.is_copied for disk in (a, b, copy)] == [True, False, True]
    assert a.waits_for == {PEERS[2]: "its disk is a copy of this one"}


def test_a_blank_disk_beside_a_store_takes_no_later_ring_by_a_report() -> None:
    a, b, c = replicas()
    for _ in range(3):
        all_tell([a, b, c])
    new = Founding(PEERS[2], PEERS[:3], 77)
    assert not new.stands_beside_a_store
    later = next_ring(a.ring, (*a.ring.members[:2], RingMember(77)))
    for disk in (a, b):
        disk.on_ring(later)
        tell(disk, new)
    assert new.state is BLANK
    assert new.stands_beside_a_store
    new.on_ring(later)
    assert (new.state, new.stands_beside_a_store) == (FOUNDED, False)


def test_a_named_disk_serves_once_another_has_a_later_ring() -> None:
    a, b, c = replicas()
    tell(b, a)
    tell(c, a)
    tell(a, c)
    a.on_ring(next_ring(a.ring, a.ring.members[:2]))
    tell(a, c)
    assert (c.state, c.ring.number) == (FOUNDED, 1)


@pytest.mark.parametrize("block", range(6))
def test_one_ring_in_any_order_with_crashes_losses_and_wiped_disks(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        check_that_there_is_one_ring(seed, 3)
        check_that_there_is_one_ring(seed, 4)


def check_that_there_is_one_ring(seed: int, count: int) -> None:
    """A crash takes back unstored writes; a wiped disk has a new id and nothing else. The fourth
    replica is a spare."""
    dice, zones = Random(seed), "abba"
    them = replicas(count, 3, zones)
    stored = [(NO_RING, False)] * count
    served: set[ReplicaRing] = set()
    wipes = 1

    def started(n: int, disk: int, ring: ReplicaRing = NO_RING, founded: bool = False) -> None:
        zone = zones[n]
        them[n] = Founding(PEERS[n], PEERS[:count], disk, ring, founded, zone=zone, members=3)

    for _ in range(120):
        n = dice.randrange(count)
        disk = them[n]
        match dice.randrange(12):
            case 0:
                ring, founded = stored[n]
                started(n, disk.disk, ring, founded)
            case 1 if wipes:
                wipes -= 1
                stored[n] = (NO_RING, False)
                started(n, dice.getrandbits(63))
            case 2:
                disk.on_silent(dice.choice(PEERS[:count]))
            case _:
                other = dice.randrange(count)
                before = disk.ring, disk.founded
                if other != n and tell(them[other], disk):
                    if dice.random() < 0.2:  # the crash comes before the sync
                        started(n, disk.disk, *before)
                    else:
                        stored[n] = (disk.ring, disk.founded)
        served |= {each.ring for each in them if each.state is FOUNDED}
        for ring in served:
            serving = [each for each in them if each.disk in ring.disks]
            assert all(each.ring == ring for each in serving), "all its disks have it"
    assert len(served) <= 1


@pytest.mark.parametrize(
    ("zones", "disks"),
    [
        ("", {1, 2, 3}),
        ("aabbc", {1, 3, 5}),
        ("aaaab", {1, 2, 5}),
        ("bcbca", {1, 2, 5}),
        ("aaaaa", {1, 2, 3}),
    ],
)
def test_the_first_ring_has_as_many_zones_as_there_are(zones: str, disks: set[int]) -> None:
    them = replicas(5, 3, zones)
    for _ in range(3):
        all_tell(them)
    assert them[0].ring.disks == disks
    assert {m.disk: m.zone for m in them[0].ring.members} == {d: zones[d - 1 : d] for d in disks}
    assert [each.state is FOUNDED for each in them] == [n + 1 in disks for n in range(5)]
    assert all(each.stands_beside_a_store for each in them if each.disk not in disks)


def test_a_spare_is_in_sight_at_the_founding_and_not_waited_for_afterwards() -> None:
    a, b, c, spare = them = replicas(4, 3)
    for _ in range(3):
        all_tell([a, b, c])
    assert states(them) == [BLANK] * 4
    assert a.waits_for == {PEERS[3]: "it is not in sight"}
    tell(spare, a)
    assert a.state is NAMED
    for disk in (a, b, c):
        disk.on_silent(PEERS[3])
    tell(a, b)
    tell(b, a)
    assert a.waits_for == {PEERS[2]: "it has not stored the list of disks"}
    for _ in range(3):
        all_tell([a, b, c])
    assert states(them) == [FOUNDED] * 3 + [BLANK]
