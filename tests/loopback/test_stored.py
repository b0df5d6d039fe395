"""Clients list stored ids, page by page through the nodes, and call a handler of each."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import ConfigError, Entity, ShardBus, handler
from shardbus.client import stored as stored_module
from shardbus.errors import EntityFailed, Unhandled, UnknownEntityType
from shardbus.ids import shard_of
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save
from tests.loopback.nodes import Nodes, blocking_client
from tests.records import replace
from tests.virtual_time import virtual

SHARDS = 10
bus = ShardBus("shop")


@dataclass
class CartState:
    total: int = 0


@bus.entity("cart", shards=SHARDS)
class Cart(Entity):
    state: CartState

    @handler
    async def add(self, amount: int) -> int:
        if self.context.entity_id.endswith("13"):
            raise ValueError("unlucky")
        self.state.total += amount
        await self.save()
        return self.state.total


@bus.entity("bare", shards=SHARDS)
class Bare(Entity):
    @handler
    def ping(self) -> None: ...


async def fill(nodes: Nodes, count: int) -> set[str]:
    store = MemoryStore(nodes.data)
    await store.start()
    ids = [f"c-{n:03}" for n in range(count)]
    saves = [
        Save("cart", shard_of(key, SHARDS), key, 0, b"\x80", n) for n, key in enumerate(ids, 1)
    ]
    saves.append(Save("other", "1", "secret", 0, b"\x80", count + 1))
    assert set(await store.save_states(saves)) == {None}
    return set(ids)


async def test_every_stored_id_comes_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.client.asynchronous.PAGE", 7)
    await nodes.cluster(bus, 2)
    ids = await fill(nodes, 60)
    client = await nodes.client()
    keys = [key async for key in client.stored(Cart)]
    assert len(keys) == len(ids)
    assert set(keys) == ids
    some = {key async for key in client.stored("cart", prefix="c-01")}
    assert some == {key for key in ids if key.startswith("c-01")}
    of_shard = {key async for key in client.stored(Cart, shard="3")}
    assert of_shard == {key for key in ids if shard_of(key, SHARDS) == "3"}
    assert [key async for key in client.stored(Bare)] == []


async def test_a_lost_contact_costs_no_id(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.client.asynchronous.PAGE", 5)
    first, second = await nodes.cluster(bus, 2)
    ids = await fill(nodes, 40)
    client = await nodes.client(first, second)
    keys = set()
    async for key in client.stored(Cart):
        keys.add(key)
        if len(keys) == 12:
            [contact] = [node for node in (first, second) if node.me == client.contact]
            nodes.all.remove(contact)
            await contact.close()
    assert keys == ids


async def test_a_client_lists_only_what_it_may_use(nodes: Nodes) -> None:
    node = await nodes.start(bus)
    client = await nodes.client()
    await fill(nodes, 3)
    with pytest.raises(UnknownEntityType, match="entity type 'other'"):
        [key async for key in client.stored("other")]
    with pytest.raises(EntityFailed, match="has no shard '99'"):
        [key async for key in client.stored(Cart, shard="99")]
    [session] = node.dispatcher.clients.values()
    session.permissions = replace(session.permissions, types=frozenset({"bare"}))
    assert [key async for key in client.stored(Bare)] == []
    with pytest.raises(UnknownEntityType, match="may not use 'cart'"):
        [key async for key in client.stored(Cart)]
    with pytest.raises(UnknownEntityType, match="may not ask"):
        await client._ask_contact(("$node", "leave"), ())


async def test_a_setting_forbids_lists_to_clients(nodes: Nodes) -> None:
    nodes.security = replace(nodes.security, list_states=False)
    await nodes.start(bus)
    client = await nodes.client()
    with pytest.raises(Unhandled, match="does not answer 'stored' to clients"):
        [key async for key in client.stored(Cart)]


async def test_each_stored_entity_is_called(nodes: Nodes) -> None:
    await nodes.cluster(bus, 2)
    ids = await fill(nodes, 40)
    client = await nodes.client()
    reported: dict[str, Exception] = {}
    result = await client.for_each(
        Cart, "add", 2, rate=5000, on_error=lambda key, error: reported.update({key: error})
    )
    assert (result.done, result.failed) == (len(ids) - 1, 1)
    assert result.errors == reported
    assert isinstance(reported["c-013"], EntityFailed)
    result = await client.for_each(Cart, lambda cart: cart.add(3), rate=5000, prefix="c-00")
    assert result.done == 10
    assert await client.call(Cart, "c-000", "add", 0) == 5
    assert await client.call(Cart, "c-020", "add", 0) == 2
    result = await client.for_each("cart", "add", 1, rate=5000, prefix="c-00", tell=True)
    assert result.done == 10
    await client.flush()
    assert await client.call(Cart, "c-000", "add", 0) == 6


async def test_bounds_are_checked(nodes: Nodes) -> None:
    await nodes.start(bus)
    client = await nodes.client()
    for wrong in ({"rate": 0}, {"at_once": 0}, {"rate": -1.0}):
        with pytest.raises(ConfigError, match="both must be positive"):
            await client.for_each(Cart, "add", 1, **wrong)  # type: ignore[arg-type]


async def test_threads_list_and_call_as_well(nodes: Nodes) -> None:
    node = await nodes.start(bus)
    ids = await fill(nodes, 30)
    results: dict[str, Any] = {}

    def work() -> None:
        with blocking_client(node) as client:
            results["ids"] = list(client.stored(Cart))
            results["named"] = client.for_each(Cart, "add", 1, rate=5000)
            results["called"] = client.for_each(
                Cart, lambda cart: cart.add(2), rate=5000, prefix="c-00"
            )
            results["threads"] = client.for_each(
                Cart, lambda cart: names.append(threading.current_thread().name), rate=5000
            )

    names: list[str] = []
    await asyncio.to_thread(work)
    assert set(results["ids"]) == ids
    assert (results["named"].done, results["named"].failed) == (len(ids) - 1, 1)
    assert results["called"].done == 10
    assert "shardbus" not in names


@virtual
async def test_calls_begin_at_their_rate_and_so_many_run_at_a_time() -> None:
    loop, running, most = asyncio.get_running_loop(), 0, 0

    async def ids() -> Any:
        for n in range(20):
            yield f"e{n}"

    async def call(entity_id: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.015)
        running -= 1

    began = loop.time()
    result = await stored_module.call_each(ids(), call, rate=100, at_once=2, on_error=None)
    assert result.done == 20
    assert most == 2
    assert 0.19 <= loop.time() - began < 0.25
