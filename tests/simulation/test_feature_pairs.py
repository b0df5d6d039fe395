"""Features of entities in pairs, drawn by seeds: what a sender was told has its effect once.

A run draws a kind of entity, options of its type, a sender, and faults. The messages of the sender
are numbered. In the end each number that was confirmed is in the entity once, none is there twice,
and a part of a projection, or the receiver of its deliveries, has the same numbers in the same
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from shardbus import (
    ConfigError,
    Entity,
    EntityFailed,
    EventSourced,
    Passivation,
    Projection,
    ShardBus,
    Unhandled,
    event,
    handler,
)
from shardbus.testing import TestCluster

IDS = ["x/1", "y/1"]
MESSAGES = 12


@dataclass
class Numbers:
    numbers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Put:
    number: int


class Readable(Entity):
    state: Numbers

    @handler
    def numbers(self) -> list[int]:
        return self.state.numbers

    @handler
    def close(self) -> None:
        self.context.stop()


class Sink(Readable):
    @handler
    async def put(self, number: int) -> None:
        self.state.numbers.append(number)
        await self.save()


class Reminding(Readable):
    @handler
    async def put(self, number: int) -> None:
        after = 0.5 + number % 3
        await self.context.remind(f"r{number}", handler="fire", after=after, data=number)
        await self.save()

    @handler
    async def fire(self, number: int) -> None:
        self.state.numbers.append(number)
        await self.save()


class Delivering(Sink):
    @handler
    async def put(self, number: int) -> None:
        self.deliver(self.context.ref("target", self.context.entity_id).put, number)
        await super().put(number)


class Recording(EventSourced):
    state: Numbers

    @event
    def fold(self, event: Put) -> None:
        self.state.numbers.append(event.number)

    @handler
    async def put(self, number: int) -> None:
        await self.persist(Put(number))

    @handler
    def numbers(self) -> list[int]:
        return self.state.numbers

    @handler
    def close(self) -> None:
        self.context.stop()


class View(Projection):
    state: Numbers

    @event
    def on_put(self, event: Put) -> None:
        self.state.numbers.append(event.number)
        self.deliver(self.context.ref("target", self.source_id).put, event.number)

    @handler
    def numbers(self) -> list[int]:
        return self.state.numbers


KINDS: list[type] = [Sink, Reminding, Delivering, Recording]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"remember": True},
    {"durable_mailbox": True},
    {"handoff": "ordered"},
    {"handoff": "drop"},
    {"handoff": "ordered", "carry": True},
    {"stop_message": "close"},
    {"passivation": Passivation.lru(1)},
    {"passivate_after": 0.3},
    {"state_compression": "zlib"},
    {"within": True},
]
SENDERS = ["ask", "deliver", "outbox"]
FAULTS = ["kill", "leave", "add", "store away", "store fails", "full stop"]


def application(kind: type, options: dict[str, Any]) -> tuple[ShardBus, list[type]]:
    """Return an application, and the classes that keep the numbers.

    Raises:
        ConfigError: these features are refused together.
    """
    bus = ShardBus("pairs")

    class Top(Entity):
        @handler
        def ping(self) -> None: ...

    class Box(kind): ...

    class Target(Sink): ...

    if options.pop("within", False):
        outer = {name: options.pop(name) for name in ("handoff",) if name in options}
        bus.entity("top", shards=4, remember="remember" in options, **outer)(Top)
        bus.entity("box", within=Top, **options)(Box)
    else:
        bus.entity("box", shards=4, **options)(Box)
    readers: list[type] = [Box]
    if kind is Recording:

        class Part(View): ...

        bus.projection(of=Box, name="view")(Part)
        readers.append(Part)
    if kind in (Recording, Delivering):
        bus.entity("target", shards=4)(Target)
        readers.append(Target)
    return bus, readers


class Sending:
    """Sends numbers to each entity, and notes those that were confirmed."""

    def __init__(self, cluster: TestCluster, box: type, rng: Random) -> None:
        self.client, self.box, self.rng = cluster.client(), box, rng
        self.confirmed: dict[str, list[int]] = {entity_id: [] for entity_id in IDS}

    async def numbers(self, reader: Any, entity_id: str) -> list[int]:
        """Return the numbers of an entity, of its part of a projection, or of its target."""
        part = issubclass(reader, Projection)
        ref: Any = self.client.ref(reader, reader.id_for(entity_id) if part else entity_id)
        numbers: list[int] = await ref.within(60).numbers()
        return numbers

    async def by_asks(self, entity_id: str) -> None:
        ref: Any = self.client.ref(self.box, entity_id)
        for number in range(MESSAGES):
            while not await self.has_asked(ref, number):
                pass
            self.confirmed[entity_id].append(number)
            await asyncio.sleep(0.2 * self.rng.random())

    async def has_asked(self, ref: Any, number: int) -> bool:
        try:
            await ref.within(120).put.ask(number, key=f"k{number}")
        except Unhandled as dropped:  # in a move, in the mode `drop`
            if not dropped.definite:
                raise
            return False
        except EntityFailed as failed:
            if failed.type != "ResultLost":
                raise
        return True

    async def by_deliveries(self, entity_id: str) -> None:
        ref: Any = self.client.ref(self.box, entity_id)
        for number in range(MESSAGES):
            await ref.put.deliver(number)
            self.confirmed[entity_id].append(number)
            await asyncio.sleep(0.2 * self.rng.random())

    async def by_an_outbox(self, entity_id: str) -> None:
        ref: Any = self.client.ref(self.box, entity_id)
        async with self.client.outbox(entity_id) as outbox:
            for number in range(MESSAGES):
                await outbox.send(ref.put, number)
                self.confirmed[entity_id].append(number)
                await asyncio.sleep(0.2 * self.rng.random())


async def disturb(cluster: TestCluster, fault: str) -> None:
    node = cluster.nodes[0]
    match fault:
        case "kill":
            await cluster.kill(node)
            await cluster.add(node.name)
        case "leave":
            await cluster.leave(node)
            await cluster.add(node.name)
        case "add":
            await cluster.add()
        case "store away":
            cluster.store.stop()
            await cluster.advance(7)
        case "store fails":
            cluster.store.fail(0.3)
            await cluster.advance(1)
        case _:
            names = [node.name for node in cluster.nodes]
            for node in cluster.nodes:
                await cluster.kill(node)
            for name in names:
                await cluster.add(name)
    cluster.store.start()


def run(seed: int) -> str:
    """Run a pair. Returns its features."""
    rng = Random(seed)
    while True:
        kind, sender, options = rng.choice(KINDS), rng.choice(SENDERS), dict[str, Any]()
        for option in rng.sample(OPTIONS, 2):
            options |= option
        try:
            bus, readers = application(kind, options)
            break
        except ConfigError:
            continue  # draw others
    drawn = f"{kind.__name__}, {sender}, {options}"
    faults = rng.sample(FAULTS, 2)

    async def story(cluster: TestCluster) -> None:
        sending = Sending(cluster, readers[0], rng)
        sends = {
            "ask": sending.by_asks,
            "deliver": sending.by_deliveries,
            "outbox": sending.by_an_outbox,
        }
        work = [cluster.spawn(sends[sender](entity_id)) for entity_id in IDS]
        for fault in faults:
            await cluster.advance(rng.random())
            await disturb(cluster, fault)
        for each in work:
            await each
        await cluster.advance(20)
        for entity_id in IDS:
            box, *others = [await sending.numbers(reader, entity_id) for reader in readers]
            why = f"{drawn}, {faults}"
            assert sorted(box) == sorted(sending.confirmed[entity_id]), why
            assert kind is Reminding or box == sorted(box), why
            assert all(other == box for other in others), why

    async def whole() -> None:
        async with TestCluster(bus, nodes=2, seed=seed) as cluster:
            await story(cluster)

    asyncio.run(whole())
    return drawn


@pytest.fixture(autouse=True)
def _log_nothing() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def long(seed: int) -> Any:
    return pytest.param(seed, marks=pytest.mark.long)


@pytest.mark.parametrize("seed", [*range(10), *map(long, range(10, 60))])
def test_each_confirmed_message_has_its_effect_once(seed: int, record_property: Any) -> None:
    record_property("pair", run(seed))
