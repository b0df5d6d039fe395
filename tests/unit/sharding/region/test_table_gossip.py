"""The table by gossip: the answer of one region, and how a version reaches many."""

from __future__ import annotations

from math import log2
from random import Random

import pytest

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.messages import Home, TableState, TableStatus
from shardbus.sharding.region.table_gossip import (
    NO_VERSION,
    REQUEST_S,
    STATUS_S,
    TableGossip,
    TableVersion,
)
from shardbus.sharding.table_state import pack_homes

NODES = tuple(NodeId("n", port, 1) for port in range(1, 6))
ME, B, C, D, E = NODES
HOMES = (Home("1", B, 5), Home("2", C, 6))


def table(number: int = 1, epoch: int = 1, nodes: tuple[NodeId, ...] = NODES) -> TableState:
    homes = [home for home in HOMES if home.node in nodes]
    return TableState(epoch, number, nodes, pack_homes(homes, nodes))


class One:
    """One region's part, and its messages."""

    def __init__(self, me: NodeId | None = ME) -> None:
        self.out: list[ev.RegionEffect] = []
        self.gossip = TableGossip(me, self.out)

    def sent(self) -> list[tuple[NodeId, object]]:
        rows = [(effect.to, effect.message) for effect in self.out if isinstance(effect, ev.Send)]
        self.out.clear()
        return rows


def test_a_newer_table_is_used_and_reported_to_the_fingers() -> None:
    region = One()
    assert sorted(region.gossip.on_state(B, table(), 0.0)) == sorted(HOMES)
    assert region.gossip.version == (1, 1)
    assert region.sent() == [(C, TableStatus(1, 1)), (E, TableStatus(1, 1))]  # B has it


@pytest.mark.parametrize("again", [table(1), table(0), table(9, epoch=0)])
def test_a_table_that_is_not_newer_is_ignored(again: TableState) -> None:
    region = One()
    region.gossip.on_state(B, table(), 0.0)
    region.sent()
    assert region.gossip.on_state(C, again, 1.0) == ()
    assert (region.gossip.version, region.sent()) == ((1, 1), [])


def test_a_malformed_table_is_noted_and_not_used() -> None:
    region = One()
    assert region.gossip.on_state(B, TableState(1, 1, NODES, b"no table"), 0.0) == ()
    assert [n.kind for n in region.out if isinstance(n, ev.Note)] == ["table_refused"]
    assert region.gossip.version == NO_VERSION


STATE = table(5)


@pytest.mark.parametrize(
    ("theirs", "wants", "answer"),
    [
        ((1, 4), False, STATE),
        ((0, 9), True, STATE),
        ((1, 5), False, None),
        ((1, 5), True, TableStatus(1, 5)),
        ((1, 6), False, TableStatus(1, 5)),
        ((2, 1), True, TableStatus(1, 5)),
    ],
)
def test_of_two_versions_the_newer_one_travels(
    theirs: TableVersion, wants: bool, answer: object
) -> None:
    region = One()
    region.gossip.on_state(ME, STATE, 0.0)
    region.sent()
    region.gossip.on_status(D, TableStatus(*theirs, wants), 0.0)
    assert region.sent() == ([(D, answer)] if answer else [])


def test_one_version_is_asked_of_one_node_at_a_time() -> None:
    region = One()
    for sender, at in ((B, 0.0), (C, REQUEST_S / 2), (D, REQUEST_S)):
        region.gossip.on_status(sender, TableStatus(1, 3), at)
    region.gossip.on_status(E, TableStatus(1, 4), REQUEST_S)
    assert [to for to, _ in region.sent()] == [B, D, E]


def test_every_second_another_finger_is_asked() -> None:
    region = One()
    region.gossip.on_state(ME, table(), 0.0)
    region.sent()
    receivers = []
    for turn in range(1, 5):
        region.gossip.tick(turn * STATUS_S - 0.01)
        assert region.sent() == []
        region.gossip.tick(turn * STATUS_S)
        receivers += [to for to, _ in region.sent()]
        assert region.gossip.due == (turn + 1) * STATUS_S
    assert sorted(receivers) == sorted([B, C, E, receivers[0]])


