"""Accounts that pay each other by deliveries, for processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus import Entity, ShardBus, handler

bus = ShardBus("lab")


@dataclass
class Balance:
    cents: int = 0
    deposits: list[int] = field(default_factory=list)
    paid: int = 0
    got: int = 0


@bus.entity(name="account", shards=20)
class Account(Entity):
    state: Balance

    @handler
    async def deposit(self, number: int, payee: str) -> None:
        """Take 100 cents, and pay 30 of them on."""
        state = self.state
        state.cents += 70
        state.deposits.append(number)
        state.paid += 1
        self.deliver(self.context.ref(Account, payee).credit, 30)
        await self.save()

    @handler
    def credit(self, cents: int) -> None:
        self.state.cents += cents
        self.state.got += 1

    @handler
    def balance(self) -> Balance:
        return self.state


@bus.entity(name="till", shards=20)
class Till(Entity):
    """An account without state."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    @handler
    def take(self, number: int) -> None:
        self.taken.append(number)

    @handler
    def report(self) -> list[int]:
        return self.taken
