"""Downing by timeout alone: who, when, by whom. T.U18."""

from __future__ import annotations

from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.auto_down import AutoDown
from shardbus.membership.downing.resolver import Resolver
from shardbus.membership.downing.split_lease import DowningPlan
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.downing.test_resolver import cut
from tests.unit.membership.test_gossip import A, B, C, state

UP = Status.UP
THREE = state(a=UP, b=UP, c=UP)


def without(*nodes: NodeId) -> Gossip:
    return cut(THREE, Flag.UNREACHABLE, *nodes)


def downed(auto: AutoDown, copy: Gossip, now: float, *, leading: bool = True) -> tuple[NodeId, ...]:
    decision = auto.consider(copy, leading, now)
    return decision.down if decision else ()


def test_TU18_the_leader_downs_after_the_time() -> None:
    auto = AutoDown(A, 10.0)
    assert auto.deadline() is None
    assert downed(auto, without(C), 100.0) == ()
    assert auto.deadline() == 110.0
    assert downed(auto, without(C), 109.9) == ()
    assert downed(auto, without(C), 110.0) == (C,)


def test_TU18_each_member_has_its_own_time() -> None:
    auto = AutoDown(A, 10.0)
    downed(auto, without(C), 100.0)
    assert downed(auto, without(B, C), 105.0) == ()
    assert downed(auto, without(B, C), 110.0) == (C,)
    assert auto.deadline() == 115.0
    assert downed(auto, without(B, C), 115.0) == (B, C)


def test_TU18_only_the_leader_and_who_becomes_it() -> None:
    auto = AutoDown(A, 10.0)
    downed(auto, without(C), 100.0, leading=False)
    assert downed(auto, without(C), 111.0, leading=False) == ()
    assert auto.deadline() is None
    assert downed(auto, without(C), 112.0, leading=True) == (C,)


def test_TU18_who_loses_the_lead_downs_nobody() -> None:
    auto = AutoDown(A, 10.0)
    downed(auto, without(C), 100.0)
    assert downed(auto, without(C), 110.0, leading=False) == ()


def test_TU18_who_is_back_or_gone_in_time_is_forgotten() -> None:
    auto = AutoDown(A, 10.0)
    downed(auto, without(C), 100.0)
    downed(auto, THREE, 105.0)
    assert auto.deadline() is None
    downed(auto, without(C), 106.0)
    assert downed(auto, without(C), 111.0) == ()
    removed = state(a=UP, b=UP)
    assert downed(auto, removed, 112.0) == ()
    assert auto.since == {}


def test_TU18_members_on_their_way_out_are_not_downed() -> None:
    for status in (Status.EXITING, Status.DOWN):
        auto = AutoDown(A, 10.0)
        copy = cut(state(a=UP, b=UP, c=status), Flag.UNREACHABLE, C)
        assert downed(auto, copy, 100.0) == downed(auto, copy, 200.0) == ()


def test_TU18_it_takes_the_place_of_the_strategy_and_both_sides_stay() -> None:
    settings = DowningSettings(unsafe_auto_down_after=10.0)
    here, there = Resolver(A, settings), Resolver(C, settings)
    few = without(C)
    for resolver, copy, down in ((here, few, (C,)), (there, cut_from_c(), (A, B))):
        assert resolver.consider(copy, True, 100.0) == DowningPlan()
        assert resolver.deadline() == 110.0
        plan = resolver.consider(copy, True, 110.0)
        assert plan.decision is not None
        assert (plan.decision.down, plan.decision.rule) == (down, "unsafe-auto-down")


def cut_from_c() -> Gossip:
    rows = Reachability({C: ObserverRow(1, {A: Flag.UNREACHABLE, B: Flag.UNREACHABLE})})
    return replace(THREE, reachability=rows, seen=frozenset({C}))
