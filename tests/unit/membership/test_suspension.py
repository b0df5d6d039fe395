"""When a node's entities may handle messages: contact, consent, and each downing strategy."""

from __future__ import annotations

from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.suspension import PROMPT_MAX, Suspension
from shardbus.membership.view import HandlingResumed, HandlingSuspended
from tests.records import replace
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_gossip import A, B, C, D, state

UP, JOINING = Status.UP, Status.JOINING
LIFE = ClusterSettings().contact_lifetime
T = 1000.0
FIVE = state(a=UP, b=UP, c=UP, d=UP, e=UP)
E = list(FIVE.members)[4]


def settings(strategy: str = "keep-majority", **downing: object) -> ClusterSettings:
    chosen = {"strategy": strategy, **downing}
    return ClusterSettings(downing=DowningSettings(**chosen))  # type: ignore[arg-type]


def entered(me: NodeId, gossip: Gossip, chosen: ClusterSettings | None = None) -> Suspension:
    """A node that has just received all members, and is confirmed because of that."""
    made = Suspension(me, chosen or settings())
    made.update(gossip, T)
    return made


def judged(
    me: NodeId, gossip: Gossip, contacts: set[NodeId], chosen: ClusterSettings | None = None
) -> Suspension:
    """A node that has fresh contact with these members, and none with the others."""
    made = entered(me, gossip, chosen)
    later = T + 2 * LIFE
    for node in sorted(contacts):
        made.on_consent(node, later, later)
    made.update(gossip, later)
    return made


@pytest.mark.parametrize(
    ("strategy", "downing", "me", "contacts", "active"),
    [
        ("keep-majority", {}, A, "bc", True),
        ("keep-majority", {}, A, "b", False),
        ("keep-majority", {}, A, "", False),
        ("static-quorum", {"static_quorum_size": 4}, A, "bcd", True),
        ("static-quorum", {"static_quorum_size": 4}, A, "bc", False),
        ("keep-oldest", {}, A, "b", True),
        ("keep-oldest", {}, A, "", False),
        ("keep-oldest", {"down_if_alone": False}, A, "", True),
        ("keep-oldest", {}, B, "cde", True),
        ("keep-oldest", {}, B, "cd", False),
        ("keep-oldest", {}, B, "a", True),
        ("lease-majority", {}, A, "bcd", False),
        ("lease-majority", {}, A, "bcde", True),
        ("down-all", {}, A, "bcd", False),
        ("down-all", {}, A, "bcde", True),
        ("none", {}, A, "", True),
        ("keep-majority", {"unsafe_auto_down_after": 5.0}, A, "", True),
    ],
)
def test_the_strategy_says_who_is_suspended(
    strategy: str, downing: dict[str, object], me: NodeId, contacts: str, active: bool
) -> None:
    near = {n for n, m in FIVE.members.items() if m.node.host in contacts}
    made = judged(me, FIVE, near, settings(strategy, **downing))
    assert (made.valid_until > T + 2 * LIFE) is active
    assert bool(made.reason) is not active


@given(
    st.sets(st.sampled_from(sorted(FIVE.members))),
    st.sampled_from(["keep-majority", "static-quorum", "keep-oldest", "lease-majority"]),
    st.booleans(),
)
def test_two_sides_without_contact_are_never_both_active(
    side: set[NodeId], strategy: str, alone: bool
) -> None:
    chosen = settings(strategy, static_quorum_size=3, down_if_alone=alone)
    other = set(FIVE.members) - side
    active = [
        any(judged(me, FIVE, part - {me}, chosen).valid_until > 0 for me in part)
        for part in (side, other)
    ]
    assert not all(active)


def test_one_way_contact_makes_no_two_majorities() -> None:
    for near in combinations(sorted(FIVE.members), 3):
        far = set(FIVE.members) - set(near)
        assert judged(near[0], FIVE, set(near[1:])).valid_until > 0
        assert all(judged(node, FIVE, far - {node}).valid_until == -inf for node in far)


def test_the_same_silence_is_judged_anew_when_the_members_change() -> None:
    made = judged(B, FIVE, {C, D})
    assert not made.reason
    made.update(state(a=UP, b=UP, d=UP, e=UP), T + 2 * LIFE + LIFE / 16)
    assert made.reason


