"""Where shards go, on real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.ids import shard_of
from tests.loopback.nodes import Nodes, hosts

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
