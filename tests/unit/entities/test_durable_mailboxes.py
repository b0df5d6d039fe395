"""Durable mailboxes: a message is stored before it is handled, and takes effect once, whatever ends
or moves; in whole nodes in one process, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import (
    ConfigError,
    Entity,
    EntityFailed,
    EventSourced,
    LocalProtocolError,
    MailboxFull,
    Rejection,
    ShardBus,
    handler,
)
from shardbus.entities.durable_mailboxes import LIST
from shardbus.testing import TestCluster

bus = ShardBus("mailboxes")
failing: set[int] = set()
"""Numbers whose handler raises."""
calls: list[int] = []
"""Numbers whose handler has begun."""
held: dict[int, asyncio.Event] = {}
"""Numbers whose handler waits."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    failing.clear()
    calls.clear()
    held.clear()


@dataclass
class Refused(Rejection):
    number: int


@dataclass
class Taken:
    numbers: list[int] = field(default_factory=list)


class Handlers(Entity):
    """The handlers of both types."""

    numbers: list[int]

    async def keep(self) -> None:
        """Store the numbers, if the type has state."""


@bus.entity(name="stored", shards=6, durable_mailbox=True)
class Stored(Entity):
    state: Taken

    @handler
    async def add(self, number: int) -> None:
        calls.append(number)
        if number in held:
            await held[number].wait()
        if number in failing:
            raise ValueError(f"{number} fails")
        self.state.numbers.append(number)
        await self.save()

    @handler
    def put(self, number: int) -> None:
        calls.append(number)
        self.state.numbers.append(number)

    @handler
    def refuse(self, number: int) -> None:
        calls.append(number)
        raise Refused(number)

    @handler
    def aside(self, number: int) -> None:
        calls.append(number)
        self.context.stash()

    @handler
    def get(self) -> list[int]:
        return self.state.numbers

    def receive(self, message: object) -> None:
        self.state.numbers.append(-1)


@bus.entity(name="memory", shards=6, durable_mailbox=True)
class Memory(Entity):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def add(self, number: int) -> None:
        calls.append(number)
        self.numbers.append(number)

    @handler
    def get(self) -> list[int]:
        return self.numbers


def left_in_store(cluster: TestCluster) -> list[object]:
    """Return the journals and lists of mailboxes that are in the store."""
    data = cluster.world.store.data
    journals: list[object] = [key for key in data.journals if key[0].startswith("$mailbox/")]
    return journals + [
        key for key, ids in data.remembered.items() if LIST in str(key) and ids.entity_ids
    ]


async def test_tells_and_deliveries_are_stored_handled_and_removed() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        ref = client.ref(Stored, "a")
        for number in range(5):
            await ref.add.tell(number)
        await ref.add.deliver(5)
        await client.tell("stored", "a", "add", 6, ack=True)
        await client.tell(Stored, "a", {"any": "message"}, ack=True)
        assert await ref.get() == [0, 1, 2, 3, 4, 5, 6, -1]
        assert calls == list(range(7))
        assert left_in_store(cluster)
        await cluster.advance(5)
        assert not left_in_store(cluster)
        await ref.add.deliver(7)
        assert await ref.get() == [0, 1, 2, 3, 4, 5, 6, -1, 7]


async def test_a_confirmed_message_outlives_every_node() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        ref = cluster.client().ref(Stored, "a")
        held[1] = asyncio.Event()
        await ref.add.deliver(1)
        await ref.add.deliver(2)
        for node in cluster.nodes:
            await cluster.kill(node)
        held.clear()
        await cluster.add("later")
        await cluster.settle()
        await cluster.advance(5)
        calls_after = list(calls)
        client = await cluster.connect("c2")
        assert await client.ref(Stored, "a").get() == [1, 2]
        assert calls_after == [1, 1, 2]
