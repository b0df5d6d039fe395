"""States that were neither loaded nor saved for `state_ttl` are removed, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.shells.state_expiry import StateExpiry
from shardbus.simulation.nodes.stores import SimStore
from shardbus.testing import TestCluster

bus = ShardBus("shop")


@dataclass
class CartState:
    items: list[str] = field(default_factory=list)


@bus.entity("cart", state_ttl="30s", passivate_after=2, shards=10)
class Cart(Entity):
    state: CartState

    @handler
    async def add(self, item: str) -> int:
        self.state.items.append(item)
        await self.save()
        return len(self.state.items)

    @handler
    def count(self) -> int:
        return len(self.state.items)


@bus.entity("kept", passivate_after=2, shards=10)
class Kept(Entity):
    state: CartState

    @handler
    async def add(self, item: str) -> None:
        self.state.items.append(item)
        await self.save()


def nodes_of(cluster: TestCluster) -> list[Any]:
    return [sim_node.node for sim_node in cluster.world.sim_nodes.values()]  # type: ignore[attr-defined]


def counts(node: Any) -> Any:
    return node.regions["cart"].host.counts


def expired(cluster: TestCluster) -> int:
    return sum(counts(node).expired for node in nodes_of(cluster))


async def test_a_state_lives_for_its_time_after_the_last_save_or_load() -> None:
    async with TestCluster(bus, nodes=2, seed=3) as cluster:
        client = cluster.client()
        for n in range(10):
            await client.ref(Cart, f"c{n}").add("tea")
        await client.ref(Kept, "k").add("tea")
        await cluster.advance(25)
        assert expired(cluster) == 0
        assert await client.ref(Cart, "c7").count() == 1  # a load
        assert await client.ref(Cart, "c8").add("milk") == 2
        await cluster.advance(20)
        assert expired(cluster) == 8
        assert cluster.store.state(Cart, "c0") is None
        assert [len(cluster.store.state(Cart, c).items) for c in ("c7", "c8")] == [1, 2]
        assert await client.ref(Cart, "c0").count() == 0
        await cluster.advance(40)
        assert expired(cluster) == 10
        assert cluster.store.state(Kept, "k") is not None


async def test_the_state_of_a_running_entity_stays() -> None:
    async with TestCluster(bus, nodes=1, seed=4) as cluster:
        client = cluster.client()
        await client.ref(Cart, "busy").add("tea")
        await client.ref(Cart, "idle").add("tea")
        for _ in range(45):
            await cluster.advance(1)
            assert await client.ref(Cart, "busy").count() == 1
        assert cluster.store.state(Cart, "busy") is not None
        assert cluster.store.state(Cart, "idle") is None
        await cluster.advance(25)
        assert cluster.store.state(Cart, "busy") is not None
        await cluster.advance(20)
        assert cluster.store.state(Cart, "busy") is None


async def test_states_of_before_and_of_shards_without_a_home_count_from_the_first_sweep() -> None:
    async with TestCluster(bus, nodes=2, seed=5) as cluster:
        for n in range(30):
            cluster.store.put(Cart, f"c{n}", CartState(["tea"]))
        await cluster.advance(25)
        assert cluster.store.state(Cart, "c0") is not None
        await cluster.advance(20)
        assert all(cluster.store.state(Cart, f"c{n}") is None for n in range(30))
        assert expired(cluster) == 30


async def test_a_store_is_looked_through_once_for_a_sweep_however_many_nodes_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest node lists, and each node removes the states of its own shards."""
    pages: list[SimStore] = []
    page_stored = SimStore.page_stored

    async def counted(store: SimStore, *args: Any) -> Any:
        pages.append(store)
        return await page_stored(store, *args)

    monkeypatch.setattr(SimStore, "page_stored", counted)
    async with TestCluster(bus, nodes=3, seed=8) as cluster:
        client = cluster.client()
        for n in range(60):
            await client.ref(Cart, f"c{n}").add("tea")
        await cluster.advance(50)
        assert expired(cluster) == 60
        assert len(set(pages)) == 1
        assert len(pages) <= 50 / 3
        of_each = [counts(node).expired for node in nodes_of(cluster)]
        assert len(of_each) == 3
        assert all(of_each), "each removed those of its own shards"


async def test_a_coordinator_that_takes_over_goes_on_with_the_sweeps() -> None:
    async with TestCluster(bus, nodes=3, seed=9) as cluster:
        for n in range(30):
            cluster.store.put(Cart, f"c{n}", CartState(["tea"]))
        await cluster.advance(20)
        await cluster.kill(cluster.nodes[0])
        await cluster.advance(60)
        assert all(cluster.store.state(Cart, f"c{n}") is None for n in range(30))


async def test_a_store_that_fails_delays_the_sweep() -> None:
    async with TestCluster(bus, nodes=1, seed=6) as cluster:
        await cluster.client().ref(Cart, "c").add("tea")
        cluster.store.stop()
        await cluster.advance(40)
        cluster.store.start()
        assert cluster.store.state(Cart, "c") is not None
        await cluster.advance(45)
        assert cluster.store.state(Cart, "c") is None


async def test_a_sweep_looks_at_a_bounded_number_per_second() -> None:
    settings = {"sharding.state_sweep_rate": 10, "sharding.types.cart.state_ttl": "5s"}
    async with TestCluster(bus, nodes=1, seed=7, settings=settings) as cluster:
        for n in range(200):
            cluster.store.put(Cart, f"c{n}", CartState(["tea"]))
        await cluster.advance(20)
        assert expired(cluster) == 0
        await cluster.advance(15)
        assert 0 < expired(cluster) <= 150
        await cluster.advance(20)
        assert expired(cluster) == 200


async def test_a_state_stays_while_its_shard_stops() -> None:
    """An entity of it may still run, where only the slow path finds it, or save as it stops."""
    calls: list[str] = []

    async def expire_states(name: str, ids: list[str], now: float, since: float) -> list[str]:
        calls.extend(ids)
        return ids

    shards = {
        "runs": SimpleNamespace(stopping=None),
        "stops": SimpleNamespace(stopping=StopReason.HANDOFF),
    }
    host = SimpleNamespace(
        shards=shards, find=lambda entity_id, shard: None, counts=SimpleNamespace(expired=0)
    )
    region: Any = SimpleNamespace(
        name="cart", host=host, settings=SimpleNamespace(state_ttl=30.0),
        router=SimpleNamespace(shard_of=lambda entity_id: entity_id.partition("/")[0]),
    )  # fmt: skip
    store: Any = SimpleNamespace(expire_states=expire_states)
    gate: Any = SimpleNamespace(closed=False)

    async def ask(node: object, name: str, ids: list[str]) -> None: ...

    expiry = StateExpiry({"cart": region}, store, gate, lambda name: None, ask, lambda: 100.0)
    assert await expiry.expire("cart", ["runs/1", "stops/1"]) == 1
    assert calls == ["runs/1"]
