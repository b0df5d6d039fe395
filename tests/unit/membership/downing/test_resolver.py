"""When a split is decided, and by whom: T.U17's cases of timing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shardbus.bounds import EPOCH_MAX
from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.resolver import (
    CONSENT_GRACE_MAX,
    CONSENT_GRACE_PART,
    Resolver,
)
from shardbus.membership.downing.split import EPOCHS, DowningOutcome, lease_of
from shardbus.membership.downing.split_lease import LEASE_ANSWER_S, LEASE_TTL_S, DowningPlan
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, D, state

UP = Status.UP
SETTINGS = DowningSettings()
STABLE = SETTINGS.stable_after
PATIENCE = STABLE + 4.0
FOUR = state(a=UP, b=UP, c=UP, d=UP)
THREE = state(a=UP, b=UP, c=UP)


def cut(copy: Gossip, flag: Flag, *nodes: NodeId) -> Gossip:
    """All of the side suspect these, or have found them gone."""
    side = [n for n in copy.members if n not in nodes]
    rows = {observer: ObserverRow(1, dict.fromkeys(nodes, flag)) for observer in side}
    return replace(copy, reachability=Reachability(rows), seen=frozenset(side))


UNREACHABLE = cut(THREE, Flag.UNREACHABLE, C)
GONE = cut(THREE, Flag.TERMINATED, C)


def outcome(plan: DowningPlan) -> DowningOutcome | None:
    return plan.decision.outcome if plan.decision else None


def test_nothing_to_decide() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(THREE, True, 100.0) == DowningPlan()
    assert resolver.deadline() is None


def test_unreachable_members_wait_for_stability() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(UNREACHABLE, True, 10.0) == DowningPlan()
    assert resolver.deadline() == 10.0 + STABLE
    assert resolver.consider(UNREACHABLE, True, 9.9 + STABLE) == DowningPlan()
    assert (
        outcome(resolver.consider(UNREACHABLE, True, 10.0 + STABLE)) is DowningOutcome.DOWN_OTHERS
    )


def test_every_change_starts_the_wait_anew() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    joined = replace(UNREACHABLE, members={**UNREACHABLE.members, D: FOUR.members[D]})
    assert resolver.consider(joined, True, 10.0 + STABLE) == DowningPlan()
    assert resolver.deadline() == 10.0 + 2 * STABLE


def test_news_of_who_has_seen_it_is_no_change() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(replace(UNREACHABLE, seen=frozenset({A})), True, 10.0)
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE).decision is not None


UNHEARD = replace(UNREACHABLE, seen=frozenset({A}))


@pytest.mark.parametrize(
    ("leading", "heard", "expected"),
    [
        (True, True, DowningOutcome.DOWN_OTHERS),
        (True, False, DowningOutcome.DOWN_OURSELVES),
        (False, False, None),
    ],
)
def test_only_those_that_have_seen_the_picture_vote_for_us(
    leading: bool, heard: bool, expected: DowningOutcome | None
) -> None:
    """B is not flagged, but may not hear us, and stand with C."""
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNHEARD, leading, 10.0)
    assert resolver.consider(UNHEARD, leading, 10.0 + STABLE) == DowningPlan()
    late = 10.0 + STABLE + PATIENCE
    assert resolver.deadline() == late
    copy = UNREACHABLE if heard else UNHEARD
    assert outcome(resolver.consider(copy, leading, 11.0 + STABLE if heard else late)) is expected


def test_who_has_seen_the_picture_need_not_have_seen_the_last_version() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    assert outcome(resolver.consider(UNHEARD, True, 10.0 + STABLE)) is DowningOutcome.DOWN_OTHERS


def test_who_has_seen_the_picture_before_it_changed_has_not_seen_this_one() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    leaves = {C: replace(THREE.members[C], status=Status.LEAVING)}
    other = replace(UNHEARD, members={**UNHEARD.members, **leaves})
    resolver.consider(other, True, 11.0)
    assert resolver.consider(other, True, 11.0 + STABLE) == DowningPlan()
    aware = replace(other, seen=frozenset({A, B}))
    assert outcome(resolver.consider(aware, True, 12.0 + STABLE)) is DowningOutcome.DOWN_OTHERS


def test_who_looks_cut_off_since_a_moment_only_is_not_decided_about() -> None:
    """It had seen the version before this one, and may yet see this one."""
    resolver = Resolver(B, SETTINGS)
    with_us = replace(UNREACHABLE, seen=frozenset({A, B, C}))
    resolver.consider(with_us, True, 10.0)
    news = 9.5 + STABLE
    assert resolver.consider(UNREACHABLE, True, news) == DowningPlan()
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE) == DowningPlan()
    assert resolver.deadline() == news + STABLE
    assert (
        outcome(resolver.consider(UNREACHABLE, True, news + STABLE)) is DowningOutcome.DOWN_OTHERS
    )


def test_who_looks_cut_off_for_moments_does_not_keep_a_bad_link_from_being_cured() -> None:
    resolver = Resolver(C, SETTINGS)
    with_us = replace(UNREACHABLE, seen=frozenset({A, B, C}))
    others = replace(cut(THREE, Flag.UNREACHABLE, C), seen=frozenset({C}))
    rows = Reachability(
        {A: ObserverRow(1, {C: Flag.UNREACHABLE}), C: ObserverRow(1, {A: Flag.UNREACHABLE})}
    )
    with_us, others = (replace(copy, reachability=rows) for copy in (with_us, others))
    resolver.consider(with_us, False, 10.0)
    assert resolver.consider(others, False, 9.5 + STABLE) == DowningPlan()
    assert (
        outcome(resolver.consider(with_us, False, 10.1 + STABLE)) is DowningOutcome.DOWN_OURSELVES
    )


def test_what_heals_is_forgotten() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    assert resolver.consider(THREE, True, 12.0) == DowningPlan()
    assert resolver.deadline() is None
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE) == DowningPlan()


def test_only_the_leader_downs_others_but_everybody_its_own_losing_side() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, False, 10.0)
    assert resolver.consider(UNREACHABLE, False, 30.0) == DowningPlan()
    assert resolver.deadline() is None
    losing = cut(THREE, Flag.UNREACHABLE, B, C)
    resolver.consider(losing, False, 40.0)
    plan = resolver.consider(losing, False, 40.0 + STABLE)
    assert outcome(plan) is DowningOutcome.DOWN_OURSELVES


def test_who_becomes_leader_meanwhile_decides() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, False, 10.0)
    assert (
        outcome(resolver.consider(UNREACHABLE, True, 10.0 + STABLE)) is DowningOutcome.DOWN_OTHERS
    )


def test_who_loses_the_lead_meanwhile_does_not() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    assert resolver.consider(UNREACHABLE, False, 10.0 + STABLE) == DowningPlan()
    assert (
        outcome(resolver.consider(UNREACHABLE, True, 11.0 + STABLE)) is DowningOutcome.DOWN_OTHERS
    )


def test_the_gone_wait_only_for_the_sweep() -> None:
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(GONE, True, 10.0) == DowningPlan(probe=(B,))
    assert resolver.consider(GONE, True, 10.1) == DowningPlan()
    resolver.on_probe(B, ProbeOutcome.OPEN)
    plan = resolver.consider(GONE, True, 10.2)
    assert plan.decision is not None
    assert plan.decision.down == (C,)


def test_who_is_not_gone_for_everybody_waits_for_stability() -> None:
    """Somebody here may still reach it: then a wall rejects, and it is alive."""
    rows = {n: row for n, row in GONE.reachability.rows.items() if n != B}
    copy = replace(GONE, reachability=Reachability(rows))
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(copy, True, 10.0) == DowningPlan()
    assert resolver.consider(GONE, True, 10.1) == DowningPlan(probe=(B,))
    resolver = Resolver(A, SETTINGS)
    assert resolver.consider(copy, True, 10.0) == DowningPlan()
    assert outcome(resolver.consider(copy, True, 10.0 + STABLE)) is DowningOutcome.DOWN_OTHERS


def test_a_sweep_that_leaves_doubt_leaves_it_to_stability() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.UNKNOWN)
    assert resolver.consider(GONE, True, 11.0) == DowningPlan()
    assert resolver.deadline() == 10.0 + STABLE
    assert resolver.consider(GONE, True, 10.0 + STABLE).decision is not None


def test_a_sweep_that_shows_a_wall_decides_about_the_whole_split() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.REFUSED)
    both = cut(THREE, Flag.TERMINATED, B, C)
    assert outcome(resolver.consider(both, True, 10.1)) is DowningOutcome.DOWN_OURSELVES


def test_only_the_gone_are_downed_early() -> None:
    five = replace(state(a=UP, b=UP, c=UP, d=UP, e=UP), seen=frozenset())
    nodes = list(five.members)
    flags = {nodes[3]: Flag.UNREACHABLE, nodes[4]: Flag.TERMINATED}
    rows = Reachability(dict.fromkeys(nodes[:3], ObserverRow(1, flags)))
    copy = replace(five, reachability=rows, seen=frozenset(nodes[:3]))
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
    assert resolver.consider(copy, True, 10.1) == DowningPlan()
    resolver.on_probe(nodes[2], ProbeOutcome.OPEN)
    assert outcome(resolver.consider(copy, True, 10.2)) is DowningOutcome.DOWN_OTHERS


def test_one_of_each_side_asks_for_the_lease_though_all_believe_that_they_lead() -> None:
    asks = {}
    for me, others in ((A, (C, D)), (B, (C, D)), (C, (A, B)), (D, (A, B))):
        resolver, equal = Resolver(me, SETTINGS), cut(FOUR, Flag.TERMINATED, *others)
        [mate] = {A, B, C, D} - {me, *others}
        resolver.consider(equal, True, 10.0)
        resolver.on_probe(mate, ProbeOutcome.OPEN)
        asks[me] = resolver.consider(equal, True, 10.1).ask
    assert asks[B] is asks[D] is None
    lease, against = asks[A], asks[C]
    assert lease is not None
    assert against is not None
    assert against.name == lease.name
    assert against.owner != lease.owner


def asking() -> tuple[Resolver, Gossip, str]:
    resolver = Resolver(A, SETTINGS)
    equal = cut(FOUR, Flag.UNREACHABLE, C, D)
    resolver.consider(equal, True, 10.0)
    plan = resolver.consider(equal, True, 10.0 + STABLE)
    assert plan.ask is not None
    assert plan.ask.ttl == LEASE_TTL_S
    assert resolver.consider(equal, True, 10.1 + STABLE) == DowningPlan()
    return resolver, equal, plan.ask.name


@pytest.mark.parametrize(
    ("granted", "expected", "down", "why"),
    [
        (True, DowningOutcome.DOWN_OTHERS, (C, D), "this side has the lease"),
        (False, DowningOutcome.DOWN_OURSELVES, (A, B), "the other side has the lease"),
    ],
)
def test_the_lease_decides(
    granted: bool, expected: DowningOutcome, down: tuple[NodeId, ...], why: str
) -> None:
    resolver, _, name = asking()
    plan = resolver.on_lease_result(name, granted)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (expected, down)
    assert plan.decision.reason.endswith(why)
    assert plan.epoch == (1 if granted else 0)


@pytest.mark.parametrize("answers_late", [False, True])
def test_where_the_store_answers_one_node_not_the_next_one_of_its_side_asks(
    answers_late: bool,
) -> None:
    """A alone may have lost the store."""
    resolver, equal, name = asking()
    turn = 10.0 + STABLE + LEASE_ANSWER_S
    if answers_late:
        assert resolver.deadline() == turn
    else:
        assert resolver.on_lease_result(name, None) == DowningPlan()
    assert resolver.consider(equal, True, turn) == DowningPlan()
    following = Resolver(B, SETTINGS)
    following.consider(equal, False, 10.0)
    assert following.consider(equal, False, 10.0 + STABLE) == DowningPlan()
    assert following.deadline() == turn
    ask = following.consider(equal, False, turn).ask
    assert ask is not None
    assert ask.name == name
    plan = following.on_lease_result(name, True)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OTHERS, (C, D))


def test_no_answer_of_the_store_to_any_node_of_a_side_is_a_lost_split() -> None:
    """Each node of the side goes by itself."""
    resolver, equal, name = asking()
    resolver.on_lease_result(name, None)
    resolver.consider(equal, True, 10.1 + STABLE)
    end = 10.0 + STABLE + 2 * LEASE_ANSWER_S
    assert resolver.consider(equal, True, end - 0.1) == DowningPlan()
    assert resolver.deadline() == end
    plan = resolver.consider(equal, True, end)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OURSELVES, (A, B))
    assert plan.decision.reason.endswith("the store has answered no node of this side")


def test_a_side_of_one_node_has_lost_if_the_store_does_not_answer_it() -> None:
    resolver = Resolver(A, SETTINGS)
    alone = cut(state(a=UP, b=UP), Flag.UNREACHABLE, B)
    resolver.consider(alone, True, 10.0)
    ask = resolver.consider(alone, True, 10.0 + STABLE).ask
    assert ask is not None
    plan = resolver.on_lease_result(ask.name, None)
    assert plan.decision is not None
    assert plan.decision.outcome is DowningOutcome.DOWN_OURSELVES
    assert plan.decision.reason.endswith("the store cannot be reached")


def test_no_turn_comes_before_a_decision_by_the_turn_before_is_known() -> None:
    """A has the lease, and carries that out when the others are surely suspended."""
    equal = cut(FOUR, Flag.UNREACHABLE, C, D)
    suspended_within = 2 * STABLE
    first, following = (Resolver(n, SETTINGS, suspended_within=suspended_within) for n in (A, B))
    for resolver in (first, following):
        resolver.consider(equal, resolver is first, 10.0)
    ask = first.consider(equal, True, 10.0 + STABLE).ask
    assert ask is not None
    assert first.on_lease_result(ask.name, True) == DowningPlan()
    following.consider(equal, False, 10.0 + STABLE)
    carried_out = 10.0 + suspended_within
    assert first.deadline() == carried_out
    assert outcome(first.consider(equal, True, carried_out)) is DowningOutcome.DOWN_OTHERS
    assert following.consider(equal, False, carried_out + 0.9 * LEASE_ANSWER_S) == DowningPlan()


def test_an_answer_to_an_old_question_is_ignored() -> None:
    resolver, _, name = asking()
    assert resolver.on_lease_result("another", True) == DowningPlan()
    resolver.consider(UNREACHABLE, True, 20.0)
    assert resolver.on_lease_result(name, False) == DowningPlan()
    assert resolver.on_lease_result(name, True).decision is None


def test_no_strategy_no_decision() -> None:
    resolver = Resolver(A, DowningSettings(strategy="none"))
    assert resolver.consider(GONE, True, 10.0) == DowningPlan()
    assert resolver.consider(GONE, True, 1000.0) == DowningPlan()


def test_no_turn_begins_before_the_side_could_ask() -> None:
    """A voter has not seen the picture: the side requests the lease only after the patience."""
    four = replace(cut(FOUR, Flag.UNREACHABLE, C, D), seen=frozenset({A, B}))
    five = replace(four, members={**four.members, E: FIVE.members[E]})
    first, following = Resolver(A, LEASES), Resolver(B, LEASES)
    for resolver in (first, following):
        resolver.consider(five, resolver is first, 10.0)
    at = 10.0 + STABLE + PATIENCE
    assert first.consider(five, True, at).ask is not None
    assert following.consider(five, False, at) == DowningPlan()
    assert following.consider(five, False, at + LEASE_ANSWER_S).ask is not None


# -- the other strategies ----------------------------------------------------------------------


def test_a_margin_lets_the_losers_go_first() -> None:
    resolver = Resolver(A, replace(SETTINGS, down_removal_margin=3.0))
    resolver.consider(UNREACHABLE, True, 10.0)
    assert resolver.consider(UNREACHABLE, True, 10.0 + STABLE) == DowningPlan()
    assert resolver.deadline() == 13.0 + STABLE
    assert (
        outcome(resolver.consider(UNREACHABLE, True, 13.0 + STABLE)) is DowningOutcome.DOWN_OTHERS
    )
    losing = cut(THREE, Flag.UNREACHABLE, B, C)
    resolver.consider(losing, True, 40.0)
    assert outcome(resolver.consider(losing, True, 40.0 + STABLE)) is DowningOutcome.DOWN_OURSELVES


def test_the_gone_have_no_margin() -> None:
    resolver = Resolver(A, replace(SETTINGS, down_removal_margin=3.0))
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.OPEN)
    assert outcome(resolver.consider(GONE, True, 10.1)) is DowningOutcome.DOWN_OTHERS


def test_a_lease_is_asked_for_before_the_margin_and_counts_after_it() -> None:
    resolver = Resolver(A, replace(SETTINGS, down_removal_margin=3.0))
    equal = cut(FOUR, Flag.UNREACHABLE, C, D)
    resolver.consider(equal, True, 10.0)
    ask = resolver.consider(equal, True, 10.0 + STABLE).ask
    assert ask is not None
    assert resolver.on_lease_result(ask.name, True) == DowningPlan()
    assert resolver.consider(equal, True, 11.0 + STABLE) == DowningPlan()
    assert resolver.deadline() == 13.0 + STABLE
    assert outcome(resolver.consider(equal, True, 13.0 + STABLE)) is DowningOutcome.DOWN_OTHERS


LEASES = DowningSettings(strategy="lease-majority")
DELAY = LEASES.acquire_lease_delay_for_minority


def test_the_majority_asks_for_the_lease_at_once_and_for_good() -> None:
    resolver = Resolver(A, LEASES)
    resolver.consider(UNREACHABLE, True, 10.0)
    ask = resolver.consider(UNREACHABLE, True, 10.0 + STABLE).ask
    assert ask is not None
    assert ask.ttl == LEASE_TTL_S
    assert outcome(resolver.on_lease_result(ask.name, True)) is DowningOutcome.DOWN_OTHERS


@pytest.mark.parametrize("flag", [Flag.UNREACHABLE, Flag.TERMINATED])
def test_the_minority_asks_later(flag: Flag) -> None:
    resolver = Resolver(A, LEASES)
    few = cut(THREE, flag, B, C)
    resolver.consider(few, True, 10.0)
    assert resolver.consider(few, True, 10.0 + STABLE) == DowningPlan()
    due = resolver.deadline()
    while due is not None and due < 10.0 + STABLE + DELAY + PATIENCE:
        assert resolver.consider(few, True, due).ask is None
        due = resolver.deadline()
    assert due is not None
    ask = resolver.consider(few, True, due).ask
    assert ask is not None
    plan = resolver.on_lease_result(ask.name, False)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OURSELVES, (A,))


def test_the_minority_stays_if_it_has_the_lease() -> None:
    resolver = Resolver(A, LEASES)
    few = cut(THREE, Flag.UNREACHABLE, B, C)
    resolver.consider(few, True, 10.0)
    ask = resolver.consider(few, True, 10.0 + STABLE + DELAY + PATIENCE).ask
    assert ask is not None
    plan = resolver.on_lease_result(ask.name, True)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OTHERS, (B, C))


def test_the_majority_asks_at_once_about_the_gone() -> None:
    resolver = Resolver(A, LEASES)
    assert resolver.consider(GONE, True, 10.0).probe == (B,)
    resolver.on_probe(B, ProbeOutcome.OPEN)
    assert resolver.consider(GONE, True, 10.1).ask is not None


def test_the_speaker_asks_whoever_leads() -> None:
    for me, leading in ((A, False), (B, True)):
        resolver = Resolver(me, LEASES)
        resolver.consider(UNREACHABLE, leading, 10.0)
        plan = resolver.consider(UNREACHABLE, leading, 10.0 + STABLE)
        assert (plan.ask is not None) is (me == A)
        assert plan.decision is None


# -- epochs of the lease -----------------------------------------------------------------------


def under(copy: Gossip, epoch: int) -> Gossip:
    """The same, by somebody who knows of that many decisions."""
    return replace(copy, epochs={EPOCHS: epoch})


@pytest.mark.parametrize("settings", [SETTINGS, LEASES], ids=["keep-majority", "lease-majority"])
def test_each_decision_by_lease_has_an_epoch_of_its_own(settings: DowningSettings) -> None:
    """A won lease is spread with the marks; the next decision requests another lease."""
    resolver, asks = Resolver(A, settings), []
    for epoch in (7, 8):
        equal = under(cut(FOUR, Flag.UNREACHABLE, C, D), epoch)
        resolver.consider(equal, True, 10.0 * epoch)
        ask = resolver.consider(equal, True, 10.0 * epoch + STABLE).ask
        assert ask is not None
        plan = resolver.on_lease_result(ask.name, True)
        assert outcome(plan) is DowningOutcome.DOWN_OTHERS
        assert plan.epoch == epoch + 1
        asks.append(ask.name)
    assert asks == [lease_of(8), lease_of(9)]


def test_a_side_that_knows_the_last_epoch_asks_for_no_lease_and_ends() -> None:
    """No peer would accept a higher one, so nobody could receive the decision."""
    resolver = Resolver(A, SETTINGS)
    equal = under(cut(FOUR, Flag.UNREACHABLE, C, D), EPOCH_MAX)
    resolver.consider(equal, True, 10.0)
    plan = resolver.consider(equal, True, 10.0 + STABLE)
    assert plan.ask is None
    assert outcome(plan) is DowningOutcome.DOWN_OURSELVES
    assert "last epoch" in plan.decision.reason if plan.decision else False


def test_who_knows_an_older_epoch_asks_for_a_lease_that_is_taken() -> None:
    winner, late = Resolver(A, LEASES), Resolver(C, LEASES)
    here = under(cut(THREE, Flag.UNREACHABLE, C), 7)
    there = under(replace(cut(THREE, Flag.UNREACHABLE, A, B), seen=frozenset({C})), 7)
    winner.consider(here, True, 10.0)
    late.consider(there, True, 1e6)
    won = winner.consider(here, True, 60.0).ask
    ask = late.consider(there, True, 1e6 + 60.0).ask
    assert won is not None
    assert ask is not None
    assert ask.name == won.name
    lost = late.on_lease_result(ask.name, False)
    assert outcome(lost) is DowningOutcome.DOWN_OURSELVES
    assert lost.epoch == 0


def test_a_lease_that_comes_too_late_is_used_up_without_a_decision() -> None:
    """Otherwise nobody but this node could ever win the next decision."""
    resolver = Resolver(A, LEASES)
    split = under(UNREACHABLE, 7)
    resolver.consider(split, True, 10.0)
    ask = resolver.consider(split, True, 10.0 + STABLE).ask
    assert ask is not None
    assert resolver.consider(under(THREE, 7), True, 11.0 + STABLE) == DowningPlan()
    assert resolver.on_lease_result(ask.name, True) == DowningPlan(epoch=8)
    assert resolver.on_lease_result(ask.name, None) == DowningPlan()
    assert resolver.on_lease_result(ask.name, False) == DowningPlan()
    assert resolver.consider(under(THREE, 8), True, 11.1 + STABLE) == DowningPlan()
    assert resolver.on_lease_result(ask.name, True) == DowningPlan()


def test_a_lease_that_was_won_for_a_split_that_heals_within_the_margin_is_used_up() -> None:
    resolver = Resolver(A, replace(LEASES, down_removal_margin=3.0))
    split = under(UNREACHABLE, 7)
    resolver.consider(split, True, 10.0)
    ask = resolver.consider(split, True, 10.0 + STABLE).ask
    assert ask is not None
    assert resolver.on_lease_result(ask.name, True) == DowningPlan()
    assert resolver.on_lease_result(ask.name, True) == DowningPlan()
    assert resolver.consider(under(THREE, 7), True, 11.0 + STABLE) == DowningPlan(epoch=8)
    assert resolver.consider(under(THREE, 8), True, 11.0 + STABLE) == DowningPlan()


def test_a_lease_that_was_won_does_not_decide_about_the_next_split() -> None:
    """The split heals and another one begins, both within the margin: it has waited for nothing
    yet."""
    margin = 30.0
    resolver = Resolver(A, replace(LEASES, down_removal_margin=margin))
    split = under(UNREACHABLE, 7)
    resolver.consider(split, True, 10.0)
    ask = resolver.consider(split, True, 10.0 + STABLE).ask
    assert ask is not None
    assert resolver.on_lease_result(ask.name, True) == DowningPlan()
    resolver.consider(under(THREE, 7), True, 11.0 + STABLE)
    again = 9.0 + STABLE + margin
    assert resolver.consider(under(UNREACHABLE, 8), True, again) == DowningPlan()
    for late in (again + 1.1, again + STABLE - 0.1):
        assert resolver.consider(under(UNREACHABLE, 8), True, late) == DowningPlan()
    assert resolver.consider(under(UNREACHABLE, 8), True, again + STABLE).ask is not None


# -- bad links ---------------------------------------------------------------------------------

BAD_LINK = replace(
    UNREACHABLE,
    seen=frozenset({A, B, C}),
    reachability=Reachability({A: ObserverRow(1, {C: Flag.UNREACHABLE})}),
)


@pytest.mark.parametrize("settings", [SETTINGS, LEASES], ids=["keep-majority", "lease-majority"])
def test_who_must_go_for_a_bad_link_goes_by_itself(settings: DowningSettings) -> None:
    plans = {}
    for me in (A, B, C):
        resolver = Resolver(me, settings)
        resolver.consider(BAD_LINK, me == A, 10.0)
        plans[me] = resolver.consider(BAD_LINK, me == A, 10.0 + STABLE)
    assert plans[A] == plans[B] == DowningPlan()
    gone = plans[C].decision
    assert gone is not None
    assert (gone.outcome, gone.down) == (DowningOutcome.DOWN_OURSELVES, (C,))
    assert gone.reason == f"links within this side fail: {C}"


def test_of_two_that_must_go_for_bad_links_each_downs_itself_alone() -> None:
    rows = {A: ObserverRow(1, {C: Flag.UNREACHABLE}), B: ObserverRow(1, {D: Flag.UNREACHABLE})}
    copy = replace(FOUR, reachability=Reachability(rows), seen=frozenset(FOUR.members))
    for me in (C, D):
        resolver = Resolver(me, SETTINGS)
        resolver.consider(copy, False, 10.0)
        plan = resolver.consider(copy, False, 10.0 + STABLE)
        assert plan.decision is not None
        assert plan.decision.down == (me,)


def test_who_does_not_go_for_a_bad_link_is_downed_by_the_leader() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(BAD_LINK, True, 10.0)
    assert resolver.consider(BAD_LINK, True, 10.0 + STABLE) == DowningPlan()
    assert resolver.deadline() == 10.0 + STABLE + PATIENCE
    plan = resolver.consider(BAD_LINK, True, 10.0 + STABLE + PATIENCE)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OTHERS, (C,))


@pytest.mark.parametrize("settings", [SETTINGS, LEASES], ids=["keep-majority", "lease-majority"])
def test_the_last_of_a_side_goes_though_whoever_should_decide_has_died(
    settings: DowningSettings,
) -> None:
    """B and C, to which D has bad links, had heard of that and of A, and then died."""
    rows = {D: ObserverRow(1, {A: Flag.UNREACHABLE, B: Flag.TERMINATED, C: Flag.TERMINATED})}
    copy = replace(FOUR, reachability=Reachability(rows), seen=frozenset({B, C, D}))
    resolver = Resolver(D, settings)
    resolver.consider(copy, False, 10.0)
    assert resolver.consider(copy, False, 10.0 + STABLE) == DowningPlan()
    due = resolver.deadline()
    while due is not None and due < 10.0 + STABLE + PATIENCE:
        assert resolver.consider(copy, False, due) == DowningPlan()
        due = resolver.deadline()
    assert due == 10.0 + STABLE + PATIENCE
    gone = resolver.consider(copy, False, due).decision
    assert gone is not None
    assert (gone.outcome, gone.down) == (DowningOutcome.DOWN_OURSELVES, (D,))
    assert gone.reason.endswith("this node's links are bad, and no node has decided")


def test_under_lease_majority_even_that_needs_the_lease() -> None:
    resolver = Resolver(A, LEASES)
    resolver.consider(BAD_LINK, True, 10.0)
    assert resolver.consider(BAD_LINK, True, 10.0 + STABLE) == DowningPlan()
    ask = resolver.consider(BAD_LINK, True, 10.0 + STABLE + PATIENCE).ask
    assert ask is not None
    plan = resolver.on_lease_result(ask.name, True)
    assert plan.decision is not None
    assert (plan.decision.down, plan.epoch) == ((C,), 1)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("static-quorum", DowningOutcome.DOWN_OTHERS), ("down-all", DowningOutcome.DOWN_OURSELVES)],
)
def test_the_gone_are_decided_at_once_by_any_strategy(
    strategy: str, expected: DowningOutcome
) -> None:
    resolver = Resolver(A, DowningSettings(strategy=strategy, static_quorum_size=2))
    resolver.consider(GONE, True, 10.0)
    assert resolver.consider(GONE, True, 10.1) == DowningPlan()
    resolver.on_probe(B, ProbeOutcome.OPEN)
    assert outcome(resolver.consider(GONE, True, 10.2)) is expected


def test_who_was_starved_doubts_what_it_knows() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(UNREACHABLE, True, 10.0)
    resolver.on_starved(60.0)
    assert resolver.consider(UNREACHABLE, True, 55.0) == DowningPlan()
    assert resolver.deadline() == 60.0 + STABLE
    assert (
        outcome(resolver.consider(UNREACHABLE, True, 60.0 + STABLE)) is DowningOutcome.DOWN_OTHERS
    )


# -- unrest ------------------------------------------------------------------------------------

FIVE = state(a=UP, b=UP, c=UP, d=UP, e=UP)
E = list(FIVE.members)[4]


def flap(
    settings: DowningSettings, *pictures: tuple[NodeId, ...], leading: bool = True
) -> DowningPlan:
    """A picture every 1.6 seconds; the plan at the end of patience."""
    resolver = Resolver(A, settings)
    for i, nodes in enumerate(pictures):
        copy = cut(FIVE, Flag.UNREACHABLE, *nodes)
        assert resolver.consider(copy, leading, 10.0 + 1.6 * i) == DowningPlan()
    assert resolver.deadline() is not None
    return resolver.consider(copy, leading, 10.0 + PATIENCE)


@pytest.mark.parametrize("leading", [True, False])
def test_who_must_go_by_the_last_of_many_pictures_goes_by_itself(leading: bool) -> None:
    pictures = [(E,), (D, E), (E,), (D, E), (B, C, D, E)]
    plan = flap(SETTINGS, *pictures, leading=leading)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (DowningOutcome.DOWN_OURSELVES, (A,))
    assert plan.decision.reason == "reachability has kept changing for 9.0 s"
    assert flap(replace(SETTINGS, down_all_when_unstable=False), *pictures) == DowningPlan()
    assert flap(SETTINGS, *pictures[:-1], (D,), leading=leading) == DowningPlan()


def test_a_picture_of_a_moment_makes_nobody_go() -> None:
    """Who looks cut off since then may only not have seen the last version."""
    resolver = Resolver(A, SETTINGS)
    for i, nodes in enumerate([(E,), (D, E), (E,), (D, E)]):
        assert (
            resolver.consider(cut(FIVE, Flag.UNREACHABLE, *nodes), True, 10.0 + 2 * i).ask is None
        )
    copy = cut(FIVE, Flag.UNREACHABLE, B, C, D, E)
    assert resolver.consider(copy, True, 9.9 + PATIENCE) == DowningPlan()
    assert resolver.consider(copy, True, 10.0 + PATIENCE) == DowningPlan()
    late = 9.9 + PATIENCE + STABLE / 2
    assert outcome(resolver.consider(copy, True, late)) is DowningOutcome.DOWN_OURSELVES


@pytest.mark.parametrize("leading", [True, False])
def test_if_that_does_not_help_all_go(leading: bool) -> None:
    resolver, now = Resolver(A, SETTINGS), 10.0
    while now < 10.0 + 2 * PATIENCE:
        for nodes in ((E,), (D, E), (D,)):
            copy = cut(FIVE, Flag.UNREACHABLE, *nodes)
            assert resolver.consider(copy, leading, now) == DowningPlan()
            now += 2.0
    plan = resolver.consider(copy, leading, 10.0 + 2 * PATIENCE)
    assert plan.decision is not None
    assert (plan.decision.outcome, plan.decision.down) == (
        DowningOutcome.DOWN_OURSELVES,
        (A, B, C, E),
    )


def test_the_count_of_changes_begins_anew_when_a_member_goes() -> None:
    """Processes that restart again and again are proved gone each time, and decided about."""
    resolver, now, left = Resolver(A, SETTINGS), 10.0, FIVE
    for gone in (E, D, C):
        for nodes in ((B,), (B, gone), (gone,)):
            split = [n for n in nodes if n in left.members]
            assert (
                resolver.consider(cut(left, Flag.UNREACHABLE, *split), False, now).decision is None
            )
            now += 2.5
        down = replace(left.members[gone], status=Status.DOWN)
        left = replace(left, members={**left.members, gone: down})
    assert now > 10.0 + 2 * PATIENCE


def test_what_comes_and_goes_at_one_member_is_no_flapping() -> None:
    """Its links fail one after the other, and come back."""
    resolver, now = Resolver(A, SETTINGS), 10.0
    while now < 10.0 + 3 * PATIENCE:
        for links in ([(E, B)], [(E, B), (E, C)], [(E, C), (A, E)], [(B, E), (E, A), (E, D)]):
            copy = flagged(FIVE, FIVE.members, *links)
            assert resolver.consider(copy, True, now) == DowningPlan()
            now += 1.5


def test_patience_grows_with_stable_after() -> None:
    resolver = Resolver(A, replace(SETTINGS, stable_after=20.0))
    for i, nodes in enumerate([(E,), (D, E), (E,), (D,)]):
        resolver.consider(cut(FIVE, Flag.UNREACHABLE, *nodes), True, 10.0 + 9 * i)
    assert resolver.deadline() == 10.0 + 35.0


def test_members_that_fall_away_one_after_the_other_are_no_flapping() -> None:
    assert flap(SETTINGS, (E,), (D, E), (C, D, E), (B, C, D, E), (B, C, D, E)) == DowningPlan()


def test_what_changes_twice_is_no_flapping() -> None:
    resolver = Resolver(A, SETTINGS)
    for nodes, now in [((E,), 10.0), ((D, E), 14.5), ((E,), 19.0)]:
        resolver.consider(cut(FIVE, Flag.UNREACHABLE, *nodes), True, now)
    settled = resolver.consider(cut(FIVE, Flag.UNREACHABLE, E), True, 19.0 + STABLE)
    assert outcome(settled) is DowningOutcome.DOWN_OTHERS


def test_a_picture_that_has_lasted_begins_the_count_anew() -> None:
    resolver = Resolver(A, SETTINGS)
    resolver.consider(cut(FIVE, Flag.UNREACHABLE, E), False, 10.0)
    resolver.consider(cut(FIVE, Flag.UNREACHABLE, D, E), False, 12.0)
    resolver.consider(cut(FIVE, Flag.UNREACHABLE, E), False, 14.0)
    resolver.consider(cut(FIVE, Flag.UNREACHABLE, D), False, 14.0 + STABLE)
    assert resolver.consider(cut(FIVE, Flag.UNREACHABLE, D), False, 15.0 + STABLE) == DowningPlan()


def test_what_a_starved_node_has_seen_come_and_go_is_no_flapping() -> None:
    resolver, now = Resolver(A, SETTINGS), 10.0
    while now < 10.0 + 3 * PATIENCE:
        resolver.on_starved(now + STABLE)
        for nodes in ((E,), (D, E), (B, C, D)):
            copy = cut(FIVE, Flag.UNREACHABLE, *nodes)
            assert resolver.consider(copy, True, now) == DowningPlan()
            now += 2.0


def test_what_heals_between_is_forgotten() -> None:
    resolver = Resolver(A, SETTINGS)
    for i in range(8):
        now = 10.0 + 2 * i
        assert resolver.consider(cut(FIVE, Flag.UNREACHABLE, E), True, now) == DowningPlan()
        assert resolver.consider(FIVE, True, now + 1.0) == DowningPlan()


def test_live_members_are_downed_only_once_they_are_surely_suspended() -> None:
    """A voter receives the picture late, and has consented until then."""
    resolver = Resolver(A, SETTINGS, suspended_within=4.5)
    late = replace(UNREACHABLE, seen=frozenset((A,)))
    assert resolver.consider(late, True, 10.0) == DowningPlan()
    assert resolver.consider(UNREACHABLE, True, 14.0) == DowningPlan()
    assert resolver.consider(UNREACHABLE, True, 10.1 + STABLE) == DowningPlan()
    assert resolver.deadline() == 18.5
    assert outcome(resolver.consider(UNREACHABLE, True, 18.5)) is DowningOutcome.DOWN_OTHERS


def test_a_wait_for_the_suspension_is_no_longer_than_stable_after_if_all_are_aware() -> None:
    resolver = Resolver(A, SETTINGS, suspended_within=4.5)
    resolver.consider(UNREACHABLE, True, 10.0)
    decided = resolver.consider(UNREACHABLE, True, 10.0 + STABLE)
    assert outcome(decided) is DowningOutcome.DOWN_OTHERS


def test_members_proved_gone_are_downed_without_a_wait_for_their_suspension() -> None:
    resolver = Resolver(A, SETTINGS, suspended_within=4.5)
    resolver.consider(GONE, True, 10.0)
    resolver.on_probe(B, ProbeOutcome.ALIVE)
    assert outcome(resolver.consider(GONE, True, 10.1)) is DowningOutcome.DOWN_OTHERS


# -- whom a voter refuses its consent -----------------------------------------------------------

WITHIN = 4.5
GRACE = min(CONSENT_GRACE_PART * WITHIN, CONSENT_GRACE_MAX)


def voter(me: NodeId, copy: Gossip, at: float = 10.0) -> Resolver:
    made = Resolver(me, SETTINGS, suspended_within=WITHIN)
    made.consider(copy, False, at)
    return made


def flagged(copy: Gossip, seen: Iterable[NodeId], *links: tuple[NodeId, NodeId]) -> Gossip:
    rows: dict[NodeId, dict[NodeId, Flag]] = {}
    for observer, subject in links:
        rows.setdefault(observer, {})[subject] = Flag.UNREACHABLE
    table = Reachability({o: ObserverRow(1, row) for o, row in sorted(rows.items())})
    return replace(copy, reachability=table, seen=frozenset(seen))


def test_who_is_cut_off_and_not_reached_from_here_is_refused_at_once() -> None:
    assert voter(B, UNREACHABLE).refuses(C, 10.0)
    assert not voter(B, UNREACHABLE).refuses(A, 1e3)


def test_who_is_cut_off_by_hearsay_is_refused_after_a_grace_and_downed_that_much_later() -> None:
    """C may answer in a moment: until then, the report of one observer suspends nobody."""
    copy = flagged(THREE, (A, B), (A, C))
    here = voter(B, copy)
    assert not here.refuses(C, 9.99 + GRACE)
    assert here.refuses(C, 10.0 + GRACE)
    leader = Resolver(A, SETTINGS, suspended_within=WITHIN)
    assert leader.consider(copy, True, 10.0) == DowningPlan()
    assert leader.consider(copy, True, 9.9 + GRACE + WITHIN) == DowningPlan()
    acts = leader.consider(copy, True, 10.0 + GRACE + WITHIN)
    assert outcome(acts) is DowningOutcome.DOWN_OTHERS


@pytest.mark.parametrize("seen", [(A, B, C, D), (A, B, C, D, E), (A, B), (A,)])
def test_flags_of_a_node_that_hears_no_other_cost_nobody_a_consent(
    seen: tuple[NodeId, ...],
) -> None:
    """Also while nobody has noticed that it is deaf, and whoever has that version."""
    copy = flagged(FIVE, seen, *((E, n) for n in (A, B, C, D)))
    for me in (A, B, C, D):
        here = voter(me, copy)
        others = [n for n in (A, B, C, D) if n != me]
        assert not any(here.refuses(n, 1e3) for n in others)
        assert here.refuses(E, 1e3)


def test_who_goes_for_bad_links_is_refused_once_the_picture_has_lasted() -> None:
    """And is downed by others only when it is surely suspended since."""
    copy = flagged(FIVE, FIVE.members, (E, A), (E, B))
    here = voter(C, copy)
    assert not here.refuses(E, 9.9 + STABLE)
    assert here.refuses(E, 10.0 + STABLE)
    assert not any(here.refuses(n, 1e3) for n in (A, B, D))
    late = STABLE + PATIENCE + 1.0
    leader = Resolver(A, SETTINGS, suspended_within=late)
    leader.consider(copy, True, 10.0)
    assert leader.consider(copy, True, 10.0 + STABLE + PATIENCE) == DowningPlan()
    assert leader.consider(copy, True, 9.9 + STABLE + late) == DowningPlan()
    plan = leader.consider(copy, True, 10.0 + STABLE + late)
    assert plan.decision is not None
    assert plan.decision.down == (E,)
    itself = Resolver(E, SETTINGS, suspended_within=WITHIN)
    itself.consider(copy, False, 10.0)
    assert outcome(itself.consider(copy, False, 10.0 + STABLE)) is DowningOutcome.DOWN_OURSELVES


def test_members_cut_off_and_one_with_bad_links_go_together_once_all_are_surely_suspended() -> None:
    cut_off = [(n, E) for n in (A, B, C, D)]
    copy = flagged(FIVE, (A, B, C, D), *cut_off, (B, D))
    here = voter(C, copy)
    assert here.refuses(E, 10.0)
    assert not here.refuses(D, 9.99 + GRACE)
    assert here.refuses(D, 10.0 + GRACE)
    leader = Resolver(A, SETTINGS, suspended_within=WITHIN)
    leader.consider(copy, True, 10.0)
    assert leader.consider(copy, True, 9.9 + GRACE + WITHIN) == DowningPlan()
    plan = leader.consider(copy, True, 10.0 + GRACE + WITHIN)
    assert plan.decision is not None
    assert plan.decision.down == (D, E)


def test_a_loser_does_not_down_members_that_have_lost_no_other() -> None:
    """E accuses A, B and C, and hears only D since; D hears all."""
    copy = flagged(FIVE, (D, E), (E, A), (E, B), (E, C))
    loser = Resolver(E, SETTINGS)
    loser.consider(copy, False, 10.0)
    plan = loser.consider(copy, False, 10.0 + STABLE)
    assert plan.decision is not None
    assert plan.decision.down == (E,)
    with_it = flagged(FIVE, (D, E), (E, A), (E, B), (E, C), (D, B))
    loser = Resolver(E, SETTINGS)
    loser.consider(with_it, False, 10.0)
    plan = loser.consider(with_it, False, 10.0 + STABLE)
    assert plan.decision is not None
    assert plan.decision.down == (D, E)


# -- who suspects itself first ------------------------------------------------------------------

NOTICED = 11.0


@pytest.mark.parametrize(
    ("copy", "me", "away", "settings", "turn"),
    [
        (THREE, C, (A, B), LEASES, DELAY + NOTICED),
        (FIVE, D, (A, B, C), LEASES, DELAY + NOTICED),
        (FIVE, A, (D, E), LEASES, 0.0),
        (FOUR, A, (C, D), SETTINGS, 0.0),
        (state(a=UP, b=UP), A, (B,), SETTINGS, 0.0),
        (state(a=UP, b=UP), B, (A,), LEASES, 0.0),
    ],
)
def test_fewer_nodes_ask_for_a_lease_when_those_that_hear_each_other_have_had_their_turn(
    copy: Gossip, me: NodeId, away: tuple[NodeId, ...], settings: DowningSettings, turn: float
) -> None:
    """Of two members either may win."""
    resolver = Resolver(me, settings, noticed_within=NOTICED)
    picture = cut(copy, Flag.UNREACHABLE, *away)
    due: float | None = 10.0
    ask = None
    while ask is None:
        assert due is not None
        ask = resolver.consider(picture, True, due).ask
        at, due = due, resolver.deadline()
    assert at == 10.0 + STABLE + turn


def test_fewer_nodes_wait_for_members_too_that_refuse_them() -> None:
    """A firewall may stand before the few."""
    few = cut(THREE, Flag.TERMINATED, B, C)
    resolver = Resolver(A, LEASES, noticed_within=NOTICED)
    resolver.consider(few, True, 10.0)
    assert resolver.consider(few, True, 10.0 + STABLE + DELAY).ask is None
    assert resolver.consider(few, True, 10.0 + STABLE + DELAY + NOTICED).ask is not None


@pytest.mark.parametrize(
    ("unaware", "at", "asks"),
    [(1, STABLE, True), (2, STABLE, False), (2, STABLE + PATIENCE, True)],
)
def test_a_side_that_outvotes_all_others_without_the_unaware_asks_for_the_lease_at_once(
    unaware: int, at: float, asks: bool
) -> None:
    """A member of this side needs long for everything: it does not keep the lease for the few."""
    copy = cut(FIVE, Flag.UNREACHABLE, E)
    copy = replace(copy, seen=frozenset({A, B, C, D} - {*(B, C)[:unaware]}))
    resolver = Resolver(A, LEASES)
    resolver.consider(copy, True, 10.0)
    plan = resolver.consider(copy, True, 10.0 + at)
    assert (plan.ask is not None) == asks
    if plan.ask is not None:
        decided = resolver.on_lease_result(plan.ask.name, True).decision
        assert decided is not None
        assert decided.down == ((E,) if unaware == 1 else (B, C, E))


# -- actors, and changes that are no unrest ---
# -----------------------------------------------------------


def test_where_the_leader_must_go_the_speaker_acts() -> None:
    """A hears nobody, and nobody has flagged it: by the order of addresses it leads."""
    copy = flagged(FIVE, (B, C, D, E), *((A, n) for n in (B, C, D, E)))
    for me, acts in ((B, True), (C, False)):
        resolver = Resolver(me, SETTINGS)
        resolver.consider(copy, False, 10.0)
        plan = resolver.consider(copy, False, 10.0 + STABLE)
        assert (outcome(plan) is DowningOutcome.DOWN_OTHERS) is acts


@pytest.mark.parametrize("links", [[(A, E), (B, E)], [(E, A), (E, B), (E, C), (E, D)]])
def test_a_member_that_was_cut_off_and_must_go_since_has_been_at_fault_all_the_time(
    links: list[tuple[NodeId, NodeId]],
) -> None:
    """E is lost, or has lost others, and shows only later that it still hears them."""
    resolver = Resolver(A, SETTINGS)
    resolver.consider(FIVE, True, 10.0)
    assert resolver.consider(flagged(FIVE, (A, B, C, D), *links), True, 100.0) == DowningPlan()
    heard = flagged(FIVE, FIVE.members, *links)
    assert resolver.consider(heard, True, 100.0 + 0.7 * STABLE) == DowningPlan()
    assert resolver.deadline() == 100.0 + STABLE
    late = resolver.consider(heard, True, 100.0 + STABLE + PATIENCE)
    assert late.decision is not None
    assert late.decision.down == (E,)


def test_flags_that_go_with_their_observer_are_no_flapping() -> None:
    """Two deaf members flag the others one after the other, and each downs itself."""
    resolver, now = Resolver(A, SETTINGS), 10.0
    links: list[tuple[NodeId, NodeId]] = []
    for deaf in (D, E):
        for n in (A, B, C):
            links.append((deaf, n))
            resolver.consider(flagged(FIVE, FIVE.members, *links), True, now)
            now += 1.0
    for gone in (D, E):
        down = {n: replace(m, status=Status.DOWN) for n, m in FIVE.members.items() if n == gone}
        copy = flagged(FIVE, FIVE.members, *links)
        copy = replace(copy, members={**FIVE.members, **down})
        resolver.consider(copy, True, now)
        now += 2.0
    assert resolver.consider(copy, True, 10.0 + PATIENCE + 1.0).decision is None
