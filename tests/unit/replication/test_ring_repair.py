"""When a member of the ring gives way to a spare: the table of the decision, and its zones."""

from __future__ import annotations

import pytest

from shardbus.replication.ring import RingMember, first_ring, founders, next_by_zone, zones_left
from shardbus.replication.ring_repair import GivesWay, RepairWaits, Sight, ring_repair

AFTER = 60.0
A, B, C = (RingMember(n, zone, f"10.0.0.{n}:7357") for n, zone in enumerate("abc", 1))
RING = first_ring((A, B, C), 3)
SPARE = RingMember(9, "c", "10.0.0.9:7357")


def sight(away: float = AFTER, *, ring: int = 1, serves: bool = True) -> Sight:
    """A sight of a disk that has missed the third one for so long."""
    return Sight(ring, serves, {3: away} if away else {})


@pytest.mark.parametrize(
    ("sights", "spares", "waits_for"),
    [
        ({1: sight(), 2: sight()}, [SPARE], None),
        ({1: sight(), 2: sight(AFTER + 9)}, [SPARE], None),
        ({1: sight(), 2: sight()}, [], "a spare"),
        ({1: sight()}, [SPARE], "a majority of the 3 disks of the ring"),
        ({1: sight(), 2: sight(serves=False)}, [SPARE], "a majority"),
        ({1: sight(), 2: sight(ring=2)}, [SPARE], "a majority"),
        ({1: sight(), 2: sight(AFTER - 1)}, [SPARE], "10.0.0.2:7357, which saw it"),
        ({1: sight(), 2: sight(0)}, [SPARE], "10.0.0.2:7357, which saw it"),
    ],
)
def test_the_lowest_disk_that_serves_decides(
    sights: dict[int, Sight], spares: list[RingMember], waits_for: str | None
) -> None:
    decision = ring_repair(RING, 1, sights, spares, AFTER)
    if waits_for is None:
        assert decision == GivesWay(1, C, SPARE)
    else:
        assert isinstance(decision, RepairWaits)
        assert decision.lost == C
        assert waits_for in decision.for_


@pytest.mark.parametrize(
    ("disk", "sights", "after"),
    [
        (1, {1: sight(), 2: sight()}, 0.0),
        (1, {1: sight(AFTER - 1), 2: sight()}, AFTER),
        (1, {1: sight(), 2: sight(), 3: sight(0)}, AFTER),
        (2, {1: sight(), 2: sight()}, AFTER),
    ],
    ids=["off", "not for long", "there again", "another disk decides"],
)
def test_nothing_is_to_be_done(disk: int, sights: dict[int, Sight], after: float) -> None:
    assert ring_repair(RING, disk, sights, [SPARE], after) is None


def test_another_disk_decides_if_the_lowest_one_does_not_serve() -> None:
    sights = {1: sight(serves=False), 2: sight()}
    assert isinstance(ring_repair(RING, 2, sights, [SPARE], AFTER), RepairWaits)
    five = first_ring((A, B, C, RingMember(4, "d", "x:4"), RingMember(5, "e", "x:5")), 5)
    sights = {1: sight(serves=False), 2: sight(), 4: sight(), 5: sight()}
    waits = ring_repair(five, 2, sights, [SPARE], AFTER)
    assert isinstance(waits, RepairWaits)
    assert waits.for_ == "10.0.0.1:7357 to serve in ring 1", "a change may be under way"


def test_of_several_the_longest_away_gives_way_first() -> None:
    five = first_ring((A, B, C, RingMember(4, "d", "x:4"), RingMember(5, "e", "x:5")), 5)
    missed = Sight(1, True, {3: AFTER + 1, 5: AFTER + 2})
    decision = ring_repair(five, 1, {1: missed, 2: missed, 4: missed}, [SPARE], AFTER)
    assert isinstance(decision, GivesWay)
    assert decision.lost.disk == 5


@pytest.mark.parametrize(
    ("zones", "disk"),
    [("aac", 9), ("abc", 9), ("bca", 8), ("aaa", 7), ("bab", 7), ("zaa", 7)],
)
def test_the_spare_of_the_emptiest_zone_comes_in(zones: str, disk: int) -> None:
    """The third of members in a, b and c is lost."""
    spares = [RingMember(n, zone, f"x:{n}") for n, zone in enumerate(zones, 7)]
    decision = ring_repair(RING, 1, {1: sight(), 2: sight()}, spares, AFTER)
    assert isinstance(decision, GivesWay)
    assert decision.spare.disk == disk


def test_founders_are_spread_over_zones() -> None:
    them = [RingMember(n, zone, f"x:{n}") for n, zone in enumerate("aaabb", 1)]
    chosen = founders(them[0], them[1:], 5)
    assert [member.disk for member in chosen] == [1, 4, 2, 5, 3]
    assert [m.disk for m in founders(them[0], them[1:], 3)] == [1, 4, 2]
    assert founders(them[0], [], 3) == (them[0],)
    assert next_by_zone(them, []) is None


@pytest.mark.parametrize(
    ("members", "zones", "left"),
    [
        ("aab", "abc", ["c"]),
        ("aab", "ab", []),
        ("abc", "abcd", []),
        ("aaa", "cba", ["b", "c"]),
    ],
)
def test_a_zone_is_left_if_two_members_share_one(members: str, zones: str, left: list[str]) -> None:
    assert zones_left(list(members), zones) == left
    assert zones_left(["", ""], ["", ""]) == [], "without zones none is missed"
