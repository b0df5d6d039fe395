"""The coordinator is handed over between real nodes, while somebody asks all the time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import health
from shardbus.config.settings import (
    ClusterSettings,
    DowningSettings,
    NodeSettings,
    Settings,
    SingletonSettings,
)
from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton.messages import MembershipSeen
from shardbus.membership.singleton.singleton import SingletonState
from shardbus.membership.view import MembershipView
from shardbus.node.node import Node
from shardbus.sharding import messages
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.store.memory import MemoryData, MemoryStore
from tests.loopback.nodes import QUICK, Nodes
from tests.ports import free_port
from tests.records import replace
from tests.unit.declaring import Anything
from tests.waiting import until

GRACEFUL = "this node has the coordinator: the oldest member, and no other node has it"
PATIENT = replace(QUICK, singleton=SingletonSettings(silence_timeout=60.0, hand_over_timeout=60.0))
"""A busy machine may let a node wait for seconds."""
REIGNS = (CoordinatorState.RULING, CoordinatorState.RETIRING)


def application() -> tuple[ShardBus, Any]:
    """Entities that live in a shard of their own each, so that each first ask needs the
    coordinator."""
    bus = ShardBus("shop")

    @bus.entity("counter", shards=16_000)
    class Counter(Entity):
        @handler
        def add(self) -> int:
            return 1

    return bus, Counter


def rulers(nodes: list[Node]) -> list[Node]:
    """Where a coordinator acts."""
    rulers_seen = []
    for node in nodes:
        coordinator = node.singletons["counter"].coordinator.machine
        if coordinator is not None and coordinator.state in REIGNS:
            rulers_seen.append(node)
    return rulers_seen


def epoch_of(node: Node) -> int:
    coordinator = node.singletons["counter"].coordinator.machine
    return coordinator.epoch if coordinator is not None else 0


class Asking:
    """Asks at one node for one new entity after the other, and counts the answers."""

    def __init__(self, node: Node) -> None:
        self.answers = 0
        self._node = node
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        for number in range(1_000_000):
            assert await self._node.ref("counter", f"thing-{number}").add() == 1
            self.answers += 1

    async def more(self, count: int = 5) -> None:
        """Wait for so many further answers."""
        expected = self.answers + count
        await until(lambda: self._task.done() or self.answers >= expected, "answers go on")
        if self._task.done():
            await self._task

    async def stop(self) -> None:
        """No more; raises the error of an ask."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


