"""Remembered entities on real nodes: they come back by themselves after a move, a crash, a full
stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import health
from shardbus.errors import NodeLost
from shardbus.node.node import Node
from tests.loopback.nodes import SHORT_CLAIM, Nodes
from tests.markers import long_only
from tests.waiting import until

IDS = [f"page-{i}" for i in range(200)]


def application(shards: int = 12) -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=shards, remember=True)
    class Counter(Entity):
        @handler
        def add(self, amount: int) -> int:
            return amount

        @handler
        def passivate(self) -> None:
            self.context.passivate()

    return bus


def running(nodes: list[Node]) -> list[str]:
    """The entities in memory, on whichever node."""
    hosts = [node.regions["counter"].host for node in nodes]
    return sorted(i for host in hosts for shard in host.shards for i in host.ids(shard))


async def begin(nodes: Nodes, count: int) -> list[Node]:
    nodes.cluster_settings = SHORT_CLAIM
    cluster = await nodes.cluster(application(), count)
    client = await nodes.client()
    answers: list[Any] = await asyncio.gather(*(client.ask("counter", i, "add", 1) for i in IDS))
    assert answers == [1] * len(IDS)
    return cluster


async def test_S2_60_TS1_they_follow_their_shards_when_a_node_leaves(nodes: Nodes) -> None:
    trio = await begin(nodes, 3)
    await nodes.leave(trio[0])
    await until(lambda: running(trio[1:]) == sorted(IDS), "everybody, on the other two")


@pytest.mark.parametrize("number", [0, 2])
async def test_C14_TS1_TS10_they_come_back_on_the_others_when_a_node_dies(
    nodes: Nodes, number: int
) -> None:
    """The first has the coordinator."""
    trio = await begin(nodes, 3)
    lost = trio.pop(number)
    assert running([lost])
    nodes.all.remove(lost)
    lost.cluster.stop()
    await lost.close()
    await until(lambda: running(trio) == sorted(IDS), "everybody, on the survivors")


async def test_B95_TS10_they_come_back_after_everything_was_stopped(nodes: Nodes) -> None:
    pair = await begin(nodes, 2)
    client = await nodes.client()
    await client.call("counter", IDS[0], "passivate")
    await until(lambda: len(nodes.remembered("counter")) == len(IDS) - 1, "the shorter list")
    for node in pair:
        nodes.all.remove(node)
        await node.close()
    again = await nodes.cluster(application(), 2)
    await until(lambda: running(again) == sorted(IDS[1:]), "everybody but one")


@pytest.mark.long
async def test_B95_they_come_back_though_the_table_was_removed(nodes: Nodes) -> None:
    [node] = await begin(nodes, 1)
    nodes.all.remove(node)
    await node.close()
    nodes.data.tables["counter"].homes.clear()
    again = await nodes.cluster(application(), 1)
    await until(lambda: running(again) == sorted(IDS), "everybody")


@pytest.mark.parametrize("shards", [5, *long_only(12, 40)])
async def test_B94_TS11_TSU10_they_find_their_shards_under_another_shard_function(
    nodes: Nodes, shards: int
) -> None:
    """As after `data remove`: some lists have no shard any more, and some ids are on wrong ones."""
    pair = await begin(nodes, 2)
    for node in pair:
        nodes.all.remove(node)
        await node.close()
    table = nodes.data.tables["counter"]
    table.homes.clear()
    table.layout = f"crc32/{shards}"
    again = await nodes.cluster(application(shards), 2)
    await until(lambda: running(again) == sorted(IDS), "everybody")
    router = again[0].regions["counter"].router

    def listed() -> bool:
        lists = nodes.data.remembered.items()
        placed = all(
            {router.shard_of(i) for i in row.entity_ids} <= {shard} for (_, shard), row in lists
        )
        return placed and sorted(nodes.remembered("counter")) == sorted(IDS)

    await until(listed, "each on the list of its shard, and on no other")


async def test_B93_TSU10_TSU21_an_entity_is_started_without_a_message(nodes: Nodes) -> None:
    bus = application()
    pair = await nodes.cluster(bus, 2)
    client = await nodes.client()
    await client.start_entity("counter", "quiet")
    assert running(pair) == ["quiet"]
    assert nodes.remembered("counter") == ["quiet"]
    await client.start_entity("counter", "quiet")
    bus.attach(pair[1])
    await bus.start_entity("counter", "other")
    assert running(pair) == ["other", "quiet"]


async def test_who_is_cut_off_from_the_store_loses_nobody(nodes: Nodes) -> None:
    """Whoever has answered is on the list."""
    trio = await begin(nodes, 3)
    client = await nodes.client(trio[0])
    more = [f"more-{i}" for i in range(100)]
    asks = [asyncio.ensure_future(client.ask("counter", i, "add", 2)) for i in more]
    await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    lost = trio[2]
    nodes.all.remove(lost)
    lost.cluster.stop()
    await lost.close()
    outcomes = await asyncio.gather(*asks, return_exceptions=True)
    assert all(o == 2 or isinstance(o, NodeLost) for o in outcomes)
    answered = {i for i, outcome in zip(more, outcomes, strict=True) if outcome == 2}
    await until(lambda: answered | set(IDS) <= set(running(trio[:2])), "all who had answered")


async def test_N14_a_gauge_says_how_many_are_still_to_start(nodes: Nodes) -> None:
    for node in await begin(nodes, 1):
        nodes.all.remove(node)
        await node.close()
    node = await nodes.start(
        application(),
        entity_recovery_strategy="constant",
        entity_recovery_constant_rate_frequency=3600.0,
    )
    host = node.regions["counter"].host

    def begun() -> bool:
        return host.entities > 0 and host.entities + host.waiting_starts == len(IDS)

    await until(begun, "the lists were read and the first entities started")
    assert host.entities < len(IDS)
    gauge = f'entities_waiting_to_start{{entity_type="counter"}} {len(IDS) - host.entities}.0'
    assert f"shardbus_{gauge}" in (await health.metrics(Administration(node))).body.decode()
