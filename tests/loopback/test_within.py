"""Entities that live within others, on real nodes: one home, one move, the inner ones first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shardbus import ConfigError, Entity, ShardBus, StopReason, handler
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes, hosts, http
from tests.loopback.test_sharding import FAST, crash, gone
from tests.waiting import PATIENCE_S, until

IDS = [str(n) for n in range(24)]


@dataclass
class Amount:
    value: int = 0


class Logged(Entity):
    """Counts, saves, and logs its starts and ends."""

    state: Amount
    log: ClassVar[list[tuple[str, str, str]]] = []
    gate: ClassVar[asyncio.Event]

    async def on_start(self) -> None:
        self.log.append((self.context.entity_type, self.context.entity_id, "start"))

    async def on_stop(self, reason: StopReason) -> None:
        self.log.append((self.context.entity_type, self.context.entity_id, "stop"))

    @handler
    async def add(self) -> int:
        self.state.value += 1
        await self.save()
        return self.state.value

    @handler
    def where(self) -> str:
        return f"{self.context.node} {self.context.shard_id}"


class Slow(Logged):
    """Stops when its gate opens."""

    async def on_stop(self, reason: StopReason) -> None:
        self.log.append((self.context.entity_type, self.context.entity_id, "stopping"))
        await self.gate.wait()
        await super().on_stop(reason)


def application(handoff: str = "buffer") -> ShardBus:
    bus = ShardBus("shop")
    order = bus.entity("order", shards=8, handoff=handoff)(type("Order", (Logged,), {}))
    item = bus.entity("item", within=order)(type("Item", (Slow,), {}))
    bus.entity("note", within=item)(type("Note", (Logged,), {}))
    return bus


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    Logged.log.clear()
    Slow.gate = asyncio.Event()
    Slow.gate.set()
    async with Nodes() as nodes:
        yield nodes


async def ask(node: Node, kind: str, method: str, ids: list[str]) -> list[Any]:
    refs = [node.ref(kind, i).within(PATIENCE_S) for i in ids]
    return await asyncio.gather(*(getattr(ref, method)() for ref in refs))


def inner(ids: list[str], parent: str) -> list[str]:
    return [f"{i}/{parent}" for i in ids]


async def test_S3_6_an_entity_lives_where_its_parent_lives(nodes: Nodes) -> None:
    three = await nodes.cluster(application(), 3, **FAST)
    for node in three:
        orders = await ask(node, "order", "where", IDS)
        assert await ask(node, "item", "where", inner(IDS, "3")) == orders
        assert await ask(node, "note", "where", inner(inner(IDS, "3"), "a")) == orders
    assert len({where.split()[0] for where in orders}) == 3, "all three nodes host orders"


async def test_S3_5_parent_and_child_are_two_entities(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)
    assert await ask(node, "order", "add", ["7"]) == [1]
    assert await ask(node, "item", "add", ["7/3", "7/4"]) == [1, 1]
    assert await ask(node, "item", "add", ["7/3"]) == [2]
    assert await ask(node, "order", "add", ["7"]) == [2]


async def test_they_move_together_and_the_innermost_stops_first(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2, **FAST)
    notes = inner(inner(IDS, "3"), "a")
    for kind, ids in (("order", IDS), ("item", inner(IDS, "3")), ("note", notes)):
        assert await ask(first, kind, "add", ids) == [1] * len(IDS)
    moving = [i for i in IDS if first.regions["order"].host.find(i, shard_of(first, i))]
    assert 0 < len(moving) < len(IDS)
    Logged.log.clear()
    Slow.gate.clear()
    leaving = asyncio.ensure_future(nodes.leave(first))
    await until(lambda: count("item", "stopping") == len(moving), "items that stop")
    assert count("note", "stop") == len(moving), "notes have stopped before items begin to"
    assert count("order", "stop") == 0, "orders wait for their items"
    Slow.gate.set()
    await leaving
    for kind, ids in (("order", IDS), ("item", inner(IDS, "3")), ("note", notes)):
        assert await ask(second, kind, "add", ids) == [2] * len(IDS)
    for i in moving:
        order = [kind for kind, who, what in Logged.log if what == "stop" and top(who) == i]
        assert order == ["note", "item", "order"]


async def test_after_a_crash_all_of_them_have_the_same_new_home(nodes: Nodes) -> None:
    three = await nodes.cluster(application(), 3, **FAST)
    assert await ask(three[0], "order", "add", IDS) == [1] * len(IDS)
    assert await ask(three[0], "item", "add", inner(IDS, "3")) == [1] * len(IDS)
    await crash(nodes, three[2])
    await gone(three[2], three[:2])
    assert await ask(three[0], "item", "add", inner(IDS, "3")) == [2] * len(IDS)
    assert await ask(three[1], "order", "add", IDS) == [2] * len(IDS)
    orders = await ask(three[0], "order", "where", IDS)
    assert await ask(three[1], "item", "where", inner(IDS, "3")) == orders
    assert hosts(three[:2], "item") == hosts(three[:2], "order")


@pytest.mark.parametrize("handoff", ["buffer", "ordered"])
async def test_clients_reach_them_by_class_and_by_name_while_they_move(
    nodes: Nodes, handoff: str
) -> None:
    bus = application(handoff)
    first, second = await nodes.cluster(bus, 2, **FAST)
    by_name = await nodes.client(first, second)
    assert (
        await by_name.call("note", "7/3/a", "where")
        == (await ask(first, "order", "where", ["7"]))[0]
    )
    note = bus.types["note"].cls
    by_class = await nodes.client(first, second)
    notes = inner(inner(IDS, "3"), "b")
    sent = 0

    async def send() -> None:
        nonlocal sent
        while not leaving.done() or sent == 0:
            await asyncio.gather(*(by_class.ref(note, i).add() for i in notes))
            sent += 1

    leaving = asyncio.ensure_future(asyncio.sleep(0))
    await send()
    leaving = asyncio.ensure_future(nodes.leave(first))
    await send()
    await leaving
    assert await asyncio.gather(*(by_name.call("note", i, "add") for i in notes)) == [sent + 1] * 24


async def test_pages_show_them_and_refuse_commands_about_their_table(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)
    await ask(node, "item", "add", ["7/3"])
    async with http(node) as page:
        types = {row["type"]: row for row in (await page.get("/v1/types")).json()["types"]}
        assert types["note"]["within"] == ["item", "order"]
        assert (await page.get("/v1/where/item/7%2F3")).json()["running"] is True
        shards = [(await page.get(f"/v1/shards/{t}")).json()["shards"] for t in ("item", "order")]
        assert [(row["shard"], row["node"]) for row in shards[0]] == [
            (row["shard"], row["node"]) for row in shards[1]
        ]
        assert (await page.get("/metrics")).status_code == 200
        assert "coordinator:item" not in (await page.get("/readyz")).json()["checks"]


async def test_an_id_without_a_parent_is_refused_where_it_is_used(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)
    for wrong in ("3", "/3", "7/"):
        with pytest.raises(ConfigError, match="names no parent"):
            await node.ref("item", wrong).add()
    client = await nodes.client(node)
    with pytest.raises(ConfigError, match="names no parent"):
        await client.call("item", "3", "where")


def shard_of(node: Node, entity_id: str) -> str:
    return node.regions["order"].router.shard_of(entity_id)


def count(kind: str, what: str) -> int:
    return sum(row[0] == kind and row[2] == what for row in Logged.log)


def top(entity_id: str) -> str:
    return entity_id.partition("/")[0]
