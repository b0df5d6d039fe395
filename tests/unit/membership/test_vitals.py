"""How busy nodes are: averages, the content of replies to heartbeats, and looks at a few nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from math import comb

import pytest

from shardbus.config.settings import FailureDetectorSettings
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.failure.heartbeat import Heartbeats
from shardbus.membership.failure.ring import watched
from shardbus.membership.member import Member
from shardbus.membership.messages import Heartbeat, HeartbeatReply
from shardbus.membership.vitals import (
    HALF_LIFE_S,
    LOOKS_MAX,
    Averages,
    Survey,
    Vitals,
    asked_per_look,
)
from shardbus.simulation.membership.world import GOSSIP_PORT, PORT
from shardbus.simulation.timeline import ProcessClock
from shardbus.wire.gossip import decode, encode
from tests.unit.membership.membership_net import Net

NODES = [NodeId("10.0.0.1", 7000 + i, i + 1) for i in range(100)]
A, B = NODES[:2]
BUSY = Vitals(busy=0.75, lag=0.01, rss=2.0**30, gc=0.02, mailbox=12.0, rate=34_567.0)


def test_a_measurement_replaces_half_of_the_average_after_the_half_life() -> None:
    averages = Averages()
    assert averages.add(Vitals(rate=100.0), 5.0).rate == 100.0
    assert averages.add(Vitals(rate=0.0), 5.0 + HALF_LIFE_S).rate == pytest.approx(50.0)
    assert averages.add(Vitals(rate=0.0), 5.0 + 3 * HALF_LIFE_S).rate == pytest.approx(12.5)


def test_a_clock_that_stands_still_changes_no_average() -> None:
    averages = Averages()
    averages.add(Vitals(rate=100.0), 5.0)
    assert averages.add(Vitals(rate=0.0), 5.0).rate == 100.0
    assert averages.add(Vitals(rate=0.0), 4.0).rate == 100.0


@pytest.mark.parametrize("steps", [1, 4, 12])
def test_the_average_does_not_depend_on_how_often_it_is_measured(steps: int) -> None:
    averages = Averages()
    averages.add(Vitals(mailbox=8.0), 0.0)
    for step in range(1, steps + 1):
        averages.add(Vitals(mailbox=0.0), HALF_LIFE_S * step / steps)
    assert averages.vitals is not None
    assert averages.vitals.mailbox == pytest.approx(4.0)


@pytest.mark.parametrize("vitals", [None, BUSY, Vitals()])
def test_a_reply_to_a_heartbeat_carries_vitals(vitals: Vitals | None) -> None:
    reply = HeartbeatReply(3, 1.5, 0.0, True, vitals)
    assert decode(encode(reply)) == reply


@pytest.mark.parametrize(
    "vitals",
    [Vitals(busy=1.5), Vitals(gc=-0.1), Vitals(rss=1e16), Vitals(rate=float("nan"))],
)
def test_vitals_that_no_node_can_have_are_refused(vitals: Vitals) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(encode(HeartbeatReply(3, 1.5, 0.0, False, vitals)))


def test_a_node_knows_its_own_vitals_and_those_of_the_nodes_that_it_watches() -> None:
    first, other = (Heartbeats(node, FailureDetectorSettings()) for node in (A, B))
    first.on_members([A, B], [])
    other.vitals, first.vitals = BUSY, Vitals(rate=1.0)
    assert first.vitals_known(2.0) == {A: (Vitals(rate=1.0), 0.0)}
    reply = other.answer(Heartbeat(0, 2.0), 2.0)
    first.on_reply(B, reply, 2.5)
    assert first.vitals_known(4.0)[B] == (BUSY, 1.5)


def test_a_reply_without_vitals_keeps_the_last_ones() -> None:
    heartbeats = Heartbeats(A, FailureDetectorSettings())
    heartbeats.on_members([A, B], [])
    heartbeats.on_reply(B, HeartbeatReply(0, 1.0, vitals=BUSY), 1.0)
    heartbeats.on_reply(B, HeartbeatReply(0, 2.0), 2.0)
    assert heartbeats.vitals_known(3.0) == {B: (BUSY, 2.0)}


@pytest.mark.parametrize(("nodes", "count"), [(1, 1), (2, 2), (3, 3), (39, 3), (100, 10)])
def test_a_look_asks_a_tenth_of_the_nodes_and_at_least_three(nodes: int, count: int) -> None:
    assert asked_per_look(nodes) == count


def _answers(nodes: Iterable[NodeId]) -> list[dict[NodeId, tuple[Vitals, float]]]:
    """Each node answers for itself and the nine that it watches."""
    return [dict.fromkeys((node, *watched(node, NODES, (), 9)), (BUSY, 0.0)) for node in nodes]


def test_ten_of_a_hundred_nodes_show_two_thirds_of_them_and_five_looks_show_nearly_all() -> None:
    """Looks at different times. In one look a node is unseen if none of the 10 nodes that know it
    is among the 10 of 100 that are asked. The mean of 400 seeds is within one percentage point of
    the next looks, and within a fifth of one after five looks."""
    unseen = comb(90, 10) / comb(100, 10)
    assert 0.65 < 1 - unseen < 0.67
    assert 0.995 < 1 - unseen**5 < 0.997
    once = after_five = 0
    for seed in range(400):
        rng, seen = random.Random(seed), set[NodeId]()
        for look in range(5):
            survey = Survey(NODES, rng)
            survey.record(_answers(survey.next_look()))
            seen |= survey.vitals.keys()
            once += len(seen) if look == 0 else 0
        after_five += len(seen)
    assert once / 400 == pytest.approx(100 * (1 - unseen), abs=1.0)
    assert after_five / 400 == pytest.approx(100 * (1 - unseen**5), abs=0.2)


def test_one_survey_of_a_hundred_nodes_shows_nearly_all() -> None:
    """It asks no node twice, so its five looks show more than looks at different times."""
    surveys = [Survey(NODES, random.Random(seed)) for seed in range(100)]
    for survey in surveys:
        while chosen := survey.next_look():
            survey.record(_answers(chosen))
    assert all(survey.looks <= LOOKS_MAX for survey in surveys)
    assert sum(len(survey.vitals) for survey in surveys) / 100 > 99.5


def test_a_survey_ends_when_every_node_is_known() -> None:
    survey = Survey(NODES[:5], random.Random(1))
    survey.record([dict.fromkeys(NODES[:5], (BUSY, 0.0))])
    assert survey.next_look() == []


def test_a_survey_asks_no_node_twice_and_ends() -> None:
    survey = Survey(NODES, random.Random(2))
    looks = []
    while chosen := survey.next_look():
        looks.append(chosen)
    assert len(looks) == LOOKS_MAX
    assert len({node for look in looks for node in look}) == 10 * LOOKS_MAX
    assert survey.unseen() == sorted(NODES)


def test_the_younger_answer_about_a_node_is_used_and_strangers_are_ignored() -> None:
    survey = Survey([A], random.Random(3))
    survey.record([{A: (Vitals(rate=1.0), 9.0), B: (BUSY, 0.0)}, {A: (BUSY, 0.5)}])
    survey.record([{A: (Vitals(rate=2.0), 0.6)}])
    assert survey.vitals == {A: (BUSY, 0.5)}


def test_a_member_whose_build_cannot_read_vitals_gets_none() -> None:
    net = Net(5)
    net.join("n1")
    older = Member(NodeId("n2", PORT, 99), GOSSIP_PORT, features=())
    net.enter(net.admit(older, "test", net.settings, {}, ProcessClock()), "n1")
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    for name in ("n1", "n2"):
        net.deliver(net.nodes[name], ev.SetVitals(BUSY))
    net.run(5.0)
    counts = {name: net.nodes[name].machine._heartbeats.vitals_known(net.now) for name in net.nodes}
    ids = {name: process.id for name, process in net.nodes.items()}
    assert counts["n1"].keys() == set(ids.values()), "the newer one learns of both"
    assert counts["n2"].keys() == {ids["n2"]}
