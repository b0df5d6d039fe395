"""Leases on real nodes: shards and coordinators that run only while the store lets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import StoreSettings
from shardbus.entities.entity_type import StopReason
from shardbus.ids import shard_of
from shardbus.membership.events import Down, PrepareForShutdown
from shardbus.membership.founding import FOUNDING
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.store.clock import machine_clock
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Lease
from tests.loopback.nodes import Nodes, hosts, ready
from tests.waiting import PATIENCE_S, until

SHARDS, TTL = 6, 6.0
STOPS: list[tuple[str, StopReason]] = []


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=SHARDS, lease_ttl=TTL, lease_retry_interval=0.05)
    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        async def on_stop(self, reason: StopReason) -> None:
            STOPS.append((self.context.entity_id, reason))

        @handler
        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

    return bus


def entity(shard: int) -> str:
    """An entity of that shard."""
    return next(i for i in map(str, range(1000)) if shard_of(i, SHARDS) == str(shard))


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    STOPS.clear()
    async with Nodes() as nodes:
        nodes.store = StoreSettings(timeout=0.1)
        yield nodes


class Stranger:
    """Another owner of leases in the same store."""

    def __init__(self, nodes: Nodes) -> None:
        self._data = nodes.data
        self._store = MemoryStore(nodes.data)
        self._held: dict[str, Lease] = {}

    async def take(self, name: str) -> None:
        """Hold it, whoever has it now."""
        await self._store.start()
        held = self._data.leases.get(name)
        if held is not None:
            held.owner = None
        lease = await self._store.acquire_lease(name, "stranger", 1000.0)
        assert lease is not None
        self._held[name] = lease

    async def give_back(self, name: str) -> None:
        await self._store.release_lease(self._held.pop(name))


def owners(nodes: Nodes) -> dict[str, str | None]:
    """Who holds the lease of each shard."""
    leases = nodes.data.leases.items()
    return {n.rpartition("/")[2]: lease.owner for n, lease in leases if n.startswith("shard/")}


def at_home(nodes: Nodes) -> bool:
    """Every shard runs in one place, under the lease of its node."""
    homes = hosts(nodes.all, "counter")
    held = owners(nodes)
    return len(homes) == SHARDS and all(
        len(where) == 1 and held[shard] == str(where[0].me) for shard, where in homes.items()
    )


async def touch(nodes: Nodes) -> list[int]:
    """Ask an entity of each shard."""
    client = await nodes.client()
    return [await client.ask("counter", entity(shard), "add", 1) for shard in range(SHARDS)]


async def test_TSU12_a_shard_starts_once_its_lease_is_to_be_had(nodes: Nodes) -> None:
    stranger = Stranger(nodes)
    await stranger.take("shard/counter/3")
    node = await nodes.start(application(), use_lease="shards")
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ask("counter", entity(3), "add", 1))
    assert await client.ask("counter", entity(4), "add", 1) == 1
    await until(lambda: node.records.notes.get(("counter", "lease_refused")), "a refused lease")
    assert hosts([node], "counter").keys() == {"4"}
    assert not waits.done()
    await stranger.give_back("shard/counter/3")
    assert await waits == 1
    assert owners(nodes) == {"3": str(node.me), "4": str(node.me)}


@pytest.mark.long
async def test_B59_a_shard_that_moves_takes_its_lease_along(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus, use_lease="shards")
    await touch(nodes)
    second = await nodes.start(bus, use_lease="shards")
    await nodes.agree(2)
    await until(lambda: second.regions["counter"].host.shards and at_home(nodes), "the balance")
    await nodes.leave(second)
    await touch(nodes)
    assert at_home(nodes)
    assert set(owners(nodes).values()) == {str(first.me)}
    await nodes.leave(first)
    assert set(owners(nodes).values()) == {None}, "given back when they stopped"


@pytest.mark.long
async def test_TSU12_a_shard_whose_lease_is_lost_stops_and_starts_again_when_it_is_back(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application(), use_lease="shards")
    assert await touch(nodes) == [1] * SHARDS
    before = node.regions["counter"].host.shards["3"].fence
    stranger = Stranger(nodes)
    await stranger.take("shard/counter/3")
    await until(lambda: "3" not in node.regions["counter"].host.shards, "the shard's end")
    assert [*STOPS] == [(entity(3), StopReason.FAILURE)]
    assert node.records.notes[("counter", "lease_lost")] == 1
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ask("counter", entity(3), "add", 1))
    assert await client.ask("counter", entity(2), "add", 1) == 2
    assert not waits.done()
    await stranger.give_back("shard/counter/3")
    assert await waits == 1, "a new incarnation"
    assert node.regions["counter"].host.shards["3"].fence > before


@pytest.mark.long
async def test_B59_a_shard_that_lost_its_lease_runs_again_though_nobody_sends_to_it(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application(), use_lease="shards")
    await touch(nodes)
    stranger = Stranger(nodes)
    await stranger.take("shard/counter/3")
    await until(lambda: "3" not in node.regions["counter"].host.shards, "the shard's end")
    await stranger.give_back("shard/counter/3")
    await until(lambda: at_home(nodes), "the shard's return")


def jump(node: Node, seconds: float) -> Callable[[], float]:
    """The node's processor stood still for so long: its clock says so, and no timer has fired."""
    return lambda: machine_clock() + seconds


