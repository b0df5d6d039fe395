"""Regions as applications use them: messages that name their entity, and nodes that only send."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import (
    ConfigError,
    Entity,
    Envelope,
    LocalProtocolError,
    ShardBus,
    StartEntity,
    Unhandled,
    handler,
)
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes, blocking_client, hosts, http, ready
from tests.unit.declaring import Anything
from tests.waiting import PATIENCE_S, until

SHARDS = 10


@dataclass
class Get:
    counter_id: int


@dataclass
class EntityEnvelope:
    id: int
    payload: object


def extract_entity_id(message: object) -> str | tuple[str, object] | None:
    """The two ways of the 2.4 documents."""
    match message:
        case EntityEnvelope(id=number, payload=payload):
            return str(number), payload
        case Get(counter_id=number):
            return str(number)
    return None


def extract_shard_id(entity_id: str) -> str:
    return str(int(entity_id) % SHARDS)


class Counter(Entity):
    def __init__(self) -> None:
        self.count = 0

    def receive(self, message: Get | str) -> object:
        match message:
            case "increment":
                self.count += 1
                return None
            case "decrement":
                self.count -= 1
                return None
            case Get():
                return self.count
        return self.unhandled(message)

    @handler
    def where(self) -> str:
        return self.context.node


def application() -> ShardBus:
    bus = ShardBus("shop")
    bus.entity(
        "counter",
        shards=SHARDS,
        extract_entity_id=extract_entity_id,
        extract_shard_id=extract_shard_id,
    )(Counter)
    return bus


# Messages that name their entity


async def test_S2_13_S2_14_TSU21_the_id_is_in_the_message_or_in_an_envelope(nodes: Nodes) -> None:
    bus = application()
    pair = await nodes.cluster(bus, 2)
    bus.attach(pair[1])
    region = bus.region("counter")
    for number in range(30):
        await region.tell(EntityEnvelope(number, "increment"))
        await region.tell(EntityEnvelope(number, "increment"))
        await region.tell(EntityEnvelope(number, "decrement"))
    assert await asyncio.gather(*(region.ask(Get(n)) for n in range(30))) == [1] * 30
    for shard, [node] in hosts(pair, "counter").items():
        ids = node.regions["counter"].host.ids(shard)
        assert {extract_shard_id(i) for i in ids} == {shard}
    assert len(hosts(pair, "counter")) == SHARDS
    bus.attach(None)


async def test_S0_4_a_client_computes_id_and_shard_as_the_nodes_do(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)
    client = await nodes.client()
    region = client.region(Counter)
    await asyncio.gather(*(region.ask(EntityEnvelope(n, "increment")) for n in range(20)))
    relayed = [node.regions["counter"].relayed_messages for node in pair]
    assert await region.ask(EntityEnvelope(7, Get(7))) == 1
    await region.tell(Envelope("7", "increment"))
    assert await region.ask(Get(7), timeout=PATIENCE_S) == 2
    await region.ask(StartEntity("123"))
    assert [node for node in pair if node.regions["counter"].host.find("123", "3")] != []
    assert [node.regions["counter"].relayed_messages for node in pair] == relayed
    stranger = await nodes.client()
    with pytest.raises(ConfigError, match="shard function of its own; name it by its class"):
        await stranger.ask("counter", "7", Get(7))


async def test_the_blocking_client_has_regions_too(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)

    def use() -> list[object]:
        with blocking_client(node) as client:
            region = client.region(Counter)
            region.tell(EntityEnvelope(3, "increment"))
            with pytest.raises(Unhandled, match="knows no such int"):
                region.ask(5)
            return [region.ask(Get(3)), region.ask(Envelope("3", Get(3)), timeout=PATIENCE_S)]

    assert await asyncio.to_thread(use) == [1, 1]


async def test_S4_4_an_unknown_message_is_refused_and_counted_at_its_sender(nodes: Nodes) -> None:
    bus = application()
    pair = await nodes.cluster(bus, 2)
    bus.attach(pair[0])
    region = bus.region("counter")
    with pytest.raises(Unhandled, match="extract_entity_id of 'counter' knows no such str"):
        await region.tell("increment")
    with pytest.raises(Unhandled, match="counter takes no such str"):
        await region.ask(EntityEnvelope(7, "multiply"))
    with pytest.raises(ConfigError, match="failed for the id 'x': ValueError"):
        await region.tell(Envelope("x", "increment"))
    dropped: list[Any] = [node.regions["counter"].host.counts.dropped for node in pair]
    assert sum(counts.get("unhandled", 0) for counts in dropped) == 2
    assert dropped[0]["unhandled"] >= 1
    bus.attach(None)


# Nodes that only send


def shards_of(node: Node) -> set[str]:
    return set(node.regions["counter"].host.shards)


async def visit(node: Node) -> set[str]:
    """The homes of 40 entities, asked from this node."""
    return set(await asyncio.gather(*(node.ref("counter", str(n)).where() for n in range(40))))


async def test_S2_37_TS1_a_proxy_sends_and_never_hosts(nodes: Nodes) -> None:
    """Not even as the oldest, with the coordinator in its own process, and not when others go."""
    bus = application()
    nodes.node_settings = {"proxies": ("counter",)}
    proxy = await nodes.start(bus, rebalance_interval=0.2)
    nodes.node_settings = {}
    first = await nodes.start(bus, rebalance_interval=0.2)
    second = await nodes.start(bus, rebalance_interval=0.2)
    await nodes.agree(3)
    assert await visit(proxy) == {str(first.me), str(second.me)}
    async with http(first) as client:
        rows = (await client.get("/v1/nodes")).json()["nodes"]
        types = (await client.get("/v1/types")).json()["types"]
    assert {row["node"]: row["shards"]["counter"] for row in rows} == {
        str(proxy.me): 0,
        str(first.me): SHARDS // 2,
        str(second.me): SHARDS // 2,
    }
    assert types[0]["coordinator"] == str(proxy.me)
    await nodes.leave(first)
    assert await visit(proxy) == {str(second.me)}
    third = await nodes.start(bus, rebalance_interval=0.2)
    await until(lambda: len(shards_of(third)) == SHARDS // 2, "half of the shards")
    assert await visit(proxy) == {str(second.me), str(third.me)}
    await nodes.leave(proxy)
    assert await visit(third) == {str(second.me), str(third.me)}
    assert shards_of(proxy) == set()


async def test_S2_37_an_application_declares_before_its_start_that_it_only_sends(
    nodes: Nodes,
) -> None:
    host = await nodes.start(application())
    bus = application()
    region = bus.start_proxy("counter")
    proxy = await nodes.start(bus)
    bus.attach(proxy)
    await nodes.agree(2)
    await region.tell(EntityEnvelope(7, "increment"))
    assert await region.ask(Get(7)) == 1
    assert await visit(proxy) == {str(host.me)}
    assert bus.start_proxy(Counter) is not None
    bus.attach(host)
    bus.entity("other")(type("Other", (Anything,), {}))
    with pytest.raises(LocalProtocolError, match="'other' cannot become a proxy now"):
        bus.start_proxy("other")
    bus.attach(None)


async def test_S2_37_a_node_may_host_nothing_at_all(nodes: Nodes) -> None:
    bus = application()
    bus.entity("other")(type("Other", (Anything,), {}))
    nodes.node_settings = {"proxies": ("*",)}
    proxy = await nodes.start(bus)
    assert [kind.hosts for kind in proxy.regions.values()] == [False, False]
    assert ready(proxy)


async def test_a_type_that_a_node_does_not_host_must_exist(nodes: Nodes) -> None:
    nodes.node_settings = {"proxies": ("countre",)}
    with pytest.raises(ConfigError, match=r"no entity type 'countre'; did you mean counter\?"):
        await nodes.start(application())