def test_contact_counts_from_the_request_and_not_from_the_reply() -> None:
    three = state(a=UP, b=UP, c=UP)
    made = entered(A, three)
    made.on_consent(B, T + 1.0, T + 3.9)
    made.update(three, T + 3.9)
    assert made.valid_until == pytest.approx(T + 1.0 + LIFE, abs=LIFE / 16)


def test_replies_to_requests_from_before_a_pause_renew_nothing() -> None:
    three = state(a=UP, b=UP, c=UP)
    made = entered(A, three)
    late = T + 60.0
    made.on_consent(B, T + 0.5, late)
    made.on_consent(C, T + 0.6, late)
    [event] = made.update(three, late)
    assert isinstance(event, HandlingSuspended)
    assert event.silent == (B, C)
    assert "keep-majority" in event.reason
    assert str(B) in event.reason


def test_consent_resumes_and_says_for_how_long_it_was_suspended() -> None:
    three = state(a=UP, b=UP, c=UP)
    made = entered(A, three)
    made.update(three, T + LIFE)
    made.on_consent(B, T + LIFE + 1.5, T + LIFE + 2.0)
    assert made.update(three, T + LIFE + 2.0) == [HandlingResumed(2.0)]
    assert made.reason == ""


def test_a_reply_from_the_future_or_of_a_stranger_is_no_contact() -> None:
    three = state(a=UP, b=UP, c=UP)
    made = entered(A, three)
    made.on_consent(B, T + 500.0, T + LIFE)
    made.on_consent(D, T + LIFE, T + LIFE)
    assert len(made.update(three, T + LIFE)) == 1


def test_a_single_node_is_never_suspended() -> None:
    made = entered(A, state(a=UP))
    assert made.update(state(a=UP), T + 1e6) == []
    assert made.valid_until == inf


def test_a_node_that_is_not_up_is_not_suspended() -> None:
    joining = state(a=JOINING, b=UP, c=UP)
    made = entered(A, joining)
    made.update(joining, T + 100.0)
    assert made.valid_until == inf


def test_members_that_only_start_suspend_nobody() -> None:
    assert judged(A, state(a=UP, b=JOINING, c=JOINING), set()).valid_until == inf


def test_a_second_member_does_not_suspend_the_first_as_it_comes_up() -> None:
    made = entered(A, state(a=UP))
    made.update(state(a=UP), T + 100.0)
    assert made.update(state(a=UP, b=UP), T + 101.0) == []
    assert made.valid_until == pytest.approx(T + 101.0 + LIFE, abs=LIFE / 16)


def test_a_new_member_prolongs_no_confirmation() -> None:
    two, three = state(a=UP, b=UP), state(a=UP, b=UP, c=UP)
    made = entered(A, two)
    before = made.valid_until
    made.update(three, T + LIFE / 2)
    assert made.valid_until <= before
    made.update(three, before + 0.1)
    assert made.reason


def test_a_removed_member_is_no_contact_that_is_missing() -> None:
    made = judged(A, state(a=UP, b=UP), set())
    assert made.reason
    made.update(state(a=UP), T + 3 * LIFE)
    assert made.valid_until == inf


def test_consent_is_for_members_that_need_not_go_and_work() -> None:
    made = Suspension(A, settings())
    four = state(a=UP, b=UP, c=Status.DOWN, d=Status.EXITING)
    assert made.consents(four, B, False, T)
    assert not made.consents(four, C, False, T)
    assert not made.consents(four, D, False, T)
    assert not made.consents(four, E, False, T)
    assert not made.consents(four, B, True, T)


def test_consent_comes_back_some_time_after_the_reason_is_gone() -> None:
    made = Suspension(A, settings())
    assert not made.consents(FIVE, B, True, T)
    assert not made.consents(FIVE, B, False, T + LIFE / 8)
    assert made.consents(FIVE, B, False, T + LIFE / 4)


