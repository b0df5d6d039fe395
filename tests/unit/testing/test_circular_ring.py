"""Types that are placed on one ring, on whole nodes in virtual time: the example of the
specification as an operator sees it."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.admin.pages.shards import partitions
from shardbus.testing import TestCluster

SIZES = {"A": 4, "B": 3, "C": 5}


def application() -> tuple[ShardBus, dict[str, type[Any]]]:
    bus = ShardBus("example")

    class Partition(Entity):
        @handler
        def where(self) -> str:
            return self.context.entity_id

    classes: dict[str, type[Any]] = {}
    for name, instances in SIZES.items():
        cls = type(name, (Partition,), {})
        classes[name] = bus.entity(name, shards=1, instances=instances, allocation="circular")(cls)
    return bus, classes


async def ordinals(cluster: TestCluster) -> dict[str, list[int]]:
    """The output of `shardbus partitions TYPE --ordinals` for the only shard of each type."""
    by_node: dict[str, list[int]] = {}
    for name in SIZES:
        answer = await partitions(cluster.nodes[0]._process.admin, name)
        (partition,) = answer["partitions"]
        places = [
            answer["nodes"].index(instance["node"]) + 1 for instance in partition["instances"]
        ]
        by_node[name] = places
    return by_node


@pytest.mark.long
async def test_S3_51_and_S3_53_as_an_operator_sees_them() -> None:
    """Ten nodes, and later five more, which come behind the second, fourth, fifth, seventh and
    eighth of them in order."""
    bus, classes = application()
    async with TestCluster(bus, nodes=9) as cluster:
        await cluster.add("node9x")
        client = cluster.client()
        for cls in classes.values():
            assert await client.ref(cls, "x").where() == "x"
            await cluster.settle()
        placed = {"A": [1, 2, 3, 4], "B": [5, 6, 7], "C": [8, 9, 10, 1, 2]}
        assert await ordinals(cluster) == placed
        for number in (2, 4, 5, 7, 8):
            await cluster.add(f"node{number}x")
        await cluster.settle()
        await cluster.advance(30.0)
        later = {"A": [1, 2, 4, 5], "B": [7, 9, 10], "C": [12, 14, 15, 1, 2]}
        assert await ordinals(cluster) == later, "every instance is where it was"
