"""Messages that have no home when their node ends."""

from __future__ import annotations

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.testing import TestCluster

SENT = 8

bus = ShardBus("shop")


@bus.entity(name="order", shards=SENT)
class Order(Entity):
    @handler
    def put(self, number: int) -> None: ...


@bus.entity(name="item", within=Order)
class Item(Entity):
    @handler
    def put(self, number: int) -> None: ...


@pytest.mark.parametrize("nodes", [1, 2])
async def test_each_counts_once_as_undelivered_for_its_own_type(
    nodes: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestCluster(bus, nodes=nodes) as cluster:
        leaving = cluster.nodes[-1]
        node = leaving._process.node
        cluster.store.stop()

        async def send() -> None:
            for number in range(SENT):
                await node.ref(Order, str(number)).put.tell(1)
                await node.ref(Item, f"{number}/1").put.tell(1)

        sending = node.loop.create_task(send())
        await cluster.advance(0.1)
        assert sending.done()
        await cluster.leave(leaving)
        dropped = {name: region.host.counts.dropped for name, region in node.regions.items()}
        assert dropped == {"order": {"undelivered": SENT}, "item": {"undelivered": SENT}}
        said = [r.getMessage() for r in caplog.records if "found no home" in r.getMessage()]
        assert said == [f"{2 * SENT} messages of 'order' found no home before this node ended"]
