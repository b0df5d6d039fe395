"""Entities with a state in a real store that carry it when their shard moves, on real nodes: the
carried state is their last state, and where it is lost the store's state counts.

A move may lawfully lose the carried state. Then the entity starts by a message instead, which its
node counts, so that every comparison is exact."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.errors import ShardBusError
from shardbus.node.node import Node
from shardbus.store.opening import open_store
from tests.loopback.nodes import Nodes
from tests.loopback.test_sharding import crash, gone
from tests.waiting import PATIENCE_S, until

STILL = {"rebalance_interval": 3600.0, "retry_interval": 0.2}
"""No shard moves for balance in between."""
IDS = [str(n) for n in range(16)]
SAVED, CHANGED, VIEWS = 10, 11, 3
LAST = (CHANGED, VIEWS)
"""The memory of an entity: a state that it has not saved, and a number beside it."""
STORED = (SAVED, 0)
"""The memory of an entity that starts from the store."""


@dataclass
class Amount:
    value: int = 0


class Tab(Entity):
    """Stops when its gate opens. `stops`: those whose `on_stop` runs. `late`: the outcome of the
    saves at its end."""

    state: Amount
    stops: ClassVar[list[str]] = []
    late: ClassVar[list[str]] = []
    gate: ClassVar[asyncio.Event]

    def __init__(self) -> None:
        self.views = 0

    async def on_stop(self, reason: StopReason) -> None:
        self.stops.append(self.context.entity_id)
        waited = not self.gate.is_set()
        with contextlib.suppress(asyncio.CancelledError):
            await self.gate.wait()
        if waited:
            await self.gate.wait()
            try:
                await self.save()
                self.late.append("saved")
            except ShardBusError as error:
                self.late.append(type(error).__name__)

    @handler
    async def write(self, value: int) -> None:
        self.state.value = value
        await self.save()

    @handler
    def change(self, value: int, views: int) -> None:
        self.state.value, self.views = value, views

    @handler
    def show(self) -> tuple[int, int]:
        return self.state.value, self.views

    def dehydrate(self) -> bytes:
        return b"%d" % self.views

    def rehydrate(self, data: bytes) -> None:
        self.views = int(data)


def application() -> ShardBus:
    bus = ShardBus("shop")
    order = bus.entity("order", shards=8, handoff="ordered", carry=True)(type("Order", (Tab,), {}))
    bus.entity("item", within=order, carry=True)(type("Item", (Tab,), {}))
    return bus


@pytest.fixture(params=["sqlite", "redis"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Nodes]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.db"
    else:
        url = request.getfixturevalue("redis_url")
    Tab.stops.clear()
    Tab.late.clear()
    Tab.gate = asyncio.Event()
    Tab.gate.set()
    async with Nodes() as nodes:
        nodes.open_store = lambda: open_store(url, cluster="shop", timeout=30.0)
        yield nodes


def items(ids: Iterable[str]) -> list[str]:
    return [f"{i}/a" for i in ids]


async def ask(node: Node, kind: str, method: str, ids: list[str], *args: int) -> list[Any]:
    refs = [node.ref(kind, i).within(PATIENCE_S) for i in ids]
    return await asyncio.gather(*(getattr(ref, method)(*args) for ref in refs))


async def fill(node: Node) -> None:
    """Every entity has saved something, and has something else in memory since then."""
    for kind, ids in (("order", IDS), ("item", items(IDS))):
        await ask(node, kind, "write", ids, SAVED)
        await ask(node, kind, "change", ids, CHANGED, VIEWS)


def running(node: Node, kind: str) -> set[str]:
    return {i for ids in node.region_state(kind).values() for i in ids}


def started(nodes: Iterable[Node], kind: str, cause: str) -> int:
    return sum(node.regions[kind].host.counts.started.get(cause, 0) for node in nodes)


async def shown(node: Node, kind: str, ids: list[str]) -> dict[str, tuple[int, int]]:
    answers = await ask(node, kind, "show", ids)
    return {i: tuple(row) for i, row in zip(ids, answers, strict=True)}


async def test_S3_80_they_have_what_they_had_last_also_those_that_live_within_others(
    nodes: Nodes,
) -> None:
    first, *rest = await nodes.cluster(application(), 3, **STILL)
    await fill(first)
    moving = {kind: running(first, kind) for kind in ("order", "item")}
    assert moving["item"] == set(items(sorted(moving["order"])))
    before = {kind: started(rest, kind, "message") for kind in moving}
    await nodes.leave(first)
    for kind, ids in (("order", IDS), ("item", items(IDS))):
        shown_orders = await shown(rest[0], kind, ids)
        lost = {i for i, order in shown_orders.items() if order != LAST}
        assert lost <= moving[kind]
        assert all(shown_orders[i] == STORED for i in lost), "neither is older than the store's"
        assert started(rest, kind, "message") - before[kind] == len(lost)
    orders, within = running(rest[0], "order"), running(rest[0], "item")
    assert within == set(items(orders)), "both have moved to the same home"
    await ask(rest[0], "order", "write", IDS, 20)
    await crash(nodes, rest[1])
    await gone(rest[1], rest[:1])
    shown_orders = await shown(rest[0], "order", IDS)
    assert {value for value, _ in shown_orders.values()} == {20}, "it saves as any other activation"


async def test_S3_80_the_old_home_dies_while_it_stops_them(nodes: Nodes) -> None:
    first, *rest = await nodes.cluster(application(), 3, **STILL)
    await fill(first)
    moving = running(first, "order")
    Tab.gate.clear()
    leaving = asyncio.ensure_future(nodes.leave(first))
    await until(lambda: set(Tab.stops) & set(items(moving)), "items that stop")
    leaving.cancel()
    await asyncio.wait({leaving})
    nodes.all.append(first)
    await crash(nodes, first)
    await gone(first, rest)
    Tab.gate.set()
    for kind, ids in (("order", IDS), ("item", items(IDS))):
        orders = await shown(rest[0], kind, ids)
        dead = {i for i in ids if i.partition("/")[0] in moving}
        assert {i: order for i, order in orders.items() if order != LAST} == dict.fromkeys(
            dead, STORED
        )
        assert started(rest, kind, "carried") == 0


async def test_S3_80_the_new_home_dies_with_what_it_got(nodes: Nodes) -> None:
    """Nobody has saved it, so the store's state counts again."""
    first, second, third = await nodes.cluster(application(), 3, **STILL)
    await fill(first)
    stays = running(third, "order")
    await nodes.leave(first)
    # Some of the shards that the first one hosted may have gone to the third.
    came = running(third, "order") - stays
    await crash(nodes, second)
    await gone(second, [third])
    orders = await shown(third, "order", IDS)
    assert {i for i, order in orders.items() if order == LAST} == stays | came
    assert {order for order in orders.values() if order != LAST} <= {STORED}


async def test_S3_80_one_that_is_cut_off_carries_nothing_and_saves_no_more(nodes: Nodes) -> None:
    slow = {**STILL, "handoff_timeout": 1.0}
    first, second = await nodes.cluster(application(), 2, **slow)
    await fill(first)
    moving = running(first, "order")
    Tab.gate.clear()
    leaving = asyncio.ensure_future(nodes.leave(first))
    await until(lambda: set(items(moving)) <= set(Tab.stops), "items that stop")
    orders = await shown(second, "order", sorted(moving))
    assert orders == dict.fromkeys(moving, STORED)
    await ask(second, "order", "write", sorted(moving), 20)
    Tab.gate.set()
    await leaving
    await until(lambda: len(Tab.late) >= len(moving), "the late saves")
    assert "saved" not in Tab.late
    again = await nodes.start(application(), **slow)
    await nodes.leave(second)
    after = await shown(again, "order", sorted(moving))
    assert {value for value, _ in after.values()} == {20}
