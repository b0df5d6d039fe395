"""Homes for shards that have reminders, events for a projection, messages in durable mailboxes, or
pending deliveries: a part of the shell of a coordinator.

A shard has a home from the first message for it on. A reminder is no message, so after a stop of
the whole cluster, or after a node has left, nothing would ask for a home. So the coordinator asks
in its place: once it rules, for every shard that has reminders, and later for those that lose their
home. Only a home sets reminders, so no other shard can have got some meanwhile.

**Projections.** The parts of a projection work without messages, too, so every shard whose journals
a projection follows needs a home. By the default function these are all shards of the type; by a
function of the application's they are those of the journals that the store lists.

**Durable mailboxes and deliveries.** The entities with messages, and those whose deliveries are not
confirmed, are on lists of their shards, so every shard with such a list that is not empty needs a
home.

**Another layout.** With another number of shards, entities belong to other shards than those that
the store has their reminders in. The table has its former layout until the first epoch under the
new one is claimed, and then no shard has a home. So before that claim each reminder that is in the
wrong shard moves (`move`), under a fence above all former homes and below all later ones. If the
process ends meanwhile, the table still has its former layout, and the next coordinator goes on.

Source: docs/how-to/reminders.md; B.119.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

import msgspec

from shardbus.bounds import EPOCH_MAX, EPOCH_SHIFT
from shardbus.errors import StaleFence, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.store.journal_protocol import journals_of
from shardbus.store.protocol import (
    Due,
    Reminders,
    ReminderStore,
    Save,
    StateStore,
    StoredTable,
    reminder_store,
)

log = GuardedLog("shardbus.sharding")

PAUSE_S = 1.0
"""From the loss of homes to the question, and between two attempts."""
PAGE = 500
"""Entities whose reminders move at once."""

ShardOf = Callable[[str], str]
"""Returns the shard of an entity's id."""


class SelfActing(msgspec.Struct, frozen=True):
    """The types of one table whose entities work without messages."""

    reminds: Mapping[str, ShardOf] = msgspec.field(default_factory=dict)
    """Those that set reminders, with their shard functions."""
    followed: Collection[str] = ()
    """Those whose events a projection handles."""
    listed: Collection[str] = ()
    """The names of the lists of entities with messages or deliveries."""
    shards: int = 0
    """The shards of the default function; 0: a function of the application's."""

    @property
    def any(self) -> bool:
        """True if there is such a type."""
        return bool(self.reminds or self.followed or self.listed)


@dataclass(eq=False, repr=False)
class RemindedShards:
    """Asks for the homes of shards whose entities work without messages. `self_acting()` returns
    the types that have these shards and such entities; `ask_homes(shards)` asks for homes as
    messages would, and returns those that the type has no more."""

    _store: StateStore
    self_acting: Callable[[], SelfActing]
    _ask_homes: Callable[[list[str]], list[str]]
    _freed: set[str] = field(default_factory=set)
    _some_freed: asyncio.Event = field(default_factory=asyncio.Event)

    def freed(self, shards: Iterable[str]) -> None:
        """Note that shards have no home now."""
        self._freed.update(shards)
        if self._freed:
            self._some_freed.set()

    async def move(self, table: StoredTable | None, layout: str) -> None:
        """Move the reminders that are not in the shard of their entity, if this table is not of
        this layout. Call it before an epoch of the layout is claimed. May be repeated.

        Raises:
            StoreError: the store does not answer. Some may have moved.
        """
        reminders = reminder_store(self._store)
        types = self.self_acting().reminds
        epoch = 0 if table is None else table.epoch
        placed = table is not None and (bool(table.homes) or table.layout == layout)
        if reminders is None or not types or placed or epoch >= EPOCH_MAX:
            return
        fence = (epoch + 1) << EPOCH_SHIFT
        for name, shard_of in types.items():
            moved = 0
            for shard in await reminders.due_shards(name):
                after: Due | None = None
                page: list[Due] = []
                while after is None or len(page) == PAGE:
                    page = await reminders.page_due(name, shard, after, PAGE)
                    misplaced = [d for d in page if _belongs(shard_of, d[1]) not in ("", shard)]
                    if misplaced:
                        await self._move_page(reminders, name, shard, misplaced, fence)
                    moved += len(misplaced)
                    if not page:
                        break
                    after = page[-1]
            if moved:
                log.info("the reminders of %d entities of %r have moved", moved, name)

    async def _move_page(
        self, reminders: ReminderStore, name: str, shard: str, page: list[Due], fence: int
    ) -> None:
        """Move the reminders of these entities, which `shard` has, to where they belong. One that
        has a later fence belongs to a home already, and stays."""
        shard_of = self.self_acting().reminds[name]
        records = await reminders.load_reminders(name, shard, [entity_id for _, entity_id in page])
        for n, record in enumerate(records):  # one may be where its state has moved already
            if record is None:
                entity_id = page[n][1]
                [records[n]] = await reminders.load_reminders(
                    name, shard_of(entity_id), [entity_id]
                )
        ids = count(Random(f"{name} {shard} {fence} {page[0]}").getrandbits(62))
        saves = [
            Save(name, shard_of(entity_id), entity_id, fence, None, next(ids),
                 Reminders(due, record, alone=True))
            for (due, entity_id), record in zip(page, records, strict=True)
            if record is not None
        ]  # fmt: skip
        await self._write(saves)
        left = set(await reminders.page_due(name, shard, (page[0][0], ""), PAGE))
        gone = Reminders(0, None, alone=True)
        # Only where the index of each shard is kept by itself; elsewhere they have left it.
        await self._write(
            [Save(name, shard, due[1], fence, None, next(ids), gone) for due in page if due in left]
        )

    async def _write(self, saves: list[Save]) -> None:
        for refused in await self._store.save_states(saves) if saves else ():
            if refused is not None and not isinstance(refused, StaleFence):
                raise refused

    async def _due(self) -> set[str]:
        """Return the shards that need a home. Raises StoreError."""
        acting, reminders = self.self_acting(), reminder_store(self._store)
        due: set[str] = set()
        if reminders is not None:
            due |= {s for name in acting.reminds for s in await reminders.due_shards(name)}
        due |= {s for name in acting.listed for s in await self._store.remembered_shards(name)}
        if acting.followed and acting.shards:
            return due | {str(number) for number in range(acting.shards)}
        journals = journals_of(self._store)
        for kind in acting.followed:
            cursor: str | None = None
            while journals is not None:
                names, cursor = await journals.page(kind, cursor, PAGE)
                due |= {shard for shard, _ in names}
                if cursor is None:
                    break
        return due

    async def run(self, rules: Callable[[], bool]) -> None:
        """Ask, while the coordinator rules."""
        first = True
        while rules():
            freed, self._freed = self._freed, set()
            self._some_freed.clear()
            try:
                due = await self._due()
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
                log.error(
                    "reminders and messages in %d former shards wait in the store",
                    len(gone),
                )
            first = False
            await self._some_freed.wait()
            await asyncio.sleep(PAUSE_S)


def _belongs(shard_of: ShardOf, entity_id: str) -> str:
    """Return the shard of an entity, empty if the shard function fails."""
    try:
        return shard_of(entity_id)
    except Exception:  # a function of the application's
        log.exception("the shard of %r is unknown: its reminders stay", entity_id)
        return ""
