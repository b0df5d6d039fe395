"""When a split is decided, and by whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_membership_gossip import A, B, C, D, state

from shardbus.ids import NodeId
from shardbus.membership.confirm import ProbeOutcome
from shardbus.membership.downing import Outcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, Reachability, Row
from shardbus.membership.resolver import LEASE_WITHIN, Plan, Resolver
from shardbus.settings import DowningSettings

UP = Status.UP
SETTINGS = DowningSettings()
STABLE = SETTINGS.stable_after
FOUR = state(a=UP, b=UP, c=UP, d=UP)
THREE = state(a=UP, b=UP, c=UP)


def cut(copy: Gossip, flag: Flag, *nodes: NodeId) -> Gossip:
    rows = Reachability({A: Row(1, dict.fromkeys(nodes, flag))})
    side = frozenset(n for n in copy.members if n not in nodes)
    return replace(copy, reachability=rows, seen=side)


UNREACHABLE = cut(THREE, Flag.UNREACHABLE, C)
GONE = cut(THREE, Flag.TERMINATED, C)


def outcome(plan: Plan) -> Outcome | None:
    return plan.decision.outcome if plan.decision else None


def test_nothing_to_decide() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(THREE, True, 100.0) == Plan()
    assert resolver.deadline() is None


def test_unreachable_members_wait_for_stability() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(UNREACHABLE, True, 10.0) == Plan()
    assert resolver.deadline() == 10.0 + STABLE
    assert resolver.consider(UNREACHABLE, True, 9.9 + STABLE) == Plan()
    assert outcome(resolver.consider(UNREACHABLE, True, 10.0 + STABLE)) is Outcome.DOWN_OTHERS


def test_every_change_starts_the_wait_anew() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    joined = replace(UNREACHABLE, members={**UNREACHABLE.members, D: FOUR.members[D]})
    assert resolver.consider(joined, True, 10.0 + STABLE) == Plan()
    assert resolver.deadline() == 10.0 + 2 * STABLE


def test_news_of_who_has_seen_it_is_no_change() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(replace(UNREACHABLE, seen=frozenset({A})), True, 10.0)
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE).decision is not None


def test_what_heals_is_forgotten() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    assert resolver.consider(THREE, True, 12.0) == Plan()
    assert resolver.deadline() is None
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE) == Plan()


def test_only_the_leader_downs_others_but_everybody_its_own_losing_side() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, False, 10.0)
    assert resolver.consider(UNREACHABLE, False, 30.0) == Plan()
    assert resolver.deadline() is None
    losing = cut(THREE, Flag.UNREACHABLE, B, C)
    resolver.consider(losing, False, 40.0)
    plan = resolver.consider(losing, False, 40.0 + STABLE)
    assert outcome(plan) is Outcome.DOWN_OURSELVES


def test_who_becomes_leader_meanwhile_decides() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, False, 10.0)
    assert outcome(resolver.consider(UNREACHABLE, True, 10.0 + STABLE)) is Outcome.DOWN_OTHERS


def test_the_gone_wait_only_for_the_sweep() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(GONE, True, 10.0) == Plan(probe=(B,))
    assert resolver.consider(GONE, True, 10.1) == Plan()
    resolver.on_probe(B, ProbeOutcome.OPEN)
    plan = resolver.consider(GONE, True, 10.2)
    assert plan.decision is not None
    assert plan.decision.down == (C,)


def test_a_sweep_that_leaves_doubt_leaves_it_to_stability() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.UNKNOWN)
    assert resolver.consider(GONE, True, 11.0) == Plan()
    assert resolver.deadline() == 10.0 + STABLE
    assert resolver.consider(GONE, True, 10.0 + STABLE).decision is not None


def test_a_sweep_that_shows_a_wall_decides_about_the_whole_split() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.REFUSED)
    both = cut(THREE, Flag.TERMINATED, B, C)
    assert outcome(resolver.consider(both, True, 10.1)) is Outcome.DOWN_OURSELVES


def test_only_the_gone_are_downed_early() -> None:
    five = replace(state(a=UP, b=UP, c=UP, d=UP, e=UP), seen=frozenset())
    nodes = list(five.members)
    flags = {nodes[3]: Flag.UNREACHABLE, nodes[4]: Flag.TERMINATED}
    copy = replace(five, reachability=Reachability({A: Row(1, flags)}), seen=frozenset(nodes[:3]))
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(copy, True, 10.0).probe == tuple(nodes[1:3])
    for node in nodes[1:3]:
        resolver.on_probe(node, ProbeOutcome.OPEN)
    plan = resolver.consider(copy, True, 10.1)
    assert plan.decision is not None
    assert plan.decision.down == (nodes[4],)


def test_a_majority_without_the_doubtful_does_not_wait_for_them() -> None:
    five = state(a=UP, b=UP, c=UP, d=UP, e=UP)
    nodes = list(five.members)
    copy = cut(five, Flag.TERMINATED, nodes[4])
    resolver = Resolver(A, SETTINGS)
    assert len(resolver.consider(copy, True, 10.0).probe) == 3
    resolver.on_probe(nodes[1], ProbeOutcome.OPEN)
    assert resolver.consider(copy, True, 10.1) == Plan()
    resolver.on_probe(nodes[2], ProbeOutcome.OPEN)
    assert outcome(resolver.consider(copy, True, 10.2)) is Outcome.DOWN_OTHERS


def asking() -> tuple[Resolver, Gossip, str]:
    resolver = Resolver(A, SETTINGS)
    equal = cut(FOUR, Flag.UNREACHABLE, C, D)
    resolver.consider(equal, True, 10.0)
    plan = resolver.consider(equal, True, 10.0 + STABLE)
    assert plan.ask is not None
    assert (plan.ask.owner, plan.ask.ttl) == (str(A), SETTINGS.lease_ttl)
    assert resolver.consider(equal, True, 10.1 + STABLE) == Plan()
    return resolver, equal, plan.ask.name


@pytest.mark.parametrize(
    ("granted", "expected", "down", "why"),
    [
        (True, Outcome.DOWN_OTHERS, (C, D), "this side has the lease"),
        (False, Outcome.DOWN_OURSELVES, (A, B), "the other side has the lease"),
        (None, Outcome.DOWN_OURSELVES, (A, B), "the store cannot be reached"),
    ],
)
def test_the_lease_decides(
    granted: bool | None, expected: Outcome, down: tuple[NodeId, ...], why: str
) -> None:
    resolver, _, name = asking()
    plan = resolver.on_lease(name, granted)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (expected, down)
    assert plan.decision.reason.endswith(why)
    assert resolver.on_lease(name, True) == Plan()


def test_no_answer_from_the_store_is_a_lost_split() -> None:
    resolver, equal, _ = asking()
    late = 10.0 + STABLE + LEASE_WITHIN
    assert resolver.deadline() == late
    assert outcome(resolver.consider(equal, True, late)) is Outcome.DOWN_OURSELVES


def test_an_answer_to_an_old_question_is_ignored() -> None:
    resolver, _, name = asking()
    assert resolver.on_lease("another", True) == Plan()
    resolver.consider(UNREACHABLE, True, 20.0)
    assert resolver.on_lease(name, True) == Plan()


def test_no_strategy_no_decision() -> None:
    resolver = Resolver(A, DowningSettings(strategy="none"))
    assert resolver.consider(GONE, True, 10.0) == Plan()
    assert resolver.consider(GONE, True, 1000.0) == Plan()
