"""The conversation about the state, as a truth table: the versions of both, and the messages.

Source: S1.34, S1.36, S1.39-S1.44.
"""

from __future__ import annotations

from random import Random

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership.events import MessageDropped, Publish
from shardbus.membership.exchange import GossipExchange
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import GossipState, GossipStatus
from shardbus.membership.reachability import Flag
from shardbus.membership.vector_clock import VectorClock
from tests.records import replace

A, B, C = (NodeId(host, 1, 1) for host in "abc")
SETTINGS = ClusterSettings()


def copy(seen: str = "abc", **counts: int) -> Gossip:
    """Three Up members, seen by these hosts, at the version with these counts."""
    members = {n: Member(n, 2, status=Status.UP, up_number=1) for n in (A, B, C)}
    clock = VectorClock({NodeId(host, 1, 1): count for host, count in counts.items()})
    return Gossip(members, frozenset(NodeId(host, 1, 1) for host in seen), clock=clock)


def node_a(gossip: Gossip) -> GossipExchange:
    exchange = GossipExchange(A, SETTINGS, Random(1))
    exchange.start(gossip, 0.0)
    return exchange


def said(effects: list[object]) -> list[tuple[NodeId, str]]:
    """Receivers and their messages."""
    assert all(isinstance(effect, Publish) for effect in effects)
    return [(effect.to, type(effect.message).__name__) for effect in effects]  # type: ignore[attr-defined]


def test_news_goes_to_those_that_only_another_node_flags_after_all_others() -> None:
    """A node that hears no other flags them all. The dead get none."""
    for flag, receivers in ((Flag.UNREACHABLE, [B, C]), (Flag.TERMINATED, [B])):
        exchange = node_a(copy(a=1))
        exchange.gossip = exchange.gossip.with_flag(B, C, flag).with_epoch(A, "x", 1)
        assert sorted(to for to, what in said(exchange.announce(A, 1.0)) if what) == receivers
    only = GossipExchange(A, replace(SETTINGS, news_fanout=1), Random(1))
    only.start(copy(a=1), 0.0)
    only.gossip = only.gossip.with_flag(B, C, Flag.UNREACHABLE).with_epoch(A, "x", 1)
    assert [to for to, _ in said(only.announce(A, 1.0))] == [B]


@pytest.mark.parametrize(
    ("ours", "theirs", "answer"),
    [
        ({"a": 2}, {"a": 1}, "GossipState"),  # we are newer: here is our state
        ({"a": 1}, {"a": 2}, "GossipStatus"),  # they are newer: our version requests theirs
        ({"a": 2, "b": 1}, {"a": 1, "b": 2}, "GossipState"),  # neither: they merge and send it back
        ({"a": 1}, {"a": 1}, None),  # the same: nothing is said
    ],
)
def test_a_status_is_answered_by_what_its_sender_lacks(
    ours: dict[str, int], theirs: dict[str, int], answer: str | None
) -> None:
    exchange = node_a(copy(**ours))
    status = GossipStatus(copy(**theirs).clock, 3)
    assert said(exchange.on_status(B, status, 1.0)) == ([(B, answer)] if answer else [])


def test_a_newer_state_is_taken_and_its_sender_told_so() -> None:
    exchange = node_a(copy(a=1))
    newer = GossipState(A, copy("b", a=1, b=1))
    assert said(exchange.on_state(B, newer, 0.0, 1.0)) == [(B, "GossipSeen")]
    assert exchange.gossip.clock == newer.gossip.clock
    assert exchange.gossip.seen == {A, B}


def test_an_older_state_is_answered_with_ours() -> None:
    exchange = node_a(copy("a", a=2))
    assert said(exchange.on_state(B, GossipState(A, copy("b", a=1)), 0.0, 1.0)) == [
        (B, "GossipState")
    ]
    assert exchange.gossip.clock == copy(a=2).clock


def test_concurrent_states_are_merged_and_sent_back() -> None:
    exchange = node_a(copy("a", a=2, b=1))
    [effect] = exchange.on_state(B, GossipState(A, copy("b", a=1, b=2)), 0.0, 1.0)
    assert isinstance(effect, Publish)
    assert isinstance(effect.message, GossipState)
    assert effect.message.gossip.clock == copy(a=2, b=2).clock
    assert exchange.gossip.clock == copy(a=2, b=2).clock


