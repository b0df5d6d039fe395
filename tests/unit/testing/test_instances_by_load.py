"""The number of instances follows the load of a type, on whole nodes in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, Instances, ShardBus, handler
from shardbus.sharding.coordinator import instance_rows
from shardbus.sharding.coordinator.instance_rows import RISES_AFTER_S, SHRINK_AFTER_S
from shardbus.testing import TestCluster

FALLS_AFTER_S = 60.0
"""Shorter than in earnest, for the processor's sake."""
SETTLED_S = 15.0
"""Seconds for a report, for the coordinator to decide, and for rows to start or stop."""


def application(instances: Instances) -> tuple[ShardBus, type[Any]]:
    bus = ShardBus("market")

    @bus.entity("price", shards=4, instances=instances)
    class Price(Entity):
        @handler
        def note(self) -> None: ...

        @handler
        async def wait(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

        @handler
        def where(self) -> int:
            return self.context.instance

    return bus, Price


def count(cluster: TestCluster) -> int:
    """Return the number of instances: only one shard is in use."""
    return sum(len(node.shards("price")) for node in cluster.nodes)


async def test_S3_49_what_is_expected_has_its_instances_before_the_load_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance_rows, "FALLS_AFTER_S", FALLS_AFTER_S)
    hint = 250.0
    bus, price = application(Instances(per_instance=100.0, expected=lambda: hint))
    async with TestCluster(bus, nodes=3) as cluster:
        await cluster.client().ref(price, "ACME").where()
        assert count(cluster) == 1
        await cluster.advance(RISES_AFTER_S + SETTLED_S)
        assert count(cluster) == 3
        hint = 0.0
        await cluster.advance(FALLS_AFTER_S - SETTLED_S)
        assert count(cluster) == 3
        await cluster.advance(SHRINK_AFTER_S + 3 * SETTLED_S)
        assert count(cluster) == 1


@pytest.mark.parametrize("limit", ["per_instance", "waiting_per_instance"])
async def test_S3_49_messages_that_come_or_wait_call_for_more_instances(limit: str) -> None:
    limits: dict[str, Any] = {limit: 10.0}
    bus, price = application(Instances(**limits))
    async with TestCluster(bus, nodes=3) as cluster:
        acme = cluster.client().ref(price, "ACME")
        await acme.where()
        assert count(cluster) == 1
        for _ in range(30 if limit == "waiting_per_instance" else 0):
            await acme.wait.tell(RISES_AFTER_S + SETTLED_S)
        for _ in range(int(RISES_AFTER_S + SETTLED_S)):
            for _ in range(25 if limit == "per_instance" else 0):
                await acme.note.tell()
            await cluster.advance(1.0)
        assert count(cluster) == 3