def test_members_that_no_heartbeat_asks_are_asked_three_times_in_its_length() -> None:
    made = entered(A, FIVE)
    assert made.requests(FIVE.members, {B, C, D, E}, T) == []
    assert made.deadline() is None
    assert made.requests(FIVE.members, {B, C}, T) == [D, E]
    assert made.requests(FIVE.members, {B, C}, T + LIFE / 4) == []
    assert made.deadline() == pytest.approx(T + LIFE / 3)
    assert made.requests(FIVE.members, {B, C}, T + LIFE / 3) == [D, E]


def test_members_whose_contact_is_half_over_are_asked_more_often() -> None:
    """Their answers may have got lost: the node would be suspended for that."""
    made, watched = entered(A, FIVE), frozenset(FIVE.members)
    for node in (C, D):
        made.on_consent(node, T + LIFE / 2, T + LIFE / 2)
    assert made.requests(FIVE.members, watched, T + LIFE / 2 - 0.1) == []
    assert made.requests(FIVE.members, watched, T + LIFE / 2) == [B, E]
    assert made.requests(FIVE.members, watched, T + LIFE / 2 + LIFE / 10) == []
    assert made.requests(FIVE.members, watched, T + LIFE / 2 + LIFE / 8) == [B, E]
    made.on_consent(B, T + LIFE / 2, T + 0.7 * LIFE)
    assert made.requests(FIVE.members, watched, T + 0.8 * LIFE) == [E]


def test_a_large_cluster_asks_as_often_as_ever() -> None:
    many = state(**{f"n{k:03}": UP for k in range(PROMPT_MAX + 1)})
    me, *others = many.members
    made = entered(me, many)
    assert made.requests(many.members, frozenset(others), T + 0.9 * LIFE) == []


def test_heartbeats_that_are_too_rare_do_not_count_as_requests() -> None:
    rare = replace(settings(), suspend_after=1.0)
    assert Suspension(A, rare).requests(FIVE.members, FIVE.members, T) == [B, C, D, E]


@given(st.lists(st.floats(0.0, 10.0), min_size=4, max_size=4), st.floats(0.0, 12.0))
def test_valid_until_is_never_after_the_end_of_the_right(ages: list[float], at: float) -> None:
    """Whatever the contacts, at any time before `valid_until` a judgement finds it confirmed."""
    start = T + 20.0
    made = entered(A, FIVE)
    for node, age in zip((B, C, D, E), ages, strict=True):
        made.on_consent(node, start - age, start)
    made.update(FIVE, start)
    until, now = made.valid_until, start + at
    if now < until:
        again = made.update(FIVE, max(now, start + LIFE / 16))
        assert now < start + LIFE / 16 or again == []


def test_the_end_of_membership_ends_the_confirmation() -> None:
    made = entered(A, state(a=UP))
    made.close()
    assert made.valid_until == -inf


# -- how fast a dead member is removed ------------------------------------------------------------

STAYING = ("keep-majority", "static-quorum", "keep-oldest", "lease-majority")
SURVIVORS = ["n01", "n02", "n03", "n04"]
LOOK_S = 0.01
CONFIRMED_S = 0.2
"""Within which a killed process is removed, where nothing is lost and no message takes long."""


def removed_after(strategy: str, *, silent: bool, seed: int = 1) -> float:
    """Return the seconds until no survivor has the dead member any more."""
    downing = DowningSettings(strategy=strategy, static_quorum_size=3)
    net = Net(seed, ClusterSettings(downing=downing))
    net.start(5)
    net.run(20.0)
    net.kill("n05", silent=silent)
    began = net.now
    while not net.agreed(SURVIVORS):
        net.run(LOOK_S)
        assert net.now < began + 60.0
    return net.now - began


@pytest.mark.parametrize("strategy", STAYING)
def test_a_killed_process_is_removed_at_once(strategy: str) -> None:
    assert removed_after(strategy, silent=False) < CONFIRMED_S


@pytest.mark.parametrize("strategy", STAYING)
@pytest.mark.parametrize("silent", [False, True])
def test_a_dead_member_is_removed_as_fast_as_without_suspension(
    strategy: str, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats and their dice are the same, so that the times are comparable."""
    with_it = removed_after(strategy, silent=silent)
    monkeypatch.setattr(ClusterSettings, "suspends", property(lambda self: False))
    without = removed_after(strategy, silent=silent)
    assert with_it <= without + 2 * LOOK_S, (with_it, without)
