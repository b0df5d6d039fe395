"""Accounts whose state is a fold of events, which the store keeps.

    shardbus dev examples/ledger.py
    shardbus ask account ada deposit 50
    shardbus ask account ada withdraw 20
    shardbus ask statement ada/statement lines
    shardbus ask bank all total

The store has the events. A balance is their fold, so it can be explained, and another state can be
made of the same events later. A projection is one: `statement` has the lines of each account, and
delivers each amount to the bank's total, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus import Entity, EventSourced, Projection, Rejection, ShardBus, event, handler

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
class Lines:
    amounts: list[int] = field(default_factory=list)


@dataclass
class Total:
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


@bus.entity(name="bank")
class Bank(Entity):
    """The sum over all accounts, which the statements deliver."""

    state: Total

    @handler
    def add(self, amount: int) -> None:
        self.state.amount += amount
        self.state.entries += 1

    @handler
    def total(self) -> Total:
        return self.state


@bus.projection(of=Account, name="statement")
class Statement(Projection):
    """The lines of an account. Its state and the number of the event are stored in one save."""

    state: Lines

    @event
    def deposited(self, event: Deposited) -> None:
        self._book(event.amount)

    @event
    def withdrawn(self, event: Withdrawn) -> None:
        self._book(-event.amount)

    def _book(self, amount: int) -> None:
        self.state.amounts.append(amount)
        self.deliver(self.context.ref(Bank, "all").add, amount)

    @handler
    def lines(self) -> list[int]:
        return self.state.amounts
