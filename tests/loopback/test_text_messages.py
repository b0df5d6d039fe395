"""`ask(type, id, "total")` calls the handler of that name if the type has no `receive`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, SchemaError, ShardBus, Unhandled, handler
from tests.loopback.nodes import Nodes, blocking_client
from tests.waiting import until


@dataclass
class Sum:
    total: int


def application() -> tuple[ShardBus, Any, Any]:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=12)
    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        @handler
        def hit(self) -> int:
            self.value += 1
            return self.value

        @handler
        async def total(self) -> Sum:
            return Sum(self.value)

        @handler
        def add(self, amount: int) -> int:
            return amount

    @bus.entity("page", shards=12)
    class Page(Entity):
        @handler
        def total(self) -> str:
            return "handler"

        def receive(self, message: str) -> str:
            return f"receive {message}"

    return bus, Counter, Page


IDS = [f"e{n}" for n in range(6)]


async def test_a_text_calls_the_handler_in_python_as_on_the_command_line(nodes: Nodes) -> None:
    bus, counter, _ = application()
    first, _ = await nodes.cluster(bus, 2)
    client, stranger = await nodes.client(), await nodes.client()
    for entity_id in IDS:
        await stranger.tell("counter", entity_id, "hit")
        await client.tell(counter, entity_id, "hit")
        await first.ref(counter, entity_id).tell("hit")
        assert await client.ask("counter", entity_id, "hit") >= 2
        await until(lambda i=entity_id: _four(client, i), "all hits")
        assert await stranger.ask("counter", entity_id, "total") == {"total": 4}
        assert await client.ask(counter, entity_id, "total") == Sum(4)
        assert await client.call(counter, entity_id, "total") == Sum(4)
        assert await first.ref(counter, entity_id).ask("total") == Sum(4)
    batch = [(entity_id, what) for entity_id in IDS for what in ("hit", "gone", "hit")]
    answers = await client.ask_many("counter", batch)
    assert answers[0::3] == [5] * len(IDS)
    assert all(isinstance(answer, Unhandled) for answer in answers[1::3])
    assert answers[2::3] == [6] * len(IDS)


async def _four(client: Any, entity_id: str) -> bool:
    return bool(await client.call("counter", entity_id, "total") == Sum(4))


async def test_what_names_no_handler_that_takes_it_is_refused(nodes: Nodes) -> None:
    bus, _, _ = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    with pytest.raises(Unhandled, match="counter has no receive, and the message names no handler"):
        await client.ask("counter", "a", "totl")
    with pytest.raises(SchemaError, match="add takes 1 to 1 arguments"):
        await client.ask("counter", "a", "add")
    await client.tell("counter", "a", "totl")
    await until(lambda: client.refused_messages == {"unhandled": 1}, "the report")


async def test_a_type_with_receive_gets_every_text_there(nodes: Nodes) -> None:
    bus, _, page = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    for kind in ("page", page):
        assert await client.ask(kind, "a", "total") == "receive total"
        assert await client.call(kind, "a", "total") == "handler"


async def test_the_blocking_client_calls_the_handler_too(nodes: Nodes) -> None:
    bus, counter, page = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> None:
        with blocking_client(node) as client:
            assert client.ask("counter", "a", "hit") == 1
            assert client.ask(counter, "a", "total") == Sum(1)
            ref: Any = client.ref(counter, "a")
            assert ref.ask("total") == Sum(1)
            assert client.ask(page, "a", "total") == "receive total"

    await asyncio.to_thread(use)
