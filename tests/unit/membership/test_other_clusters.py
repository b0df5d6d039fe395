"""Other clusters at the seeds of a node: the questions, the findings, and their ends."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.messages import (
    PROTOCOL,
    Greeting,
    InitAck,
    InitJoin,
    InitNack,
    JoinRefused,
)
from shardbus.membership.other_clusters import (
    EVERY_S,
    SUSPECTED_S,
    SUSPECTS_MAX,
    OtherClusters,
)
from shardbus.membership.view import OtherCluster, OtherClustersChanged
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_gossip import A, B, state

GREETING = Greeting("shop", PROTOCOL, {})
SEED = Address("s", 7355)
NODE = NodeId("s", 7355, 9)
ALONE = state(a=Status.UP)
ACK, NACK, REFUSED = InitAck(GREETING, 1), InitNack(), JoinRefused("cluster name 'x' is not 'y'")
FOUND, REASONED = OtherCluster(SEED, NODE), OtherCluster(SEED, None, REFUSED.reason)


class Watch:
    """A watch over one seed, which is asked again and again."""

    def __init__(self) -> None:
        self.others = OtherClusters(A, GREETING)
        self.others.watch([A.address, SEED], 0.0)
        self.reports: list[tuple[OtherCluster, ...]] = []

    def ask(self, *answers: Any, gossip: Gossip = ALONE, sender: NodeId = NODE) -> bool:
        """Let the next question be due, and its answers come. Returns whether it was asked."""
        effects = self.others.tick(gossip, self.others.deadline() or 0.0)
        questions = [e for e in effects if isinstance(e, ev.SendControl)]
        assert questions in ([], [ev.SendControl(SEED, InitJoin(GREETING))])
        for answer in answers:
            if self.others.asks(SEED):
                effects += self.others.on_answer(gossip, sender, answer, SEED)
        events = [e.event for e in effects if isinstance(e, ev.Notice)]
        self.reports += [e.clusters for e in events if isinstance(e, OtherClustersChanged)]
        return bool(questions)


def test_S3_29_a_seed_of_another_cluster_is_a_finding_at_its_second_answer() -> None:
    watch = Watch()
    assert watch.others.deadline() == EVERY_S
    assert watch.ask(ACK, ACK)
    assert watch.reports == [], "two answers to one question are one"
    assert watch.ask(ACK)
    assert watch.reports == [(FOUND,)]
    assert watch.ask(ACK)
    assert watch.reports == [(FOUND,)], "it is told once"


@pytest.mark.parametrize(
    ("answers", "notices"),
    [
        ([ACK, NACK, ACK], []),
        ([NACK, NACK, NACK], []),
        ([REFUSED, REFUSED], [(REASONED,)]),
        ([ACK, ACK, NACK], [(FOUND,), ()]),
        ([ACK, ACK, None, ACK], [(FOUND,)]),
        ([ACK, ACK, None, None, None], [(FOUND,), ()]),
        ([None, None, None, None], []),
        ([ACK, REFUSED, ACK], [(REASONED,), (FOUND,)]),
    ],
)
def test_what_a_seed_answers_and_what_is_told(answers: list[Any], notices: list[Any]) -> None:
    watch = Watch()
    for answer in answers:
        assert watch.ask(*([] if answer is None else [answer]))
    assert watch.reports == notices


def test_a_seed_that_is_another_name_of_a_member_is_no_finding() -> None:
    watch = Watch()
    for _ in range(3):
        watch.ask(ACK, gossip=state(a=Status.UP, b=Status.UP), sender=B)
    assert watch.reports == []


def test_a_seed_that_is_a_member_is_not_asked_and_ends_its_finding() -> None:
    watch = Watch()
    watch.ask(ACK)
    watch.ask(ACK)
    joined = Gossip().with_members(A, *ALONE.members.values())
    joined = joined.with_members(A, next(iter(ALONE.members.values())).__class__(NODE, 7356))
    assert not watch.ask(gossip=joined)
    assert watch.reports == [(FOUND,), ()]
    assert not watch.others.asks(SEED)


def test_without_other_seeds_nothing_is_asked() -> None:
    others = OtherClusters(A, GREETING)
    assert others.deadline() is None
    others.watch([A.address], 0.0)
    assert others.deadline() is None
    assert others.tick(ALONE, 1e9) == []


def answer(others: OtherClusters, at: float, *answers: Any) -> list[Any]:
    """Let the questions of this moment be asked, and a node answer them; return the findings."""
    effects = others.tick(ALONE, at)
    for message in answers:
        effects += others.on_answer(ALONE, NODE, message, SEED) if others.asks(SEED) else []
    events = [e.event for e in effects if isinstance(e, ev.Notice)]
    return [e.clusters for e in events if isinstance(e, OtherClustersChanged)]


def test_a_suspect_is_asked_at_once_and_again_soon() -> None:
    others = OtherClusters(A, GREETING)
    others.suspect([SEED, A.address], ALONE, 100.0)
    assert others.deadline() == 100.0
    assert answer(others, 100.0, ACK) == []
    assert others.deadline() == 100.0 + SUSPECTED_S
    assert answer(others, 100.0 + SUSPECTED_S, ACK) == [(OtherCluster(SEED, NODE, "", True),)]


@pytest.mark.parametrize("said", [(NACK,), ()], ids=["in no cluster", "silent"])
def test_a_suspect_that_is_in_no_cluster_is_forgotten(said: tuple[Any, ...]) -> None:
    others = OtherClusters(A, GREETING)
    others.suspect([SEED], ALONE, 0.0)
    for at in (0.0, SUSPECTED_S, 2 * SUSPECTED_S):
        assert answer(others, at, *said) == []
    assert others.deadline() is None


def test_a_member_is_no_suspect_and_a_seed_stays_a_seed() -> None:
    others = OtherClusters(A, GREETING)
    others.watch([SEED], 0.0)
    others.suspect([SEED, B.address], state(a=Status.UP, b=Status.UP), 1.0)
    assert others.deadline() == EVERY_S


def test_suspects_have_a_bound() -> None:
    others = OtherClusters(A, GREETING)
    for first in (0, 40):
        nodes = [Address(f"s{n}", 7355) for n in range(first, first + 40)]
        others.suspect(nodes, ALONE, 0.0)
    questions = [e for e in others.tick(ALONE, 0.0) if isinstance(e, ev.SendControl)]
    assert len(questions) == SUSPECTS_MAX


def test_S3_27_two_islands_find_each_other_and_one_cluster_finds_nothing() -> None:
    """Two clusters that were founded separately, each with the other's first node as a seed."""
    net = Net(7)
    nodes = [net.join("n01"), net.join("n02")]
    third = net.join("n03", "n01")
    net.until(lambda: third.member and all(n.member for n in nodes), 30)
    seeds = tuple(node.id.address for node in nodes)
    for node in (*nodes, third):
        net.deliver(node, ev.WatchSeeds(seeds))
    net.run(4 * EVERY_S)
    islands = {
        node.name: [n.clusters for n in node.notices if isinstance(n, OtherClustersChanged)]
        for node in (*nodes, third)
    }
    first, second = (OtherCluster(n.id.address, n.id) for n in nodes)
    assert islands == {"n01": [(second,)], "n02": [(first,)], "n03": [(second,)]}
    joined = net.join("n04", "n01")
    net.until(lambda: joined.member, 30)
    net.deliver(joined, ev.WatchSeeds((nodes[0].id.address,)))
    net.run(4 * EVERY_S)
    assert not any(isinstance(n, OtherClustersChanged) for n in joined.notices)
