"""A real node watches its entities for a moment: their work, and their waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from shardbus import Entity, ShardBus, handler
from shardbus.admin.entity_watch import LOOKS, watch
from shardbus.admin.slowness import EntityFigures
from shardbus.errors import StoreError
from shardbus.node.node import Node
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save
from tests.loopback.nodes import Nodes
from tests.waiting import until


@dataclass
class Total:
    amount: int = 0


class HeldStore(MemoryStore):
    """A store that answers saves once it may."""

    gate: asyncio.Event

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        await self.gate.wait()
        return list(await super().save_states(saves))


class Page(Entity):
    state: Total
    gate: asyncio.Event
    thread_gate: threading.Event

    @handler
    async def wait(self) -> None:
        await self.gate.wait()

    @handler
    async def reach(self, other: str) -> None:
        await self.context.ref("page", other).wait()

    @handler
    async def add(self) -> None:
        self.state.amount += 1
        await self.save()

    @handler(thread=True)
    def block(self) -> None:
        self.thread_gate.wait()

    @handler
    def get(self) -> int:
        return self.state.amount


async def seen(node: Node, entity_id: str) -> EntityFigures:
    region = node.regions["page"]
    return await watch(node, region, region.router.shard_of(entity_id), entity_id)


async def still(node: Node, entity_id: str) -> EntityFigures:
    """The look at an entity that has come to the place where it waits."""
    figures: list[EntityFigures] = []

    async def rests() -> bool:
        figures.append(await seen(node, entity_id))
        now = figures[-1]
        return now.busy == LOOKS and not now.moved and set(now.waits.values()) <= {LOOKS}

    await until(rests, f"{entity_id} at rest")
    return figures[-1]


async def test_N21_a_home_sees_what_a_handler_waits_for() -> None:
    bus = ShardBus("shop")
    bus.entity("page", shards=4)(Page)
    Page.gate, HeldStore.gate, Page.thread_gate = (
        asyncio.Event(),
        asyncio.Event(),
        threading.Event(),
    )
    async with Nodes() as nodes:
        nodes.open_store = lambda: HeldStore(nodes.data)
        node = await nodes.start(bus)
        host = node.regions["page"].host
        assert (await seen(node, "none")).life == ""
        assert await node.ref(Page, "idle").get() == 0
        idle = await seen(node, "idle")
        assert (idle.life, idle.busy, idle.looks, idle.moved) == ("running", 0, LOOKS, False)
        assert (idle.handlers[0].about, idle.sampled, idle.shard_part) == ("get", 1, 1.0)
        assert idle.store.loads.count == 1

        sending = [
            node.ref(Page, "own").wait(),
            node.ref(Page, "asks").reach("own"),
            node.ref(Page, "saves").add(),
            node.ref(Page, "thread").block(),
        ]
        try:
            ids = ("own", "asks", "saves", "thread")
            await until(lambda: all(i in host.active and host.active[i].task for i in ids), "work")
            waiter, asks, saves, thread = [await still(node, i) for i in ids]
            assert (waiter.method, waiter.busy, waiter.moved, waiter.waits) == (
                "wait",
                LOOKS,
                False,
                {},
            )
            assert "in wait" in waiter.stack[0]
            assert (waiter.mailbox, waiter.mailbox_max) == (
                1,
                node.regions["page"].settings.mailbox,
            )
            assert (asks.method, asks.waits) == ("reach", {"page 'own'": LOOKS})
            assert (saves.method, saves.waits) == ("add", {"store": LOOKS})
            assert saves.store.save_under_way > 0.0
            assert (thread.method, thread.waits) == ("block", {"thread": LOOKS})
        finally:  # a thread that waits would keep this process from ending
            for gate in (Page.gate, HeldStore.gate, Page.thread_gate):
                gate.set()
        await asyncio.gather(*sending)
        after = await seen(node, "saves")
        assert (after.busy, after.store.saves.count, after.store.save_under_way) == (0, 1, 0.0)
        assert [watched.about for watched in after.handlers] == ["add"]
        assert (after.store.saves.count, after.store.loads.count) == (1, 5)
        assert after.store.all.count >= 6
