"""The counter of Akka's sharding documents: commands, events, and a value made of its events.

`Increment` and `Decrement` become an event each, which is in the store before it counts. A counter
that was passivated, moved or lost with its node is made of its events again. Idle ones stop by
themselves after `IDLE_S`, or when they are told to `Stop`; neither costs a message.

A message names its counter in one of two ways: `Get` holds the number itself, and whatever does not
is put into an `EntityEnvelope`, of which the counter receives the payload.

python -m examples.event_counter tcp://127.0.0.1:7355 NUMBER    counts up by two and prints it
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field

from shardbus import AsyncClient, Entity, ShardBus

SHARDS = 100
IDLE_S = float(os.environ.get("COUNTER_IDLE", "120"))
SNAPSHOT_AFTER = 1000
"""So many events are folded into one number: each save writes what there is."""

bus = ShardBus("counters")


@dataclass(frozen=True)
class Increment:
    """Command: one up."""


@dataclass(frozen=True)
class Decrement:
    """Command: one down."""


@dataclass(frozen=True)
class Get:
    """Question for the value."""

    counter_id: int


@dataclass(frozen=True)
class Stop:
    """Command: leave the memory."""


@dataclass(frozen=True)
class EntityEnvelope:
    """A message for a counter that does not say so itself."""

    id: int
    payload: object


@dataclass(frozen=True)
class CounterChanged:
    """Event."""

    delta: int


@dataclass
class EventLog:
    """What is stored of a counter: its value at some time, and the events since."""

    snapshot: int = 0
    events: list[CounterChanged] = field(default_factory=list)


def extract_entity_id(message: object) -> str | tuple[str, object] | None:
    """For whom a message is, and what of it arrives there."""
    match message:
        case EntityEnvelope(number, payload):
            return str(number), payload
        case Get(number):
            return str(number)
        case _:
            return None


def extract_shard_id(entity_id: str) -> str:
    """Neighbouring numbers in different shards."""
    return str(int(entity_id) % SHARDS)


@bus.entity(
    name="Counter",
    shards=SHARDS,
    passivate_after=IDLE_S,
    extract_entity_id=extract_entity_id,
    extract_shard_id=extract_shard_id,
)
class Counter(Entity):
    """One counter."""

    state: EventLog

    async def on_start(self) -> None:
        self.count = self.state.snapshot
        for event in self.state.events:
            self.update(event)

    def update(self, event: CounterChanged) -> None:
        """What an event means, now and whenever the counter is recovered."""
        self.count += event.delta

    async def persist(self, event: CounterChanged) -> None:
        """Store the event, then apply it."""
        log = self.state
        log.events.append(event)
        if len(log.events) >= SNAPSHOT_AFTER:
            self.state = EventLog(snapshot=self.count + event.delta)
        await self.save()
        self.update(event)

    async def receive(self, message: Increment | Decrement | Get | Stop) -> int | None:
        match message:
            case Increment():
                await self.persist(CounterChanged(+1))
            case Decrement():
                await self.persist(CounterChanged(-1))
            case Get():
                return self.count
            case Stop():
                self.context.passivate()
        return None


async def main(address: str, number: int) -> None:
    """Three up, one down."""
    async with AsyncClient(address, cluster=bus.name) as client:
        counters = client.region(Counter)
        for command in (Increment(), Increment(), Increment(), Decrement()):
            await counters.tell(EntityEnvelope(number, command))
        print(await counters.ask(Get(number)))
        await counters.tell(EntityEnvelope(number, Stop()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