def test_the_same_state_is_no_news() -> None:
    exchange = node_a(copy(a=1))
    assert exchange.on_state(B, GossipState(A, copy(a=1)), 0.0, 1.0) == []


def test_a_round_is_a_status_when_all_have_seen_and_the_state_when_not() -> None:
    [effect] = node_a(copy("abc", a=1)).tick(SETTINGS.gossip_interval)
    assert isinstance(effect, Publish)
    assert isinstance(effect.message, GossipStatus)
    [effect] = node_a(copy("a", a=1)).tick(SETTINGS.gossip_interval)
    assert isinstance(effect, Publish)
    assert isinstance(effect.message, GossipState)


@pytest.mark.parametrize(("seen", "rounds"), [("a", 3), ("ab", 1), ("abc", 1)])
def test_rounds_are_three_times_as_many_while_fewer_than_half_have_seen(
    seen: str, rounds: int
) -> None:
    exchange = node_a(copy(seen, a=1))
    exchange.tick(SETTINGS.gossip_interval)
    assert exchange._round_at == pytest.approx(SETTINGS.gossip_interval * (1 + 1 / rounds))


@pytest.mark.parametrize(
    ("message", "waited", "why"),
    [
        (GossipState(A, copy(a=9)), SETTINGS.gossip_time_to_live + 0.1, "waited too long"),
        (GossipState(A._replace(uid=2), copy(a=9)), 0.0, "another node"),
        (
            GossipState(A, replace(copy(a=9), members={B: copy(a=9).members[B]})),
            0.0,
            "without this node",
        ),
    ],
)
def test_gossip_that_is_stale_or_for_others_is_dropped_and_counted(
    message: GossipState, waited: float, why: str
) -> None:
    exchange = node_a(before := copy(a=1))
    [effect] = exchange.on_state(B, message, waited, 1.0)
    assert isinstance(effect, MessageDropped)
    assert why in effect.reason
    assert exchange.gossip is before


def test_whoever_has_the_version_is_in_the_seen_set() -> None:
    exchange = node_a(copy("a", a=1))
    assert exchange.on_seen(C, copy(a=1).clock, 1.0) == []
    assert exchange.gossip.seen == {A, C}
    assert said(exchange.on_seen(B, copy(b=1).clock, 1.0)) == [(B, "GossipState")]


def test_who_finds_itself_removed_says_nothing_any_more() -> None:
    """Its own actions have left no trace in its clock: two contents of one version."""
    base = copy("abc").with_seen(A).with_seen(B).with_seen(C)
    alone = base.with_members(A, base.members[B].moved(Status.DOWN))
    theirs = base.with_members(B, base.members[A].moved(Status.DOWN)).with_seen(B)
    theirs = theirs.without_members(B, (A,), 1.0)
    exchange = node_a(alone)
    assert exchange.announce_departure(5, 1.0)
    assert exchange.on_state(B, GossipState(A, theirs.flip_tombstones(1.0)), 0.0, 1.0) == []
    assert A not in exchange.gossip.members
    assert exchange.announce_departure(5, 1.0) == []


def test_whoever_can_hear_again_is_told_what_it_has_missed() -> None:
    """A subscription is made: by one that has our version, by one that has not and will request it,
    by one that was removed while nobody reached it (T.C43), and by a stranger."""
    gossip = replace(copy("ab", a=1), tombstones={(gone := NodeId("d", 1, 4)): 0.5})
    members = {NodeId(n.host, 1, uid): m for uid, (n, m) in enumerate(gossip.members.items(), 1)}
    gossip = replace(gossip, members=members, seen=frozenset({A, b := NodeId("b", 1, 2)}))
    exchange = node_a(gossip)
    assert said(exchange.on_listening(b.uid, 1.0)) == [(b, "GossipStatus")]
    assert said(exchange.on_listening(3, 1.0)) == [(NodeId("c", 1, 3), "GossipStatus")]
    assert said(exchange.on_listening(99, 1.0)) == []
    assert exchange.on_listening(A.uid, 1.0) == []
    assert exchange.on_listening(gone.uid, 1.0) == [exchange.state_to(gone, 1.0)]


