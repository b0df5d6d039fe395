"""Accounts with durable mailboxes, whose handlers are slower than their senders, for processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from shardbus import Entity, ShardBus, handler

bus = ShardBus("lab")


@dataclass
class Deposits:
    numbers: list[int] = field(default_factory=list)


@bus.entity(name="account", shards=20, durable_mailbox=True)
class Account(Entity):
    state: Deposits

    @handler
    async def deposit(self, number: int) -> None:
        await asyncio.sleep(0.005)
        self.state.numbers.append(number)
        await self.save()

    @handler
    def numbers(self) -> list[int]:
        return self.state.numbers
