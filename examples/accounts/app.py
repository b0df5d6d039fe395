"""An account that keeps its balance in memory, and writes each change to a database first.

There are two implementations. `Account` is written as an actor: it is *loading*, *running* or
*waiting*, and stashes messages that it cannot handle yet. `PlainAccount` uses `await`: messages
wait until `on_start` has returned, and the entity handles no other message while a handler awaits.
The second is shorter; the first could answer some messages, such as a query, while it waits.

In both, a failed load is retried and loses no message. A failed write is reported to its sender,
and the entity restarts from the stored balance.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from examples.accounts.repository import Repository
from shardbus import Entity, ShardBus, behaviour, handler

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")

bus = ShardBus("bank")
repository = Repository(STATE / "shardbus" / "accounts.sqlite")


@dataclass(frozen=True)
class Loaded:
    """The balance was read."""

    cents: int


@dataclass(frozen=True)
class Written:
    """The new balance was written."""

    cents: int


@bus.entity(name="account", shards=30)
class Account(Entity):
    """Receives a number of cents to add, or "balance"."""

    def __init__(self) -> None:
        self.cents = 0
        self.account = f"account {self.context.entity_id}"
        self.context.pipe_to_self(self.load())

    async def load(self) -> Loaded:
        return Loaded(await repository.read(self.account, self.context.fence))

    async def update(self, cents: int) -> Written:
        return Written(await repository.write(self.account, self.context.fence, cents))

    @behaviour
    def loading(self, message: object) -> None:
        match message:
            case Loaded(cents):
                self.cents = cents
                self.context.become(self.running)
                self.context.unstash_all()
            case Exception():
                raise message  # the entity restarts and keeps its stash
            case _:
                self.context.stash()

    receive = loading

    @behaviour
    def running(self, message: object) -> int | None:
        match message:
            case int():
                self.context.become(self.waiting)
                self.context.pipe_to_self(self.update(self.cents + message), answer=True)
                return None
            case "balance":
                return self.cents
            case _:
                return self.unhandled(message)

    @behaviour
    def waiting(self, message: object) -> int | None:
        match message:
            case Written(cents):
                self.cents = cents
                self.context.become(self.running)
                self.context.unstash_all()
                return cents  # the answer to the sender of the number
            case Exception():
                raise message  # the sender gets the error; the entity restarts
            case _:
                self.context.stash()
                return None


@bus.entity(name="plain-account", shards=30)
class PlainAccount(Entity):
    """The same account, with `await`."""

    async def on_start(self) -> None:
        self.account = f"plain account {self.context.entity_id}"
        self.cents = await repository.read(self.account, self.context.fence)

    @handler
    async def change(self, cents: int) -> int:
        """Add `cents` to the balance and return it."""
        self.cents = await repository.write(self.account, self.context.fence, self.cents + cents)
        return self.cents

    @handler
    def balance(self) -> int:
        """Return the balance from memory."""
        return self.cents
