"""The shard table by gossip between real nodes: all have it, and moves and deaths reach all."""

from __future__ import annotations

import asyncio

import pytest

from shardbus import UnknownEntityType
from shardbus.admin.administration import Administration
from shardbus.admin.pages import shards as shard_pages
from shardbus.cluster import Cluster, PartitionTable
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes
from tests.loopback.test_placement import SHARDS, application
from tests.waiting import until

IDS = [str(number) for number in range(200)]


def homes_at(node: Node) -> dict[str, object]:
    """Where shards run, as this node's region knows it."""
    region = node.regions["counter"].router.region
    homes = {shard: region.home_of(shard) for shard in map(str, range(SHARDS))}
    return {shard: home.node for shard, home in homes.items() if home is not None}


async def settled(nodes: list[Node], hosts: int) -> PartitionTable:
    """Wait until every shard has a home, no change is pending, and all have that table."""
    cluster = Cluster(nodes[0])

    def done() -> bool:
        table = cluster.table("counter")
        if table is None or table.changes or len(table.homes) < SHARDS:
            return False
        return len(set(table.homes.values())) == hosts

    await until(done, "a table without changes")
    return await cluster.seen("counter")


async def test_S3_45_all_nodes_learn_all_homes_and_clients_get_them_at_once(nodes: Nodes) -> None:
    three = await nodes.cluster(application(), 3, homes="gossip")
    client = await nodes.client(three[2])
    assert await asyncio.gather(*(client.ask("counter", i, "add", 1) for i in IDS)) == [1] * 200
    table = await settled(three, 3)
    assert table.nodes == tuple(sorted(node.me for node in three))
    for node in three:
        assert homes_at(node) == table.homes
        assert Cluster(node).table("counter") == table
    other = await nodes.client(three[1])
    await other.ask("counter", IDS[0], "add", 1)
    region = other._regions._by_name["counter"].router.region
    homes = {s: home.node for s in table.homes if (home := region.home_of(s)) is not None}
    assert homes == table.homes, "with the first request"


async def test_S3_54_after_a_leave_and_a_join_all_have_the_new_table(nodes: Nodes) -> None:
    bus = application()
    three = await nodes.cluster(bus, 3, homes="gossip")
    client = await nodes.client(three[0])
    await asyncio.gather(*(client.ask("counter", i, "add", 1) for i in IDS))
    before = await settled(three, 3)
    await nodes.leave(three.pop())
    after = await settled(three, 2)
    assert after.version > before.version
    assert [homes_at(node) for node in three] == [after.homes] * 2
    page = await shard_pages.partitions(Administration(three[1]), "counter")
    assert page["gossip"] == {
        "epoch": after.version[0],
        "version": after.version[1],
        "behind": [],
        "pending": [],
    }
    three.append(await nodes.start(bus, homes="gossip"))
    table = after
    while three[2].me not in table.nodes:  # a shard may get a home before the node has registered
        epoch, version = table.version
        table = await Cluster(three[0]).seen("counter", (epoch, version + 1))
    assert Cluster(three[2]).table("counter") is not None
    assert {await client.ask("counter", i, "add", 1) for i in IDS} <= {1, 2}


async def test_without_gossip_there_is_no_table_and_nobody_waits_for_ever(nodes: Nodes) -> None:
    node = await nodes.start(application())
    cluster = Cluster(node)
    assert cluster.table("counter") is None
    with pytest.raises(TimeoutError):
        await cluster.seen("counter", timeout=0.05)
    with pytest.raises(UnknownEntityType):
        await cluster.seen("basket")
    assert (await shard_pages.partitions(Administration(node), "counter"))["gossip"] is None
