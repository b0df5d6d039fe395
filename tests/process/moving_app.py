"""An application with each kind of data that a store keeps, for a move to another store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shardbus import Entity, EventSourced, Projection, ShardBus, event, handler
from shardbus.delivery import WorkQueue

bus = ShardBus("lab")


@dataclass(frozen=True)
class Deposited:
    cents: int


@dataclass
class Balance:
    cents: int = 0
    got: list[int] = field(default_factory=list)


@bus.entity(name="account", shards=8, snapshot_after=4, events_kept=1)
class Account(EventSourced):
    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.cents += event.cents

    @handler
    async def deposit(self, cents: int) -> None:
        await self.persist(Deposited(cents))

    @handler
    def balance(self) -> int:
        return self.state.cents


@bus.projection(of=Account, name="total")
class Total(Projection):
    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.got.append(self.event_number)

    @handler
    def numbers(self) -> list[int]:
        return self.state.got


@bus.entity(name="jobs", shards=8)
class Jobs(WorkQueue[str]):
    pass


@bus.entity(name="shop", shards=8, remember=True)
class Shop(Entity):
    """Pays a till, which is shut on the first store."""

    state: Balance

    @handler
    async def sell(self, cents: int) -> int:
        self.state.cents += cents
        self.deliver(self.context.ref(Till, "till").put, cents)
        await self.save()
        return self.state.cents

    @handler
    async def add(self, cents: int) -> None:
        self.state.cents += cents
        await self.save()

    @handler
    def cents(self) -> int:
        return self.state.cents


@bus.entity(name="till", shards=8, durable_mailbox=True)
class Till(Entity):
    state: Balance

    @handler
    async def put(self, cents: int) -> None:
        if os.environ.get("TILL") == "shut":
            raise ValueError("shut")
        self.state.got.append(cents)
        await self.save()

    @handler
    def got(self) -> list[int]:
        return self.state.got
