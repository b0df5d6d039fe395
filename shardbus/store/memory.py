"""A store in memory: for tests, for a single process, and as the shortest description of every
store's duties.

`MemoryData` is the content of the store; several `MemoryStore` objects may share one, as several
nodes share a Redis server. No method of a `MemoryStore` awaits anything, so each is one atomic step
of the event loop.

Source: docs/architecture.md; N.23.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from shardbus import errors
from shardbus.ids import NodeId
from shardbus.store import protocol
from shardbus.store.memory_journals import MemoryJournalRows, MemoryJournals
from shardbus.store.rows import epoch_of, fence_of, table_of

PLACE_DIGITS = 18
"""Of a cursor, which is a place."""
LOOKED_AT = 10
"""Rows that are looked at, at most, for each id of a page."""


class _Table(msgspec.Struct):
    epoch: int
    layout: str
    claimer: object
    op_id: int | None = None
    homes: dict[str, tuple[NodeId, int]] = msgspec.field(default_factory=dict)


class _State(msgspec.Struct):
    fence: int
    op_id: int | None = None
    data: bytes | None = None
    idle_since: float | None = None


class _Remembered(msgspec.Struct):
    fence: int
    entity_ids: list[str] = msgspec.field(default_factory=list)
    """Sorted, so that a page can start after any id, present or not."""


class _Lease(msgspec.Struct):
    owner: str | None
    counter: int
    expires: float

    def is_under(self, lease: protocol.Lease) -> bool:
        return (self.owner, self.counter) == (lease.owner, lease.counter)


class ReminderIndex(msgspec.Struct):
    """The reminders of one type."""

    records: dict[str, tuple[str, int, bytes]] = msgspec.field(default_factory=dict)
    """By entity: its shard, when the earliest is due, and all of them."""
    due: dict[str, list[protocol.Due]] = msgspec.field(default_factory=dict)
    """By shard, sorted."""

    def put(self, shard: str, entity_id: str, reminders: protocol.Reminders) -> None:
        """Replace the reminders of an entity."""
        before = self.records.pop(entity_id, None)
        if before is not None:
            entries = self.due[before[0]]
            del entries[bisect_left(entries, (before[1], entity_id))]
        if reminders.due and reminders.record is not None:
            self.records[entity_id] = shard, reminders.due, reminders.record
            insort(self.due.setdefault(shard, []), (reminders.due, entity_id))


class MemoryData(msgspec.Struct):
    """The content of a store. Empty it to imitate a server that lost its data."""

    tables: dict[str, _Table] = msgspec.field(default_factory=dict)
    states: dict[tuple[str, str], _State] = msgspec.field(default_factory=dict)
    remembered: dict[tuple[str, str], _Remembered] = msgspec.field(default_factory=dict)
    leases: dict[str, _Lease] = msgspec.field(default_factory=dict)
    reminders: dict[str, ReminderIndex] = msgspec.field(default_factory=dict)
    journals: MemoryJournalRows = msgspec.field(default_factory=dict)
    identity: str = msgspec.field(default_factory=protocol.new_identity)


class MemoryStore:
    """A `StateStore` over a `MemoryData`. `clock` returns seconds and times the leases."""

    def __init__(
        self, data: MemoryData | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._held = MemoryData() if data is None else data
        self._clock = clock
        self._open = False
        self.journals = MemoryJournals(lambda: self._data().journals)

    async def start(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    async def identity(self, known: str = "") -> str:
        data = self._data()
        data.identity = known or data.identity
        return data.identity

    async def load_table(self, entity_type: str) -> protocol.StoredTable | None:
        table = self._data().tables.get(entity_type)
        return None if table is None else _stored(entity_type, table)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> protocol.StoredTable:
        tables = self._data().tables
        table = tables.get(entity_type)
        if table is None:
            table = tables[entity_type] = _Table(epoch, layout, self)
            return _stored(entity_type, table)
        if (table.epoch, table.layout, table.claimer) == (epoch, layout, self):
            return _stored(entity_type, table)
        if epoch_of(entity_type, table.epoch) >= epoch:
            raise errors.StaleEpoch(entity_type, epoch, table.epoch)
        if table.layout != layout and table.homes:
            raise errors.LayoutDiffers(entity_type, layout, table.layout)
        table.epoch, table.layout, table.claimer = epoch, layout, self
        return _stored(entity_type, table)

    async def write_homes(
        self, entity_type: str, epoch: int, homes: protocol.NewHomes, op_id: int
    ) -> None:
        table = self._data().tables.get(entity_type)
        if table is None:
            raise errors.StaleEpoch(entity_type, epoch, 0)
        if table.op_id == op_id:
            return
        if table.epoch != epoch or table.claimer is not self:
            raise errors.StaleEpoch(entity_type, epoch, epoch_of(entity_type, table.epoch))
        for shard, home in homes.items():
            if home is None:
                table.homes.pop(shard, None)
            else:
                table.homes[shard] = home
        table.op_id = op_id

    async def remove_table(self, entity_type: str) -> bool:
        table = self._data().tables.get(entity_type)
        if table is None or not table.homes:
            return False
        table.homes = {}
        return True

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        state = self._data().states.setdefault((entity_type, entity_id), _State(fence))
        if state.fence > fence:
            raise errors.StaleFence(entity_type, entity_id, fence, state.fence)
        state.fence, state.idle_since = fence, None
        return state.data

    async def save_states(self, saves: Sequence[protocol.Save]) -> list[errors.StoreError | None]:
        data = self._data()
        return [_save(data, save) for save in saves]

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> protocol.IdPage:
        """As the protocol says. The cursor is a place in `states`, in which rows never move."""
        place = cursor or "0"
        if not (place.isascii() and place.isdigit() and len(place) <= PLACE_DIGITS):
            raise errors.StoreError(f"{place!r:.60} is no cursor of this store")
        first, most, page = int(place), limit * LOOKED_AT, list[str]()
        seen = first
        for (kind, entity_id), state in islice(self._data().states.items(), first, first + most):
            seen += 1
            if kind == entity_type and state.data is not None and entity_id.startswith(prefix):
                page.append(entity_id)
                if len(page) == limit:
                    break
        return page, str(seen) if seen < len(self._data().states) else None

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        states = (self._data().states.get((entity_type, entity_id)) for entity_id in entity_ids)
        return [None if state is None else state.data for state in states]

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        removed = []
        for entity_id in entity_ids:
            state = self._data().states.get((entity_type, entity_id))
            if state is None or state.data is None:
                continue
            state.idle_since = now if state.idle_since is None else min(now, state.idle_since)
            if state.idle_since <= since:
                state.data, state.idle_since = None, None
                removed.append(entity_id)
        return removed

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        ids = self._fenced(entity_type, shard, fence)
        for entity_id in entity_ids:
            at = bisect_right(ids, entity_id)
            if at == 0 or ids[at - 1] != entity_id:
                insort(ids, entity_id)

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        ids = self._fenced(entity_type, shard, fence)
        gone = set(entity_ids)
        ids[:] = [entity_id for entity_id in ids if entity_id not in gone]

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> protocol.IdPage:
        entry = self._data().remembered.get((entity_type, shard))
        ids = [] if entry is None else entry.entity_ids
        first = 0 if cursor is None else bisect_right(ids, cursor)
        page = ids[first : first + limit]
        return page, page[-1] if len(page) == limit else None

    async def remembered_shards(self, entity_type: str) -> list[str]:
        lists = self._data().remembered
        return [s for (name, s), entry in lists.items() if name == entity_type and entry.entity_ids]

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        index = self._data().reminders.get(entity_type) or ReminderIndex()
        records = (index.records.get(entity_id) for entity_id in entity_ids)
        return [None if record is None else record[2] for record in records]

    async def page_due(
        self, entity_type: str, shard: str, after: protocol.Due | None, limit: int
    ) -> list[protocol.Due]:
        index = self._data().reminders.get(entity_type) or ReminderIndex()
        entries = index.due.get(shard, [])
        first = 0 if after is None else bisect_right(entries, after)
        return entries[first : first + limit]

    async def due_shards(self, entity_type: str) -> list[str]:
        index = self._data().reminders.get(entity_type) or ReminderIndex()
        return [shard for shard, entries in index.due.items() if entries]

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> protocol.Lease | None:
        now = self._clock()
        held = self._data().leases.setdefault(name, _Lease(None, 0, now))
        if held.owner is None or held.expires <= now:
            held.owner = owner
            held.counter += 1
        elif held.owner != owner:
            return None
        held.expires = now + ttl
        return protocol.Lease(name, owner, held.counter)

    async def renew_lease(self, lease: protocol.Lease, ttl: float) -> bool:
        now = self._clock()
        held = self._data().leases.get(lease.name)
        if held is None or not held.is_under(lease) or held.expires <= now:
            return False
        held.expires = now + ttl
        return True

    async def release_lease(self, lease: protocol.Lease) -> None:
        held = self._data().leases.get(lease.name)
        if held is not None and held.is_under(lease):
            held.owner = None

    def _data(self) -> MemoryData:
        if not self._open:
            raise errors.StoreUnavailable("the store memory:// is not open")
        return self._held

    def _fenced(self, entity_type: str, shard: str, fence: int) -> list[str]:
        entry = self._data().remembered.setdefault((entity_type, shard), _Remembered(fence))
        if entry.fence > fence:
            raise errors.StaleFence(entity_type, shard, fence, entry.fence)
        entry.fence = fence
        return entry.entity_ids


def _stored(entity_type: str, table: _Table) -> protocol.StoredTable:
    rows = [(shard, *home) for shard, home in table.homes.items()]
    return table_of(entity_type, table.epoch, table.layout, rows)


def _save(stored_data: MemoryData, save: protocol.Save) -> errors.StoreError | None:
    state = stored_data.states.setdefault((save.entity_type, save.entity_id), _State(save.fence))
    if state.op_id == save.op_id:
        return None
    try:
        stored = fence_of(save.entity_type, save.entity_id, state.fence)
    except errors.StoreError as damaged:
        return damaged
    if stored > save.fence:
        return errors.StaleFence(save.entity_type, save.entity_id, save.fence, stored)
    if save.reminders is not None:
        remembered = stored_data.remembered.get((save.entity_type, save.shard))
        if remembered is not None and remembered.fence > save.fence:
            return errors.StaleFence(save.entity_type, save.entity_id, save.fence, remembered.fence)
        index = stored_data.reminders.setdefault(save.entity_type, ReminderIndex())
        index.put(save.shard, save.entity_id, save.reminders)
    state.fence, state.op_id = save.fence, save.op_id
    if save.reminders is None or not save.reminders.alone:
        state.data = save.data
    state.idle_since = None
    return None
