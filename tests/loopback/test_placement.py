"""Where shards go, on real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.errors import ConfigError, Refused
from shardbus.ids import shard_of
from shardbus.runtime.admin import Admin
from shardbus.runtime.node import Node
from tests.loopback.nodes import Nodes, hosts
from tests.ports import free_port
from tests.waiting import until

SHARDS = 12


def application(**declared: object) -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=SHARDS, **declared)
    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        @handler
        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

    return bus


def entity(shard: int) -> str:
    """An entity of that shard."""
    return next(i for i in map(str, range(10_000)) if shard_of(i, SHARDS) == str(shard))


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        yield nodes


async def touch(nodes: Nodes, shards: range) -> None:
    """Ask an entity of each of these."""
    client = await nodes.client()
    for shard in shards:
        await client.ask("counter", entity(shard), "add", 1)


async def test_TS20_new_shards_go_to_the_node_with_the_highest_version(nodes: Nodes) -> None:
    bus = application()
    nodes.own["version"] = "1.9.0"
    old = [await nodes.start(bus) for _ in range(2)]
    await touch(nodes, range(4))
    nodes.own["version"] = "1.10.0"
    new = await nodes.start(bus)
    await nodes.agree(3)
    await touch(nodes, range(4, SHARDS))
    assert hosts([new], "counter").keys() == {str(shard) for shard in range(4, SHARDS)}
    await nodes.leave(old[1])
    await touch(nodes, range(SHARDS))
    found = hosts([old[0], new], "counter")
    assert len(found) == SHARDS
    assert sum(where == [old[0]] for where in found.values()) == 2, "nothing came back to it"


def home(nodes: Nodes, shard: int) -> Node | None:
    """Where the shard runs, if it runs in one place."""
    found = hosts(nodes.all, "counter").get(str(shard), [])
    return found[0] if len(found) == 1 else None


async def at(nodes: Nodes, shard: int, node: Node) -> None:
    await until(lambda: home(nodes, shard) is node, f"shard {shard} at {node.me}")


async def test_TS18_a_shard_lives_where_somebody_said(nodes: Nodes) -> None:
    bus = application(allocation="external")
    first, second = await nodes.cluster(bus, 2)
    later = f"127.0.0.1:{free_port()}"
    bus.attach(first)
    places = bus.external_allocation("counter")
    await places.set_all({"1": second.me, "2": second.me.address, "3": later})
    await touch(nodes, range(4))
    assert home(nodes, 1) is home(nodes, 2) is second
    assert home(nodes, 3) in (first, second), "nobody is there yet, and nobody waits"
    await places.set("1", str(first.me))
    await at(nodes, 1, first)
    nodes.own["port"] = int(later.rpartition(":")[2])
    third = await nodes.start(bus)
    await at(nodes, 3, third)
    await places.unset("3")
    assert await places.places() == {"1": first.me.address, "2": second.me.address}


async def test_B69_places_outlive_the_coordinator_and_a_full_stop(nodes: Nodes) -> None:
    bus = application(allocation="external")
    trio = await nodes.cluster(bus, 3)
    await Admin(trio[1]).place("counter", {"5": str(trio[2].me), "6": "127.0.0.1:1"})
    await nodes.leave(trio[0])
    told = await until(lambda: listed(trio[1]), "the next coordinator")
    assert told == {"5": str(trio[2].me.address), "6": "127.0.0.1:1"}
    await touch(nodes, range(SHARDS))
    assert home(nodes, 5) is trio[2]
    ports = [node.me.port for node in trio[1:]]
    for node in trio[1:]:
        await node.close()
    nodes.all.clear()
    for port in ports:
        nodes.own["port"] = port
        await nodes.start(bus)
    await touch(nodes, range(SHARDS))
    await at(nodes, 5, nodes.all[1])


async def listed(node: Node) -> dict[str, str] | None:
    """The places that a node tells of; None while there is no coordinator."""
    try:
        rows = (await Admin(node).places("counter"))["places"]
    except Refused:
        return None
    return {row["shard"]: row["place"] for row in rows}  # type: ignore[attr-defined]


async def test_S319_a_shard_is_not_placed_where_its_strategy_would_not_leave_it(
    nodes: Nodes,
) -> None:
    first, second = await nodes.cluster(application(), 2)
    for node in (first, second):
        with pytest.raises(Refused, match="move the shard back"):
            await Admin(node).place("counter", {"1": str(second.me)})
        with pytest.raises(ConfigError, match="no shard '12'"):
            await Admin(node).place("counter", {"12": str(second.me)})
    assert await listed(second) == {}
