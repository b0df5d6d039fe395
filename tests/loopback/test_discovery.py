"""Nodes that find each other by the store or by a name, over real sockets: one cluster arises,
however they start."""

from __future__ import annotations

import asyncio

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.seeds import DnsName, SeedList
from shardbus.config.settings import ClusterSettings
from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.membership.founding import FOUNDING
from shardbus.membership.registrations import address_in
from shardbus.node.node import Node
from shardbus.shells.discovery import Discovery
from shardbus.store import contact_registry
from shardbus.store.memory import MemoryData, MemoryStore
from tests.loopback.nodes import QUICK, Nodes, ready
from tests.markers import long_only
from tests.ports import free_port
from tests.records import replace
from tests.waiting import until

FOUND = replace(QUICK, discovery_interval=0.1, founding_claim=5.0)


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=4)
    class Counter(Entity):
        @handler
        def add(self, amount: int) -> int:
            return amount

    return bus


async def start_at_once(nodes: Nodes, bus: ShardBus, count: int) -> list[Node]:
    nodes.node_settings = {"seeds": ("store",)}
    return list(await asyncio.gather(*(nodes.start(bus, up=False) for _ in range(count))))


def founders(nodes: list[Node]) -> set[int]:
    """The clusters that these nodes are in, by the numbers of their founders."""
    return {node.view.epochs.get(FOUNDING, 0) for node in nodes if node.view is not None}


@pytest.mark.parametrize("times", [2, *long_only(15)])
async def test_five_nodes_that_start_at_once_form_one_cluster(times: int) -> None:
    for _ in range(times):
        async with Nodes(FOUND) as nodes:
            started = await start_at_once(nodes, application(), 5)
            await nodes.agree(5)
            assert len(founders(started)) == 1


async def test_a_later_node_joins_and_its_registration_ends_with_it() -> None:
    async with Nodes(FOUND) as nodes:
        bus = application()
        await start_at_once(nodes, bus, 2)
        await nodes.agree(2)
        late = await nodes.start(bus)
        await nodes.agree(3)
        store = nodes.open_store()
        await store.start()
        address = late.me.address

        async def registered() -> set[Address | None]:
            return {address_in(entry) for entry in await contact_registry.entries(store)}

        assert address in await registered()
        await nodes.leave(late)
        assert address not in await registered()
        await nodes.agree(2)


@pytest.mark.parametrize("seeds", [("store",), ()], ids=["store", "addresses"])
async def test_B144_a_node_that_may_not_found_joins_the_one_that_may(
    seeds: tuple[str, ...],
) -> None:
    async with Nodes(replace(FOUND, new_cluster=False)) as nodes:
        port = free_port()
        first_seed = (f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
        nodes.node_settings = {"seeds": seeds or first_seed, "port": port}
        bus = application()
        only_joins = await nodes.start(bus, up=False)
        nodes.cluster_settings = FOUND
        _, other = first_seed[1].split(":")
        nodes.node_settings = {"seeds": seeds or (first_seed[1], first_seed[0]), "port": int(other)}
        founder = await nodes.start(bus)
        await nodes.agree(2)
        assert founder.view is not None
        oldest = founder.view.oldest()
        assert oldest is not None
        assert oldest.node == founder.me != only_joins.me


async def test_a_cluster_that_stops_in_good_order_leaves_no_claim() -> None:
    """So that the next start waits for nothing."""
    async with Nodes(replace(FOUND, founding_claim=3600.0)) as nodes:
        bus = application()
        (first,) = await start_at_once(nodes, bus, 1)
        await until(lambda: ready(first), "readiness")
        await nodes.leave(first)
        await nodes.start(bus)
        await nodes.agree(1)


async def test_the_address_of_a_dead_node_is_removed() -> None:
    data = MemoryData()
    store = MemoryStore(data)
    await store.start()
    await contact_registry.add(store, "10.9.9.9:7355 4")
    published: list[tuple[Address, ...]] = []

    def look(contacts: tuple[Address, ...]) -> bool:
        published.append(contacts)
        return True

    quick = ClusterSettings(discovery_interval=0.01, founding_claim=1.0)
    me = Address("127.0.0.1", 7355)
    discovery = Discovery(SeedList(store=True), me, store, quick, look)
    discovery.start()
    await until(lambda: bool(published) and published[-1] == (me,), "only the living")
    assert published[0] == (Address("10.9.9.9", 7355), me)
    left = await contact_registry.entries(store)
    assert {address_in(entry) for entry in left} == {me}
    await discovery.close()
    assert not await contact_registry.entries(store)


async def test_every_address_of_a_name_is_a_contact() -> None:
    answers = [("10.0.0.2", "10.0.0.1"), OSError("no such name"), ("10.0.0.3",)]
    published: list[tuple[Address, ...]] = []

    def look_up(name: str) -> tuple[str, ...]:
        assert name == "shop"
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def look(contacts: tuple[Address, ...]) -> bool:
        published.append(contacts)
        return True

    seeds = SeedList(names=(DnsName("shop"),))
    quick = ClusterSettings(discovery_interval=0.01, founding_claim=1.0)
    me, store = Address("10.0.0.1", 7355), MemoryStore(MemoryData())
    await store.start()
    discovery = Discovery(seeds, me, store, quick, look, look_up)
    discovery.start()
    expected = (Address("10.0.0.3", 7355),)
    await until(lambda: bool(published) and published[-1] == expected, "the new address")
    assert published[0] == (Address("10.0.0.1", 7355), Address("10.0.0.2", 7355))
    assert not await contact_registry.entries(store), "registered, though nobody reads it"
    await discovery.close()


async def test_a_store_that_does_not_answer_reports_no_contacts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(MemoryStore):
        async def page_remembered(self, *args: object) -> tuple[list[str], str | None]:
            raise StoreUnavailable("no answer", definite=False)

    published: list[tuple[Address, ...]] = []

    def look(contacts: tuple[Address, ...]) -> bool:
        published.append(contacts)
        return True

    quick = ClusterSettings(discovery_interval=0.01, founding_claim=1.0)
    store = Silent(MemoryData())
    await store.start()
    discovery = Discovery(SeedList(store=True), Address("h", 1), store, quick, look)
    discovery.start()
    await until(lambda: "looking for contacts failed" in caplog.text, "the warning")
    assert not published
    await discovery.close()