def test_nothing_is_sent_to_nodes_that_are_gone() -> None:
    region = One()
    region.gossip.on_state(ME, table(), 0.0)
    for node in (B, C, E):
        region.gossip.on_node_gone(node)
    region.sent()
    region.gossip.on_state(ME, table(2), 1.0)
    assert region.sent() == [(D, TableStatus(1, 2))]
    region.gossip.on_node_back(C)
    region.gossip.on_state(ME, table(3), 2.0)
    assert [to for to, _ in region.sent()] == [C, D]


def test_a_table_of_an_earlier_coordinator_is_forgotten() -> None:
    region = One()
    region.gossip.on_state(ME, table(4), 0.0)
    region.gossip.forget_before(1)
    assert region.gossip.version == (1, 4)
    region.gossip.forget_before(2)
    assert (region.gossip.version, region.gossip.due) == (NO_VERSION, None)
    region.sent()
    region.gossip.tick(10.0)
    assert region.sent() == []


def test_a_client_takes_no_part() -> None:
    region = One(None)
    assert region.gossip.on_state(B, table(), 0.0) == ()
    region.gossip.on_status(B, TableStatus(1, 3, wants_answer=True), 0.0)
    assert (region.gossip.version, region.sent()) == (NO_VERSION, [])


def test_N_17_who_is_behind_is_asked_and_known_once_it_answers() -> None:
    region = One()
    region.gossip.on_state(ME, table(2), 0.0)
    region.gossip.on_status(B, TableStatus(1, 2), 0.0)
    region.gossip.on_node_gone(C)
    region.sent()
    assert region.gossip.behind((1, 2)) == [D, E]
    region.gossip.ask_versions()
    assert region.sent() == [(D, TableStatus(1, 2, True)), (E, TableStatus(1, 2, True))]
    region.gossip.on_status(D, TableStatus(1, 1), 0.0)
    region.gossip.on_status(E, TableStatus(1, 3), 0.0)
    assert region.gossip.behind((1, 2)) == [D]
    assert region.gossip.behind((1, 1)) == []


class Cluster:
    """Many regions whose messages take one step each, or are lost."""

    def __init__(self, count: int, seed: int, lost: float) -> None:
        self.nodes = tuple(NodeId("n", port, 1) for port in range(1, count + 1))
        self.regions = {node: One(node) for node in self.nodes}
        self.dice, self.lost, self.now, self.messages = Random(seed), lost, 0.0, 0

    def step(self, seconds: float = 0.01) -> None:
        self.now += seconds
        sent = [(node, *row) for node, region in self.regions.items() for row in region.sent()]
        self.messages += len(sent)
        for source, to, message in sent:
            if self.dice.random() < self.lost:
                continue
            gossip = self.regions[to].gossip
            if isinstance(message, TableState):
                gossip.on_state(source, message, self.now)
            else:
                assert isinstance(message, TableStatus)
                gossip.on_status(source, message, self.now)
        for region in self.regions.values():
            if region.gossip.due is not None and region.gossip.due <= self.now:
                region.gossip.tick(self.now)

    def behind(self, version: TableVersion) -> int:
        return sum(region.gossip.version < version for region in self.regions.values())


@pytest.mark.parametrize("count", [2, 3, 5, 17, 100])
def test_a_version_reaches_all_in_logarithmic_steps(count: int) -> None:
    cluster = Cluster(count, 1, 0.0)
    for number in (1, 2):
        source = cluster.nodes[number % count]
        cluster.regions[source].gossip.on_state(source, table(number, nodes=cluster.nodes), 0.0)
        steps = 0
        while cluster.behind((1, number)):
            cluster.step()
            steps += 1
            assert steps <= 3 * (log2(count) + 1)
        assert cluster.messages <= number * 3 * count * (log2(count) + 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_version_reaches_all_though_a_third_of_the_messages_are_lost(seed: int) -> None:
    cluster = Cluster(50, seed, 0.33)
    source = cluster.nodes[seed]
    cluster.regions[source].gossip.on_state(source, table(1, nodes=cluster.nodes), 0.0)
    steps = 0
    while cluster.behind((1, 1)):
        cluster.step(0.25)
        steps += 1
        assert steps < 200