@pytest.mark.parametrize("seed", range(30))
def test_one_version_has_one_content_though_a_node_is_removed(seed: int) -> None:
    """X receives epochs, spreads some, and is removed by B, which erases its counter. Whoever has
    heard of the last epoch, and whoever has not, must not believe that they have the same."""
    dice = Random(seed)
    x = NodeId("x", 1, 1)
    base = copy("abc").with_members(A, Member(x, 2, status=Status.UP, up_number=2))
    base = base.with_seen(A).with_seen(B).with_seen(C).with_seen(x)
    nodes = {}
    for node in (A, B, C, x):
        nodes[node] = GossipExchange(node, SETTINGS, dice)
        nodes[node].start(base, 0.0)
    contents: dict[object, object] = {}
    for turn in range(60):
        node = dice.choice((A, B, C))
        kind = dice.choice(("tell", "tell", "tell", "learn", "x learns"))
        if turn == 30:
            downed = nodes[B].gossip.with_members(B, nodes[B].gossip.members[x].moved(Status.DOWN))
            nodes[B].gossip = downed.without_members(B, (x,), 1.0)
            node = B
        elif kind == "tell":
            teller = dice.choice([n for n in nodes if n != node])
            state = GossipState(node, nodes[teller].gossip.flip_tombstones(1.0))
            nodes[node].on_state(teller, state, 0.0, 1.0)
        else:
            learner = nodes[node if kind == "learn" else x]
            learner.gossip = learner.gossip.with_epoch(learner.me, f"{learner.me}", turn + 1)
        gossip = nodes[node].gossip
        version = (frozenset(gossip.clock.counters.items()), frozenset(gossip.tombstones))
        content = (gossip.members, gossip.reachability, gossip.epochs)
        assert contents.setdefault(version, content) == content


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_S3_26_rounds_reach_unreachable_members_if_the_breaker_is_on(factor: float) -> None:
    """A flags C and can gossip with B alone. With the breaker, rounds also go to C."""
    settings = replace(SETTINGS, gossip_partition_breaker=factor)
    exchange = GossipExchange(A, settings, Random(1))
    exchange.start(copy(a=1).with_flag(A, C, Flag.UNREACHABLE), 0.0)
    partners = {
        effect.to
        for now in range(1, 60)
        for effect in exchange.tick(float(now))
        if isinstance(effect, Publish)
    }
    assert partners == ({B, C} if factor else {B})


def test_S3_27_rounds_reach_a_seed_if_the_breaker_is_on() -> None:
    """A gossips with B and C at most once per round without it."""
    settings = replace(SETTINGS, gossip_partition_breaker=1.0)
    exchange = GossipExchange(A, settings, Random(1))
    exchange.seeds = (C.address,)
    exchange.start(copy(a=1), 0.0)
    rounds = [exchange.tick(float(now)) for now in range(1, 60)]
    assert max(map(len, rounds)) == 2
    assert all(C in {effect.to for effect in pair} for pair in rounds if len(pair) == 2)  # type: ignore[union-attr]


def test_S1_35_rounds_come_once_per_interval() -> None:
    settings = replace(SETTINGS, gossip_interval=3.0)
    exchange = GossipExchange(A, settings, Random(1))
    exchange.start(copy(a=1), 10.0)
    first = exchange._round_at
    assert first is not None
    assert 10.0 <= first < 13.0
    exchange.tick(first)
    assert exchange._round_at == first + 3.0


@pytest.mark.parametrize(
    ("probability", "reduce_above", "partners"),
    [
        (1.0, 400, {C}),  # B has seen the version, C has not
        (0.01, 400, {B, C}),
        (1.0, 1, {B, C}),  # with three nodes the probability is a tenth of it
    ],
)
def test_S1_37_S1_38_rounds_prefer_nodes_without_the_version_as_the_settings_say(
    probability: float, reduce_above: int, partners: set[NodeId]
) -> None:
    settings = replace(
        SETTINGS,
        gossip_different_view_probability=probability,
        reduce_gossip_different_view_probability=reduce_above,
    )
    exchange = GossipExchange(A, settings, Random(1))
    exchange.start(copy("ab", a=1), 0.0)
    targets = {
        effect.to
        for now in range(1, 60)
        for effect in exchange.tick(float(now))
        if isinstance(effect, Publish)
    }
    assert targets == partners
