"""The counter of Akka's sharding documents: commands, events, and a value made of its events.

Each `Increment` and `Decrement` becomes an event, which is stored before it is applied. A counter
that was passivated, moved, or lost with its node is recovered from its events. A counter stops when
it is idle for `IDLE_S`, or after a `Stop`; no message is lost by that.

A message names its counter in one of two ways: `Get` holds the number; other messages are wrapped
in an `EntityEnvelope`, of which the counter receives the payload.

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
"""Events that are stored before they are folded into one number. Each save writes all of them."""

bus = ShardBus("counters")


@dataclass(frozen=True)
class Increment:
    """Command: add one."""


@dataclass(frozen=True)
class Decrement:
    """Command: subtract one."""


@dataclass(frozen=True)
class Get:
    """Query for the value."""

    counter_id: int


@dataclass(frozen=True)
class Stop:
    """Command: passivate the counter."""


@dataclass(frozen=True)
class EntityEnvelope:
    """A message for a counter that does not hold the counter's number."""

    id: int
    payload: object


@dataclass(frozen=True)
class CounterChanged:
    """Event: the value changed."""

    delta: int


@dataclass
class EventLog:
    """The stored state of a counter: a value, and the events since."""

    snapshot: int = 0
    events: list[CounterChanged] = field(default_factory=list)


def extract_entity_id(message: object) -> str | tuple[str, object] | None:
    """Return the id of the counter, and the payload of an envelope."""
    match message:
        case EntityEnvelope(number, payload):
            return str(number), payload
        case Get(number):
            return str(number)
        case _:
            return None


def extract_shard_id(entity_id: str) -> str:
    """Put neighbouring numbers into different shards."""
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
        """Apply an event, when it is new and when the counter is recovered."""
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
    """Increment three times, decrement once, and print the value."""
    async with AsyncClient(address, cluster=bus.name) as client:
        counters = client.region(Counter)
        for command in (Increment(), Increment(), Increment(), Decrement()):
            await counters.tell(EntityEnvelope(number, command))
        print(await counters.ask(Get(number)))
        await counters.tell(EntityEnvelope(number, Stop()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
