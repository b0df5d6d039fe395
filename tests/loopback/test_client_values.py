"""Replicated values for clients: a node with three replicas, and clients of both kinds."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.values import ClientData, NodeValues
from shardbus.config.settings import DataSettings
from shardbus.data import Counter, ReplicatedData, Set
from shardbus.errors import (
    ConfigError,
    LocalProtocolError,
    NodeLost,
    StoreUnavailable,
    ValueRefused,
)
from shardbus.node.node import Node
from shardbus.replication.versions import DataChange, DataValue, Dot
from tests.loopback.nodes import Nodes, blocking_client
from tests.replicas import Replicas

bus = ShardBus("shop")


@bus.entity("page")
class Page(Entity):
    @handler
    def read(self) -> None:
        """Do nothing."""


@pytest.fixture
async def node(nodes: Nodes, replicas: Replicas) -> Node:
    nodes.open_store = replicas.store
    return await nodes.start(bus)


@pytest.fixture
async def client(nodes: Nodes, node: Node) -> AsyncClient:
    return await nodes.client(node)


def of_node(node: Node) -> ReplicatedData:
    return ReplicatedData(node.store, DataSettings())


async def test_a_client_has_the_calls_of_a_node(client: AsyncClient, node: Node) -> None:
    values, beside = client.data, of_node(node)
    assert await values.get("rate") is None
    first = await values.put("rate", {"eur": 1.09}, w="all")
    assert await beside.get("rate") == await values.get("rate", r="all") == first
    second = await beside.put("rate", 1.1, after=first)
    both = await values.put("rate", 1.2, after=first)
    assert sorted([both.data, *both.conflicts]) == [1.1, 1.2]
    assert (await values.put("rate", 1.3)).conflicts == ()
    assert second.data == 1.1
    for side in (values, beside):
        await side.update("hits", Counter, lambda hits: hits.add(2))
        await side.update("tags", Set, lambda tags: tags.add("a"))
    hits, tags = await values.get("hits"), await values.get("tags")
    assert hits is not None
    assert tags is not None
    assert (hits.data, tags.data) == (4, {"a"})
    assert await values.keys() == ["hits", "rate", "tags"]
    assert await values.delete("rate")
    assert not await values.delete("rate")
    assert await values.keys("r") == []
    with pytest.raises(ValueRefused) as refused:
        await values.put("hits", 1)
    assert (refused.value.reason, refused.value.detail) == ("kind", "counter")
    with pytest.raises(ConfigError, match="3 replicas"):
        await values.get("hits", r=4)
    with pytest.raises(ConfigError, match="no number of replicas"):
        await values.get("hits", r="most")


async def test_a_client_watches_values_until_it_is_closed(client: AsyncClient, node: Node) -> None:
    beside = of_node(node)
    await beside.put("rate:eur", 1)
    await beside.put("other", 1)
    async with aclosing(client.data.watch("rate:")) as changes:

        async def following() -> tuple[str, Any]:
            key, value = await anext(changes)
            return key, value and value.data

        assert await following() == ("rate:eur", 1)
        await beside.put("rate:usd", 2)
        assert await following() == ("rate:usd", 2)
        await beside.delete("rate:eur")
        assert await following() == ("rate:eur", None)
        await client.close()
        with pytest.raises(LocalProtocolError):
            await following()


async def test_a_thread_has_the_same_calls(node: Node) -> None:
    def use() -> None:
        with blocking_client(node) as client:
            values = client.data
            first = values.put("rate", 1.09)
            assert values.get("rate", r="all") == first
            assert values.put("rate", 1.1, after=first, w="all").data == 1.1
            assert values.update("hits", Counter, lambda hits: hits.add(3)).data == 3
            assert values.keys() == ["hits", "rate"]
            changes = values.watch("r")
            assert next(changes)[0] == "rate"
            assert values.delete("rate")
            assert next(changes) == ("rate", None)
            changes.close()
            assert values.get("rate") is None

    await asyncio.to_thread(use)


async def test_versions_that_no_replica_has_given_are_refused(
    client: AsyncClient, node: Node
) -> None:
    values = client.data._values
    for change in (
        DataChange("r", seen=((1, 2**60),)),
        DataChange("r", base=DataValue(((1, 2**60),), ())),
        DataChange("r", base=DataValue((), (Dot(1, 2**60, "r"),))),
        DataChange("", drops=((2**63, 1),)),
        DataChange("unknown"),
    ):
        with pytest.raises(ConfigError):
            await values.write("rate", change, "")
    with pytest.raises(ConfigError, match="no step"):
        await values._step("forget", "rate", "", None)
    assert await of_node(node).get("rate", r="all") is None


async def test_a_node_with_another_store_refuses(nodes: Nodes) -> None:
    client = await nodes.client(await nodes.start(bus))
    with pytest.raises(ConfigError, match="need the store inside the cluster"):
        await client.data.get("rate")
    with pytest.raises(ConfigError, match="need the store inside the cluster"):
        await anext(client.data.watch("rate"))


async def test_a_write_without_an_answer_is_in_doubt_and_is_not_repeated() -> None:
    asked = list[object]()

    async def ask(*arguments: object) -> Any:
        asked.append(arguments[1])
        if arguments[1] == "get":
            return {"done": [[], []]}
        raise NodeLost("its node is gone")

    data = ClientData(NodeValues(ask, 0.3, lambda: False))
    with pytest.raises(StoreUnavailable) as unanswered:
        await data.put("rate", 1)
    assert not unanswered.value.definite
    assert asked == ["get", "write"]
    asked.clear()
    with pytest.raises(StoreUnavailable) as unread:
        await data.keys()
    assert unread.value.definite
    assert len(asked) > 1, "a read is repeated"
