"""Who leads, and the leader's pass over a version. T.U1."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.membership.gossip import Gossip
from shardbus.membership.leader import (
    Leadership,
    act_on_convergence,
    enough_members,
    leader_of,
    promote_weakly,
)
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, D, member, state

J, W, U, PREPARING, READY, L, X, DOWN, _ = Status


def unreachable(copy: Gossip, *hosts: object) -> Gossip:
    flags = dict.fromkeys(hosts, Flag.UNREACHABLE)
    return replace(copy, reachability=Reachability({D: ObserverRow(1, flags)}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copy", "leader"),
    [
        (Gossip(), None),
        (state(a=U, b=U), A),
        (state(a=L, b=U), A),
        (state(a=J, b=U), B),
        (state(a=W, b=U), B),
        (state(a=X, b=L), B),
        (state(a=DOWN, b=J), B),
        (state(a=J, b=J), A),
        (state(a=J, b=W), B),
        (state(a=X, b=J), B),
        (state(a=DOWN), None),
        (unreachable(state(a=U, b=U), A), B),
    ],
)
def test_TU1_leader(copy: Gossip, leader: object) -> None:
    assert leader_of(copy, C) == leader


@pytest.mark.parametrize("cut", [(), (A,), (B,), (A, B)])
def test_TU1_leader_of_any_two(cut: tuple[object, ...]) -> None:
    """The dumb way: try each kind of member in turn, and take the first by address."""
    kinds = ((U, L), (W,), (J,), (X,))
    for a, b in product([J, W, U, L, X, DOWN], repeat=2):
        copy = unreachable(state(a=a, b=b), *cut)
        able = [n for n in copy.members if n not in cut]
        ranked = [n for kind in kinds for n in able if copy.members[n].status in kind]
        assert leader_of(copy, C) == next(iter(ranked), None), (a, b)


def test_a_node_never_counts_itself_as_unreachable() -> None:
    copy = unreachable(state(a=U, b=U), A)
    assert leader_of(copy, A) == A
    assert leader_of(copy, B) == B


@pytest.mark.parametrize(
    ("before", "enough", "after"),
    [
        ({"a": U, "b": J}, True, {"a": U, "b": U}),
        ({"a": U, "b": W}, True, {"a": U, "b": U}),
        ({"a": J, "b": J}, False, {"a": J, "b": J}),
        ({"a": U, "b": L}, True, {"a": U, "b": X}),
        ({"a": U, "b": X}, True, {"a": U}),
        ({"a": X, "b": X}, True, {"a": X}),
        ({"a": U, "b": DOWN}, True, {"a": U, "b": DOWN}),
        ({"a": U, "b": U}, True, {"a": U, "b": U}),
    ],
)
def test_the_pass_on_convergence(
    before: dict[str, Status], enough: bool, after: dict[str, Status]
) -> None:
    copy = state(**before)
    result = act_on_convergence(copy, A, enough, 9.0)
    assert {n.host: m.status for n, m in result.members.items()} == after
    assert (result is copy) is (before == after)


def test_a_downed_member_is_removed_once_it_is_unreachable() -> None:
    copy = unreachable(state(a=U, b=DOWN), B)
    result = act_on_convergence(copy, A, True, 9.0)
    assert list(result.members) == [A]
    assert result.tombstones == {B: 9.0}


def test_up_numbers_continue_in_address_order() -> None:
    copy = Gossip({A: member(A, U, 7), B: member(B, J, 0), C: member(C, W, 0)})
    result = act_on_convergence(copy, A, True, 0.0)
    assert [m.up_number for m in result.members.values()] == [7, 8, 9]


@pytest.mark.parametrize(
    ("statuses", "least", "roles", "enough"),
    [
        ({"a": J}, 1, {}, True),
        ({"a": J, "b": J}, 3, {}, False),
        ({"a": J, "b": J, "c": J}, 3, {}, True),
        ({"a": J, "b": DOWN, "c": J}, 3, {}, False),
        ({"a": J}, 1, {"db": 1}, False),
    ],
)
def test_enough_members(
    statuses: dict[str, Status], least: int, roles: dict[str, int], enough: bool
) -> None:
    copy = state(**statuses)
    members = {n: replace(m, up_number=0) for n, m in copy.members.items()}
    assert enough_members(replace(copy, members=members), least, roles) is enough


def test_weakly_up_needs_an_up_member_and_reachability() -> None:
    copy = unreachable(state(a=U, b=J, c=J), C)
    result = promote_weakly(copy, A)
    assert [m.status for m in result.members.values()] == [U, W, J]
    assert promote_weakly(result, A) is result
    young = state(a=J, b=J)
    assert promote_weakly(young, A) is young


@pytest.mark.parametrize(("status", "counts"), [(J, True), (L, True), (X, False), (DOWN, False)])
def test_TC25_one_that_leaves_before_it_came_up_has_joined(status: Status, counts: bool) -> None:
    copy = replace(state(), members={A: member(A, J, 0), B: member(B, status, 0)})
    assert enough_members(copy, 2, {}) is counts


@pytest.mark.parametrize("setting", [7.0, 3.0])
def test_S1_49_members_become_weakly_up_after_the_time_of_the_setting(setting: float) -> None:
    duties = Leadership(A, ClusterSettings(allow_weakly_up_members=setting))
    duties.start(10.0)
    copy = unreachable(state(a=U, b=J, c=J), C)
    assert duties.act(copy, 10.0) is copy
    assert duties.act(copy, 10.0 + setting - 0.01) is copy
    assert duties.act(copy, 10.0 + setting).members[B].status is W


@pytest.mark.parametrize("setting", [1.0, 4.0])
def test_S1_30_the_leader_checks_at_the_interval_of_the_setting(setting: float) -> None:
    """It acts when its state changes; the interval is the safety net."""
    duties = Leadership(A, ClusterSettings(leader_actions_interval=setting))
    duties.start(10.0)
    assert duties.deadline() == 10.0 + setting
    duties.act(state(a=U), 10.0 + setting)
    assert duties.deadline() == 10.0 + 2 * setting