@pytest.fixture
def claims(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Every epoch that is claimed, and who acted at that moment, of all nodes that ever ran."""
    seen: list[tuple[int, list[str]]] = []
    everybody: list[Node] = []
    claim = MemoryStore.claim_epoch

    async def watched(self: MemoryStore, entity_type: str, epoch: int, layout: str) -> Any:
        everybody.extend(node for node in nodes.all if node not in everybody)
        seen.append((epoch, [str(node.me) for node in rulers(everybody)]))
        return await claim(self, entity_type, epoch, layout)

    monkeypatch.setattr(MemoryStore, "claim_epoch", watched)
    return seen


async def test_TG5_TG9_first_second_and_third_leave_in_turn_and_asks_are_answered_all_the_time(
    nodes: Nodes, claims: list[tuple[int, list[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = application()
    nodes.cluster_settings = PATIENT
    four = await nodes.cluster(bus, 4)
    asking = Asking(four[3])
    caplog.set_level(logging.INFO, "shardbus.node")
    caplog.clear()
    for count in range(3):
        await asking.more()
        assert rulers(four) == [four[count]]
        await nodes.leave(four[count])
        assert four[count].singletons["counter"].singleton.state is SingletonState.ENDED
        await until(lambda n=count: rulers(four) == [four[n + 1]], "the next one rules")
        await asking.more()
    await asking.stop()
    assert claims == [(epoch, []) for epoch in (1, 2, 3, 4)]
    assert sum(GRACEFUL in record.getMessage() for record in caplog.records) == 3
    assert "waited for long enough" not in caplog.text


async def test_TG5_of_two_the_second_goes_on_and_the_last_just_ends(
    nodes: Nodes, claims: list[tuple[int, list[str]]]
) -> None:
    bus, _ = application()
    nodes.cluster_settings = PATIENT
    first, second = await nodes.cluster(bus, 2)
    asking = Asking(second)
    await asking.more()
    await nodes.leave(first)
    await until(lambda: rulers([first, second]) == [second], "the second rules")
    await asking.more()
    await asking.stop()
    await nodes.leave(second)
    assert claims == [(1, []), (2, [])]
    assert second.singletons["counter"].singleton.state is SingletonState.ENDED


async def test_TG5_the_two_oldest_leave_at_once(
    nodes: Nodes, claims: list[tuple[int, list[str]]]
) -> None:
    bus, _ = application()
    nodes.cluster_settings = PATIENT
    three = await nodes.cluster(bus, 3)
    asking = Asking(three[2])
    await asking.more()
    await asyncio.gather(nodes.leave(three[0]), nodes.leave(three[1]))
    await until(lambda: rulers(three) == [three[2]], "the third rules")
    await asking.more()
    await asking.stop()
    assert [acting for _, acting in claims] == [[]] * len(claims)


async def test_TG2_the_next_one_takes_over_from_two_that_crash_at_once(nodes: Nodes) -> None:
    bus, _ = application()
    five = await nodes.cluster(bus, 5)
    await until(lambda: rulers(five) == five[:1], "the first rules")
    nodes.all = five[2:]
    await asyncio.gather(*(node.close() for node in five[:2]))
    await until(lambda: rulers(five) == [five[2]], "the third rules")
    asking = Asking(five[4])
    await asking.more()
    await asking.stop()
    assert epoch_of(five[2]) > 1


async def test_TG3_a_downed_node_stops_its_coordinator_at_once(nodes: Nodes) -> None:
    bus, _ = application()
    first, second = await nodes.cluster(bus, 2)
    await until(lambda: rulers([first, second]) == [first], "the first rules")
    singleton = first.singletons["counter"]
    singleton.on_membership_ended(gracefully=False)
    assert singleton.coordinator.machine is None
    assert singleton.singleton.state is SingletonState.ENDED


async def test_what_regions_ask_too_early_is_kept_for_the_one_that_is_next(nodes: Nodes) -> None:
    bus, _ = application()
    first, second = await nodes.cluster(bus, 2)
    coordinator = second.singletons["counter"].coordinator
    heard: list[object] = []
    handle = coordinator.handle

    def listen(event: Any) -> None:
        heard.append(event)
        handle(event)

    coordinator.handle = listen  # type: ignore[method-assign]
    early = messages.GetShardHome(("7",))
    coordinator.received(first.me, early)
    assert heard == []
    coordinator.prepare()
    assert [getattr(event, "message", None) for event in heard].count(early) == 1


async def test_B60_a_node_that_hosts_nothing_coordinates_and_hands_over_to_the_next_such(
    nodes: Nodes, claims: list[tuple[int, list[str]]]
) -> None:
    bus, _ = application()
    nodes.cluster_settings = PATIENT
    roles = {"role": "worker", "coordinator_role": "control"}
    workers = [await nodes.start(bus, up=False, roles=("worker",), **roles)]
    await until(lambda: workers[0].members.is_up, "the oldest of all")
    checks = health.readiness(Administration(workers[0]))
    assert checks["coordinator:counter"].detail == (
        "no member coordinates it: none is up with role 'control'"
    )
    assert not checks["coordinator:counter"].ok
    first = await nodes.start(bus, roles=("control",), **roles)
    second = await nodes.start(bus, roles=("control",), **roles)
    workers.append(await nodes.start(bus, roles=("worker",), **roles))
    await nodes.agree(4)
    everybody = list(nodes.all)
    asking = Asking(workers[1])
    await asking.more(30)
    assert rulers(everybody) == [first]
    homes = {node.me: len(node.regions["counter"].host.shards) for node in everybody}
    assert homes[first.me] == homes[second.me] == 0
    assert min(homes[worker.me] for worker in workers) > 0
    before = list(nodes.data.tables["counter"].homes)
    await nodes.leave(first)
    await until(lambda: rulers(everybody) == [second], "the second rules")
    await asking.more()
    await nodes.leave(workers[0])
    await asking.more()
    assert rulers(everybody) == [second]
    await asking.stop()
    assert claims == [(1, []), (2, [])]
    kept = nodes.data.tables["counter"].homes
    assert {kept[shard][0] for shard in before} == {workers[1].me}


async def test_B60_the_next_one_with_the_role_takes_over_from_one_that_crashed(
    nodes: Nodes,
) -> None:
    bus, _ = application()
    roles = {"coordinator_role": "control"}
    worker = await nodes.start(bus, up=False, **roles)
    first = await nodes.start(bus, roles=("control",), **roles)
    second = await nodes.start(bus, roles=("control",), **roles)
    await nodes.agree(3)
    everybody = list(nodes.all)
    await until(lambda: rulers(everybody) == [first], "the first rules")
    nodes.all.remove(first)
    await first.close()
    await until(lambda: rulers(everybody) == [second], "the second rules")
    asking = Asking(worker)
    await asking.more()
    await asking.stop()
    assert epoch_of(second) > 1


async def test_B60_any_node_may_coordinate_a_type_with_a_role(nodes: Nodes) -> None:
    bus, _ = application()
    roles = {"role": "worker", "coordinator_role": "*"}
    first = await nodes.start(bus, **roles)
    worker = await nodes.start(bus, roles=("worker",), **roles)
    await nodes.agree(2)
    asking = Asking(first)
    await asking.more()
    await asking.stop()
    assert rulers([first, worker]) == [first]
    assert not first.regions["counter"].host.shards


async def test_S2_80_the_settings_of_a_node_are_those_of_its_singletons() -> None:
    """The wait for a node that leaves, and the margin after one that was cut off and downed."""
    bus, _ = application()
    bus.entity("other")(type("Other", (Anything,), {}))
    settings = Settings(
        node=NodeSettings(port=free_port(), gossip_port=free_port()),
        cluster=ClusterSettings(
            downing=DowningSettings(down_removal_margin=7.0),
            singleton=SingletonSettings(silence_timeout=30.0, hand_over_retry_interval=60.0),
        ),
    )
    node = Node("shop", bus.types, settings, MemoryStore(MemoryData()))
    await node.start()
    other = Member(NodeId("a", 1, 1), 1, status=Status.UP, up_number=1)
    mine = Member(node.me, 1, status=Status.UP, up_number=2)
    both = MembershipView(node.me, (other, mine))
    leaves = replace(both, members=(replace(other, status=Status.LEAVING), mine))
    cut_off = replace(both, unreachable=(other.node,))
    alone = MembershipView(node.me, (mine,))
    for name, views, due in (
        ("counter", (both, leaves), 40.0),
        ("other", (both, cut_off, alone), 17.0),
    ):
        singleton = node.singletons[name].singleton
        for view in views:
            singleton.handle(MembershipSeen(view), 10.0)
        assert singleton.state is SingletonState.BECOMING_OLDEST
        assert singleton.deadline() == due
    await node.close()
