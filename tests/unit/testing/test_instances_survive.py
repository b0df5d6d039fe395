"""`Instances(survive=f)`: after f crashes at once, an instance of each entity has a home all the
time, on whole nodes in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest

from shardbus import Entity, Instances, NodeLost, ShardBus, handler
from shardbus.sharding.coordinator.instance_rows import SHRINK_AFTER_S
from shardbus.testing import TestCluster, TestNode

STEP_S, SETTLED_S = 0.001, 3.0
NODES, CRASHES = 5, 2


def application() -> tuple[ShardBus, type[Any]]:
    bus = ShardBus("market")

    @bus.entity("price", shards=1, instances=Instances(survive=lambda n: (n - 1) // 2))
    class Price(Entity):
        @handler
        def where(self) -> int:
            return self.context.instance

    return bus, Price


@pytest.mark.parametrize("dead", [*combinations((1, 2, 3), CRASHES)])
async def test_S3_48_an_instance_is_at_home_all_the_time(dead: tuple[int, int]) -> None:
    bus, price = application()
    async with TestCluster(bus, nodes=NODES, seed=sum(dead)) as cluster:
        acme = cluster.client().ref(price, "ACME")
        assert set((await acme.to("all").where()).values()) == {1, 2, 3}
        for instance in dead:
            await cluster.kill(home(cluster, instance))
        watch = cluster.spawn(watched(cluster, SHRINK_AFTER_S + SETTLED_S))
        for _ in range(int(SHRINK_AFTER_S + SETTLED_S)):
            with suppress(NodeLost):  # until the deaths are known
                await acme.where()
            await cluster.advance(1.0)
        assert await watch == 0
        assert set((await acme.to("all").where()).values()) == {1, 2}  # of three nodes


async def watched(cluster: TestCluster, seconds: float) -> int:
    """Return in how many moments of this time no instance had a home."""
    without = 0
    for _ in range(int(seconds / STEP_S)):
        without += not any(node.shards("price") for node in cluster.nodes)
        await asyncio.sleep(STEP_S)
    return without


def home(cluster: TestCluster, instance: int) -> TestNode:
    return next(node for node in cluster.nodes if f"0~{instance}" in node.shards("price"))
