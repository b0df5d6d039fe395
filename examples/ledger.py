"""Accounts whose state is a fold of events, which the store keeps.

    shardbus dev examples/ledger.py
    shardbus ask account ada deposit 50
    shardbus ask account ada withdraw 20

The store has the events. A balance is their fold, so it can be explained, and another state can be
made of the same events later.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardbus import EventSourced, Rejection, ShardBus, event, handler

bus = ShardBus("ledger")


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass(frozen=True)
class Withdrawn:
    amount: int


@dataclass
class Balance:
    amount: int = 0
    entries: int = 0


@dataclass
class TooLittle(Rejection):
    """There is less on the account."""

    left: int


@bus.entity(name="account", snapshot_after=100)
class Account(EventSourced):
    """An account. A handler decides and persists; a fold changes the balance."""

    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.amount += event.amount
        self.state.entries += 1

    @event
    def withdrawn(self, event: Withdrawn) -> None:
        self.state.amount -= event.amount
        self.state.entries += 1

    @handler
    async def deposit(self, amount: int) -> int:
        await self.persist(Deposited(amount))
        return self.state.amount

    @handler
    async def withdraw(self, amount: int) -> int:
        if amount > self.state.amount:
            raise TooLittle(self.state.amount)
        await self.persist(Withdrawn(amount))
        return self.state.amount

    @handler
    def balance(self) -> Balance:
        return self.state
