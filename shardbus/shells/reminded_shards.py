"""Homes for shards that have reminders: a part of the shell of a coordinator.

A shard has a home from the first message for it on. A reminder is no message, so after a stop of
the whole cluster, or after a node has left, nothing would ask for a home. So the coordinator asks
in its place: once it rules, for every shard that has reminders, and later for those that lose their
home. Only a home sets reminders, so no other shard can have got some meanwhile.

Source: docs/how-to/reminders.md; B.119.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from shardbus.errors import StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.store.protocol import StateStore, reminder_store

log = GuardedLog("shardbus.sharding")

PAUSE_S = 1.0
"""From the loss of homes to the question, and between two attempts."""


class RemindedShards:
    """Asks for the homes of shards with reminders. `types()` names the types that set some and
    whose shards these are; `ask_homes(shards)` asks for homes as messages would, and returns those
    that the type has no more."""

    def __init__(
        self,
        store: StateStore,
        types: Callable[[], Sequence[str]],
        ask_homes: Callable[[list[str]], list[str]],
    ) -> None:
        self._store, self.types, self._ask_homes = store, types, ask_homes
        self._freed: set[str] = set()
        self._some_freed = asyncio.Event()

    def freed(self, shards: Iterable[str]) -> None:
        """Note that shards have no home now."""
        self._freed.update(shards)
        if self._freed:
            self._some_freed.set()

    async def run(self, rules: Callable[[], bool]) -> None:
        """Ask, while the coordinator rules."""
        reminders = reminder_store(self._store)
        if reminders is None or not self.types():
            return
        first = True
        while rules():
            freed, self._freed = self._freed, set()
            self._some_freed.clear()
            try:
                due = {one for name in self.types() for one in await reminders.due_shards(name)}
            except StoreError as error:
                log.warning("the shards with reminders: %s", error)
                self._freed |= freed
                await asyncio.sleep(PAUSE_S)
                continue
            if not rules():
                return
            chosen = sorted(due if first else due & freed)
            gone = self._ask_homes(chosen) if chosen else []
            if gone:
                log.error("reminders in %d shards that the type has no more do not fire", len(gone))
            first = False
            await self._some_freed.wait()
            await asyncio.sleep(PAUSE_S)
