"""The members as a node sees them: who is alive, departed or lost, after each pair of views."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.node.members import ClusterMembers

ME, PEER, OTHER = NodeId("a", 1, 1), NodeId("b", 1, 2), NodeId("c", 1, 3)


class Loop:
    """The clock and the timers of a loop."""

    def __init__(self) -> None:
        self.now = 10.0
        self.timers: list[tuple[Any, ...]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Any, *args: object) -> None:
        self.timers.append((call, *args))


def view(*members: tuple[NodeId, Status], unreachable: tuple[NodeId, ...] = ()) -> MembershipView:
    rows = tuple(
        Member(node, 2, status=status, up_number=node.uid, roles=("web",))
        for node, status in members
    )
    return MembershipView(ME, rows, unreachable=unreachable)


@pytest.fixture
def members() -> ClusterMembers:
    return ClusterMembers(ME, Loop())  # type: ignore[arg-type]


UP = (ME, Status.UP)


@pytest.mark.parametrize(
    ("status", "unreachable", "after", "died", "down"),
    [
        (Status.UP, (), None, False, False),
        (Status.EXITING, (), None, False, False),
        (Status.EXITING, (PEER,), None, True, False),  # its process ends before its removal
        (Status.UP, (PEER,), None, True, False),
        (Status.UP, (), Status.DOWN, True, True),
        (Status.UP, (PEER,), Status.DOWN, True, True),
        (Status.EXITING, (), Status.REMOVED, False, True),
    ],
)
def test_a_member_that_is_gone_died_or_left(
    members: ClusterMembers,
    status: Status,
    unreachable: tuple[NodeId, ...],
    after: Status | None,
    died: bool,
    down: bool,
) -> None:
    assert members.update(view(UP, (PEER, status), unreachable=unreachable)) == {}
    assert PEER in members
    gone = members.update(view(UP, *[(PEER, after)] if after is not None else []))
    assert {node: member.status for node, member in gone.items()} == {PEER: status}
    assert (members.died(PEER), members.is_down(PEER)) == (died, down)
    assert PEER not in members


def test_a_departed_node_may_connect_and_coordinate_until_its_time_is_over(
    members: ClusterMembers,
) -> None:
    members.update(view(UP, (PEER, Status.UP)))
    assert members.may_connect == (ME, PEER)
    members.update(view(UP))
    assert members.may_connect == (ME, PEER)
    assert members.may_coordinate(PEER, "page", "db"), "it did a moment ago"
    [(forget, *args)] = members._loop.timers  # type: ignore[attr-defined]
    forget(*args)
    assert members.may_connect == (ME,)
    assert not members.may_coordinate(PEER, "page", "")


@pytest.mark.parametrize(
    ("status", "is_up", "joined", "hosting"),
    [
        (None, False, False, ()),
        (Status.JOINING, False, True, ()),
        (Status.UP, True, True, (ME,)),
        (Status.LEAVING, True, True, (ME,)),
        (Status.EXITING, False, True, ()),
        (Status.DOWN, False, True, ()),
    ],
)
def test_the_questions_about_this_node_follow_its_status(
    members: ClusterMembers,
    status: Status | None,
    is_up: bool,
    joined: bool,
    hosting: tuple[NodeId, ...],
) -> None:
    members.update(view((ME, status)) if status is not None else view())
    assert (members.is_up, members.joined, members.hosting()) == (is_up, joined, hosting)
    assert members.alone
    members._loop.now += 5.0  # type: ignore[attr-defined]
    assert members.joined_for() == (5.0 if status is not None else 0.0)


def test_before_the_first_view_there_is_nobody(members: ClusterMembers) -> None:
    assert (members.ids(), members.hosting(), members.with_type("page")) == ([], (), ())
    facts = (members.joined, members.is_up, members.alone, members.somebody_leaves)
    assert facts == (False,) * 4
    assert members.may_coordinate(ME, "page", "db")
    assert not members.may_coordinate(PEER, "page", "")


def test_the_others_that_are_up_are_reachable_and_the_oldest_is_first(
    members: ClusterMembers,
) -> None:
    late, away = NodeId("d", 1, 4), NodeId("e", 1, 5)
    members.update(
        view((late, Status.UP), (PEER, Status.UP), UP, (OTHER, Status.LEAVING), (away, Status.UP),
             unreachable=(away,))
    )  # fmt: skip
    assert [member.node for member in members.others_up()] == [PEER, late]
    assert members.somebody_leaves
    assert not members.alone
    assert members.is_unreachable(away)
    assert not members.may_coordinate(PEER, "page", "db"), "it lacks the role"
    assert members.may_coordinate(PEER, "page", "web")