@pytest.mark.long
async def test_B59_a_node_that_wakes_up_late_stops_its_shards_before_it_handles_anything(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application(), use_lease="shards")
    assert await touch(nodes) == [1] * SHARDS
    kind = node.regions["counter"]
    assert kind.shard_leases.leases is not None
    kind.shard_leases.leases.clock = jump(node, 10 * TTL)
    assert await touch(nodes) == [1] * SHARDS, "new incarnations, under new leases"
    assert node.records.notes[("counter", "lease_lost")] == SHARDS
    assert at_home(nodes)


async def test_TG4_a_coordinator_begins_once_its_lease_is_to_be_had(nodes: Nodes) -> None:
    stranger = Stranger(nodes)
    await stranger.take("singleton/counter")
    node = await nodes.start(application(), up=False, use_lease="both")
    await until(lambda: node.records.notes.get(("counter", "lease_refused")), "a refused lease")
    assert not ready(node)
    assert node.singletons["counter"].coordinator.machine is None
    await stranger.give_back("singleton/counter")
    await until(lambda: ready(node), "readiness")
    assert await touch(nodes) == [1] * SHARDS


async def test_TG4_a_coordinator_that_lost_its_lease_stops_and_begins_anew_when_it_is_back(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application(), use_lease="singleton")
    await touch(nodes)
    coordinator = node.singletons["counter"].coordinator
    assert coordinator.machine is not None
    before = coordinator.machine.epoch
    stranger = Stranger(nodes)
    await stranger.take("singleton/counter")
    await until(lambda: coordinator.machine is None, "its end")
    assert await touch(nodes) == [2] * SHARDS, "known homes work without it"
    await stranger.give_back("singleton/counter")

    def begun_anew() -> bool:
        return coordinator.machine is not None and coordinator.machine.epoch > before

    await until(begun_anew, "the next one")
    assert owners(nodes) == {}, "shards have no leases here"


async def test_TG4_a_paused_coordinator_decides_nothing_when_it_wakes_up(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2, use_lease="singleton")
    singleton = first.singletons["counter"]
    assert singleton._leases is not None
    singleton._leases.clock = jump(first, 10 * TTL)
    client = await nodes.client(second)
    assert await client.ask("counter", entity(1), "add", 1) == 1
    assert first.records.notes[("counter", "lease_lost")] == 1
    assert first.regions["counter"].router.region.epoch > 1, "the one that answered is another"


async def test_TG4_the_oldest_gives_the_lease_back_when_it_leaves(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2, use_lease="singleton")
    assert nodes.data.leases["singleton/counter"].owner == str(first.me)
    await nodes.leave(first)
    await until(lambda: ready(second), "the next coordinator")
    lease = nodes.data.leases["singleton/counter"]
    assert lease.owner == str(second.me)
    assert lease.counter == 2
    assert second.records.notes.get(("counter", "lease_refused")) is None, "it had not to wait"


async def test_TG4_the_lease_goes_on_when_the_oldest_is_downed(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2, use_lease="both")
    await touch(nodes)
    second.cluster.post(Down(first.me))
    await until(first.membership.stopped.done, "the downed node's end")
    await first.close()
    nodes.all.remove(first)
    await until(lambda: ready(second), "the next coordinator")
    assert nodes.data.leases["singleton/counter"].owner == str(second.me)
    await touch(nodes)
    assert at_home(nodes)


async def test_B100_a_cluster_that_stops_as_a_whole_gives_every_lease_back(nodes: Nodes) -> None:
    node = await nodes.start(application(), use_lease="both")
    await touch(nodes)
    nodes.all.remove(node)
    node.cluster.post(PrepareForShutdown())
    await asyncio.wait_for(node.membership.cluster_stops, PATIENCE_S)
    assert await shutdown.leave(node, lambda text: None)
    assert set(owners(nodes).values()) == {None}
    await node.close()
    assert nodes.data.leases["singleton/counter"].owner is None


async def test_B100_a_node_that_closes_gives_every_lease_back(nodes: Nodes) -> None:
    node = await nodes.start(application(), use_lease="both")
    await touch(nodes)
    nodes.all.remove(node)
    await node.close()
    leases = {name: lease.owner for name, lease in nodes.data.leases.items()}
    assert leases.pop(FOUNDING) is not None, "a node that has not left may be one of several"
    assert set(leases.values()) == {None}
