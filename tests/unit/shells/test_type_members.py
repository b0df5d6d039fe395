"""Coordinators in a view of membership, computed once for the types that agree."""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.view import MembershipView
from shardbus.shells.type_members import TypeMembers

A, B, C = (NodeId(name, 1, 1) for name in "abc")


def member(node: NodeId, status: Status = Status.UP, **values: object) -> Member:
    return Member(node, 2, status=status, up_number=1, **values)  # type: ignore[arg-type]


def test_types_of_one_role_on_the_same_members_share_what_a_view_means() -> None:
    members = TypeMembers(MembershipView(A, (member(A), member(B))))
    both, first = list(members.view.members), [members.view.members[0]]
    assert members.of("", both) is members.of("", list(both))
    assert members.of("", first) is not members.of("", both)
    assert members.of("web", both) is not members.of("", both)


def test_B65_a_member_without_the_type_is_no_host_of_it() -> None:
    members = TypeMembers(MembershipView(A, (member(A), member(B))))
    assert members.of("", [members.view.members[0]]).live == (A,)


def test_members_on_their_way_out_take_no_shards_and_register() -> None:
    view = MembershipView(A, (member(A), member(B, Status.LEAVING), member(C, Status.JOINING)))
    members_of = TypeMembers(view).of("", list(view.members))
    assert (members_of.live, members_of.unfit, members_of.unsettled) == ((A, B), (B,), True)


def test_a_drained_member_gives_its_shards_away() -> None:
    view = MembershipView(A, (member(A), member(B, service=Service.DRAINING)))
    members_of = TypeMembers(view).of("", list(view.members))
    assert (members_of.unfit, members_of.draining) == ((B,), (B,))


def test_unreachable_members_take_no_shards_while_another_can() -> None:
    view = MembershipView(A, (member(A), member(B)), unreachable=(B,), doubtful=(B,))
    members = TypeMembers(view)
    assert members.of("", list(view.members)).unfit == (B,)
    assert members.of("", [view.members[1]]).unfit == ()


def test_versions_are_those_of_members_with_the_role() -> None:
    view = MembershipView(A, (member(A, roles=("db",), version="2"), member(B, version="1")))
    assert TypeMembers(view).of("db", list(view.members)).versions == {A: "2"}
