"""Rejections end to end: over real sockets, relayed, from entity to entity, for tells and asks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, Rejection, ShardBus, handler
from shardbus.errors import EntityFailed
from shardbus.wire import rejections
from tests.loopback.nodes import Nodes, blocking_client
from tests.waiting import until


@dataclass
class SoldOut(Rejection):
    left: int
    note: bytes = b""


def application() -> tuple[ShardBus, Any, Any]:
    bus = ShardBus("shop")

    @bus.entity("shop", shards=12)
    class Shop(Entity):
        def __init__(self) -> None:
            self.starts = 1

        @handler
        def order(self, amount: int) -> int:
            if amount > 3:
                raise SoldOut(3, b"\x00")
            return amount

        @handler
        def fail(self) -> None:
            raise ValueError("broken")

        async def receive(self, message: int) -> int:
            return self.order(message)

    @bus.entity("basket", shards=12)
    class Basket(Entity):
        def __init__(self) -> None:
            self.orders = 0

        @handler
        async def order(self, amount: int) -> int:
            self.orders += 1
            return await self.context.ref(Shop, self.context.entity_id).order(amount)

        @handler
        async def order_or(self, amount: int) -> int:
            try:
                return await self.context.ref(Shop, self.context.entity_id).order(amount)
            except SoldOut as refused:
                return -refused.left

        @handler
        def count(self) -> int:
            return self.orders

    return bus, Shop, Basket


IDS = [f"e{n}" for n in range(8)]


async def test_every_way_to_ask_raises_the_very_class(nodes: Nodes) -> None:
    bus, shop, _ = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    for entity_id in IDS:
        for ask in (
            lambda i: client.ref(shop, i).order(4),
            lambda i: client.ask("shop", i, 4),
            lambda i: client.call("shop", i, "order", 4),
            lambda i: nodes.all[0].ref(shop, i).order(4),
        ):
            with pytest.raises(SoldOut) as refused:
                await ask(entity_id)
            assert refused.value == SoldOut(3, b"\x00")
            assert not refused.value.definite
    assert await client.ask_many("shop", [("e1", 4), ("e1", 1)]) == [SoldOut(3, b"\x00"), 1]
    counts = [node.regions["shop"].host.counts for node in nodes.all]
    assert sum(c.failures for c in counts) == 0
    assert sum(c.all_started for c in counts) == len(IDS)


async def test_the_blocking_client_raises_the_very_class(nodes: Nodes) -> None:
    bus, shop, _ = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> None:
        with blocking_client(node) as client:
            ref: Any = client.ref(shop, "a")
            for ask in (lambda: ref.order(4), lambda: client.ask("shop", "a", 4)):
                with pytest.raises(SoldOut) as refused:
                    ask()
                assert refused.value == SoldOut(3, b"\x00")

    await asyncio.to_thread(use)


async def test_what_another_entity_refuses_passes_through_or_is_caught(nodes: Nodes) -> None:
    bus, _, basket = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    for entity_id in IDS:
        ref = client.ref(basket, entity_id)
        with pytest.raises(SoldOut) as refused:
            await ref.order(4)
        assert refused.value == SoldOut(3, b"\x00")
        assert await ref.order_or(4) == -3
        assert await ref.count() == 1  # it was not restarted


async def test_a_process_without_the_class_gets_type_and_message(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _, basket = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    monkeypatch.setattr(rejections, "_class_named", lambda name: None)
    for entity_id in IDS:
        with pytest.raises(Rejection) as refused:
            await client.ref(basket, entity_id).order(4)
        assert type(refused.value) is Rejection
        assert refused.value.type == "SoldOut"
        assert refused.value.message == "left=3, note=b'\\x00'"


async def test_told_messages_that_fail_or_are_refused_are_reported(nodes: Nodes) -> None:
    bus, shop, _ = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    for entity_id in IDS:
        await client.ref(shop, entity_id).fail.tell()
        await client.ref(shop, entity_id).order.tell(4)
        await client.ref(shop, entity_id).order.tell(4)
        with pytest.raises(EntityFailed):
            await client.ref(shop, entity_id).fail()
    await client.flush()
    reported = {"failed": len(IDS), "rejected": 2 * len(IDS)}
    await until(lambda: client.refused_messages == reported, "the reports")
