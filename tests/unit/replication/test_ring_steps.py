"""The steps of operators: which disk a blank one replaces, and rings in which each holds all."""

from __future__ import annotations

import pytest

from shardbus.ids import Address
from shardbus.replication.ring import (
    MEMBERS_MAX,
    RINGS_MAX,
    RINGS_OF_ERA,
    ReplicaRing,
    RingMember,
    first_ring,
    grown_ring,
    is_related,
    lost_member,
    next_ring,
    places_of,
    renewed_ring,
    ring_of,
    ring_value,
)
from shardbus.replication.ring_repair import GivesWay
from shardbus.store.ring_change import (
    RingOperator,
    RingRefused,
    RingView,
    adding,
    giving_way,
    removing,
    replacing,
)
from tests.unit.transport.memory_network import MemoryNetwork, MemoryWorld

A, B, C, D = (Address("10.0.0.1", 7000 + n) for n in range(4))
MEMBERS = tuple(RingMember(n, "", str(at)) for n, at in enumerate((A, B, C), 1))
RING = first_ring(MEMBERS, 3)
BARE = first_ring(tuple(RingMember(n) for n in (1, 2, 3)), 3)


def test_a_blank_disk_replaces_the_lost_one_of_its_address() -> None:
    seen = {1: str(A), 2: str(B), 9: str(C)}
    assert lost_member(RING, str(C), seen) == MEMBERS[2]
    assert lost_member(RING, str(D), seen) is None
    assert lost_member(RING, str(C), {**seen, 3: str(D)}) is None, "it has moved"
    assert lost_member(BARE, str(C), seen) == BARE.members[2], "the only one that is away"
    assert lost_member(BARE, str(C), {1: str(A), 9: str(C)}) is None, "two are away"


def disks(step: object) -> set[int]:
    assert isinstance(step, tuple)
    return {member.disk for member in step}


def test_a_step_adds_replaces_or_removes_one_disk() -> None:
    view = RingView(RING, {1: A, 2: B, 9: C, 4: D})
    assert disks(adding(D)(view)) == {1, 2, 3, 4}
    assert disks(adding(C)(view)) == {1, 2, 9}
    assert adding(A)(view) == RING.members, "it is there"
    assert disks(replacing(C, 9)(view)) == {1, 2, 9}
    assert "store add" in str(replacing(D, 4)(view))
    assert "out of reach" in str(adding(Address("10.0.0.9", 1))(view))
    assert disks(removing(B)(view)) == {1, 3}
    assert disks(removing(C)(view)) == {1, 2}, "by its address in the ring"
    removed = RING._replace(members=MEMBERS[:2], before=MEMBERS)
    assert removing(C)(RingView(removed, {1: A, 2: B})) == MEMBERS[:2], "it was interrupted"
    with pytest.raises(RingRefused, match=r"no disk at 10\.0\.0\.1:7003") as refused:
        removing(D)(view)
    assert refused.value.hint == f"it has {A}, {B}, {C}"
    step = removing(C)
    step(view)
    later = removed._replace(members=(*MEMBERS[:2], RingMember(4, "", str(D))), before=MEMBERS[:2])
    assert step(RingView(later, {1: A, 2: B, 4: D})) == later.members, "another step came after"
    with pytest.raises(RingRefused, match="the last disk"):
        removing(A)(RingView(first_ring(MEMBERS[:1], 1), {1: A}))


def test_a_member_gives_way_in_the_ring_of_the_decision_alone() -> None:
    spare = RingMember(4, "z", str(D))
    step = giving_way(GivesWay(1, MEMBERS[2], spare))
    view = RingView(RING, {1: A, 2: B, 4: D}, {1: "x", 2: "", 4: "y"})
    after = step(view)
    assert disks(after) == {1, 2, 4}
    assert {m.disk: m.zone for m in after if isinstance(m, RingMember)} == {1: "x", 2: "", 4: "y"}
    assert step(view._replace(addresses={1: A, 2: B})) == f"{D}: it is out of reach"
    with pytest.raises(RingRefused, match=f"{C} answers again"):
        step(view._replace(addresses={1: A, 2: B, 3: C, 4: D}))
    later = next_ring(RING, (*MEMBERS, RingMember(5)))
    assert step(view._replace(ring=later)) == later.members


def test_a_grown_ring_has_all_on_each_disk() -> None:
    ring = RING
    for disk in range(4, MEMBERS_MAX + 1):
        ring = grown_ring(ring, (*ring.members, RingMember(disk)))
        assert all(set(each) == set(range(1, disk + 1)) for each in places_of(ring))
        assert all(len(each) == disk - 1 for each in places_of(ring.former))
    with pytest.raises(ValueError, match="more than"):
        grown_ring(ring, (*ring.members, RingMember(99)))
    with pytest.raises(ValueError, match="do not hold all"):
        grown_ring(first_ring(MEMBERS, 2), MEMBERS)


def test_rings_of_former_versions_are_of_one_store_if_they_share_a_disk() -> None:
    former = RING._replace(store=0)
    after = next_ring(former, (*MEMBERS[:2], RingMember(9)))
    assert is_related(former, after)
    assert is_related(after, first_ring(MEMBERS[2:], 1)), "by the members before"
    assert not is_related(former, first_ring((RingMember(7), RingMember(8)), 2))


def test_rings_are_of_one_store_by_its_number() -> None:
    ring = RING
    for disk in range(4, 12):
        ring = next_ring(ring, (*ring.members[1:], RingMember(disk)))
    assert ring.disks.isdisjoint(RING.disks | RING.former.disks)
    assert is_related(RING, ring)
    assert not is_related(RING, RING._replace(store=RING.store + 1))
    assert first_ring(MEMBERS[:2], 2).store != RING.store > 0


def test_a_ring_that_is_founded_anew_is_above_all_that_its_store_may_have_decided() -> None:
    later, alone = next_ring(RING, MEMBERS[:2]), RingMember(9, "", str(D))
    ring = renewed_ring([RING, later], alone, RING.store)
    assert (ring.number, ring.era, ring.members) == (RINGS_OF_ERA, 1, (alone,))
    assert ring.before == later.members, "who is left comes to know the new ring"
    assert is_related(RING, ring)
    again = renewed_ring([grown_ring(ring, (alone, RingMember(10)))], alone, RING.store)
    assert again.number == 2 * RINGS_OF_ERA
    restored = renewed_ring([again], alone, RING.store + 1)
    assert (restored.era, restored.before) == (3, ())
    assert not is_related(again, restored)
    with pytest.raises(ValueError, match="cannot be followed"):
        renewed_ring([ring._replace(number=RINGS_MAX)], alone, RING.store)


def test_a_ring_of_a_register_comes_back_with_and_without_addresses() -> None:
    assert ring_of(ring_value(RING)) == RING
    assert ring_of((1, 3, [(5, "z")], [])) == ReplicaRing(1, 3, (RingMember(5, "z"),))


async def test_an_operator_reports_only_a_reason_that_lasts() -> None:
    """At the first look its links may not be up yet."""
    reports: list[str] = []
    operator = RingOperator("lab", (), MemoryNetwork(MemoryWorld()), reports.append)
    for reason in ("out of reach", "to merge", "to merge", "to merge", "a majority", "to merge"):
        operator._waits(reason)
    assert reports == ["to merge"]
    operator._waits("a majority")
    operator._waits("a majority")
    assert reports == ["to merge", "a majority"]
