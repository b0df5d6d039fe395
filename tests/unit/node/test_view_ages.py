"""For how long members have their status, and agree."""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.node.view_ages import ViewAges

A, B = NodeId("a", 7355, 1), NodeId("b", 7355, 2)


def view(status: Status, *unreachable: NodeId, converged: bool = True) -> MembershipView:
    members = (Member(A, 7356, status=Status.UP), Member(B, 7356, status=status))
    return MembershipView(A, members, unreachable=unreachable, leader=A, converged=converged)


def test_an_age_begins_with_the_change_and_lasts_until_the_next() -> None:
    ages = ViewAges(1.0)
    assert (ages.status_since(B), ages.converged_since) == (1.0, 1.0), "no member yet"
    ages.on_view(view(Status.JOINING, converged=False), 2.0)
    ages.on_view(view(Status.JOINING), 3.0)
    ages.on_view(view(Status.UP, B), 4.0)
    ages.on_view(view(Status.UP, B), 5.0)
    assert (ages.status_since(A), ages.status_since(B)) == (2.0, 4.0)
    assert ages.converged_since == 3.0
    assert ages.unreachable == {B: 4.0}
    ages.on_view(view(Status.UP, converged=False), 6.0)
    assert (ages.unreachable, ages.converged_since) == ({}, 6.0)
