"""The migration of states in Redis; `migration` has its steps, and why it may end at any of them.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from shardbus.errors import StoreError
from shardbus.store import redis_scripts as scripts
from shardbus.store.migration import (
    PASSES_MAX,
    Declared,
    Migration,
    TypeStates,
    settle,
    unknown,
)
from shardbus.store.placement import UNFINISHED
from shardbus.store.protocol import IdPage
from shardbus.store.redis_keys import VERSION, EntityKey, RedisKeys
from shardbus.store.redis_scripts import Script

SLICE = 200
"""Entities that are moved at once."""
SCANNED = 1000
"""Keys of one page."""
LIST_PAGE = 1000
"""Ids of a list that are copied at once."""

Call = Callable[..., Any]


class Servers(Protocol):
    """The part of a store that a migration uses."""

    async def call(self, script: Script, keys: Sequence[str], *args: Any) -> Any:
        """Run a script at the server of its keys."""

    async def call_each(self, script: Script, keys: Sequence[str]) -> list[Any]:
        """Return a script's answer for each of these keys."""
        ...

    async def page_keys(self, pattern: str, cursor: str | None, limit: int) -> IdPage:
        """Return keys of this pattern, and the next cursor."""
        ...


class RedisMigration:
    """One migration of the keys that `keys` names."""

    def __init__(self, servers: Servers, keys: RedisKeys, declared: Mapping[str, Declared]) -> None:
        self._servers, self._keys, self._declared = servers, keys, declared

    async def survey(self) -> Migration:
        """Count the keys in the wrong place."""
        migration = Migration()
        version = await self._servers.call(scripts.VERSION, (self._keys.probe,))
        migration.version = version.decode()
        strange: list[str] = []
        async for page in self._pages():
            for key in page:
                parts = self._parts(key)
                name = self._keys.old_list_type(key) if parts is None else parts.entity_type
                if name is None:
                    continue
                if name not in migration.types:
                    migration.types[name] = await self._type(name, strange)
                states = migration.types[name]
                if parts is None:
                    states.lists = len(await self._old_lists(name))
                    continue
                states.entities += 1
                states.misplaced += states.shard_of is not None and self._place(states, key) != key
        strange = [name for name in strange if migration.types[name].entities]
        if strange:
            raise unknown(strange)
        return migration

    async def run(self, progress: Callable[[int, int], None]) -> Migration:
        """Move all states to their places."""
        migration = await self.survey()
        total = migration.misplaced
        for name, states in migration.types.items():
            if states.misplaced:
                await self._record(name, UNFINISHED + states.layout)
        for name, states in migration.types.items():
            if states.lists:
                await self._move_lists(name, migration)
                progress(migration.moved + migration.lists, total)
        for _ in range(PASSES_MAX):
            before = migration.moved
            async for page in self._pages():
                for first in range(0, len(page), SLICE):
                    await self._move(page[first : first + SLICE], migration)
                    done = migration.moved + migration.lists
                    progress(done, max(total, done))
            if migration.moved == before:
                break
        else:
            raise StoreError(
                f"states were in the wrong place after {PASSES_MAX} passes",
                hint="end what else writes to this store, and run it again",
            )
        for name, states in migration.types.items():
            if states.entities and not name.startswith("$"):
                await self._record(name, states.layout)
        await self._servers.call(scripts.SET_VERSION, (self._keys.probe,), str(VERSION))
        return migration

    async def _type(self, name: str, strange: list[str]) -> TypeStates:
        states = TypeStates()
        placed, table = await self._servers.call(scripts.LAYOUTS, self._keys.table(name)[:1])
        states.was = "" if placed is None else placed.decode(errors="replace")
        text = "" if table is None else table.decode(errors="replace")
        if not settle(name, states, text, self._declared.get(name)):
            strange.append(name)
        return states

    async def _move(self, keys: Sequence[str], migration: Migration) -> None:
        """Move the keys that are in the wrong place."""
        places: dict[str, str] = {}
        for key in keys:
            parts = self._parts(key)
            states = None if parts is None else migration.types.get(parts.entity_type)
            if states is not None and (place := self._place(states, key)) != key:
                places[key] = place
        if not places:
            return
        rows = await self._servers.call_each(scripts.READ_WHOLE, list(places))
        kept = {key: row for key, row in zip(places, rows, strict=True) if row}
        await asyncio.gather(
            *(
                self._servers.call(scripts.COPY, (places[key],), _field(row, b"v"), *row)
                for key, row in kept.items()
            )
        )
        await asyncio.gather(
            *(self._move_due(key, places[key]) for key, row in kept.items() if _field(row, b"rem"))
        )
        gone = await asyncio.gather(
            *(
                self._servers.call(scripts.DROP, (key,), _field(row, b"v"))
                for key, row in kept.items()
            )
        )
        migration.moved += sum(gone)

    async def _move_due(self, key: str, place: str) -> None:
        """Move the entry of an entity from its former shard's index to its shard's index."""
        former, present = self._keys.parse(key), self._keys.parse(place)
        assert former is not None
        assert former.shard is not None
        assert present is not None
        assert present.shard is not None
        name, entity_id = former.entity_type, former.entity_id
        old, new = self._keys.due(name, former.shard), self._keys.due(name, present.shard)
        due = await self._servers.call(scripts.DUE_AT, (old,), entity_id)
        if due:
            await self._servers.call(scripts.ADD_LIST, (self._keys.shards(name),), present.shard)
            await self._servers.call(scripts.ADD_DUE, (new,), entity_id, due)
            await self._servers.call(scripts.DROP_DUE, (old,), entity_id)

    async def _move_lists(self, name: str, migration: Migration) -> None:
        old = self._keys.old_shards(name)
        for shard, v in (await self._old_lists(name)).items():
            source = self._keys.old_remembered(name, shard)
            fence, ids = self._keys.remembered(name, shard)
            await self._servers.call(scripts.ADD_LIST, (self._keys.shards(name),), shard)
            lowest = "-"
            while lowest:
                page = await self._servers.call(
                    scripts.PAGE_REMEMBERED, (source,), lowest, LIST_PAGE
                )
                if page:
                    await self._servers.call(scripts.COPY_LIST, (ids,), *page)
                lowest = f"({page[-1].decode()}" if len(page) == LIST_PAGE else ""
            await self._servers.call(scripts.COPY, (fence,), v, b"v", v)
            await self._servers.call(scripts.DROP_LIST, (old, source), shard)
            migration.lists += 1

    async def _old_lists(self, name: str) -> dict[str, bytes]:
        """Return the lists that version 1 has left, with their fences as far as it has stored
        them."""
        old = self._keys.old_shards(name)
        [flat] = await self._servers.call_each(scripts.READ_WHOLE, [old])
        return {shard.decode(): v for shard, v in zip(flat[::2], flat[1::2], strict=True)}

    def _place(self, states: TypeStates, key: str) -> str:
        """Return the key where an entity belongs."""
        parts = self._parts(key)
        assert parts is not None
        assert states.shard_of is not None
        shard = states.shard_of(parts.entity_id)
        if parts.journal:
            return self._keys.journal(parts.entity_type, shard, parts.entity_id)
        return self._keys.entity(parts.entity_type, shard, parts.entity_id)

    def _parts(self, key: str) -> EntityKey | None:
        """Return the parts of the key of an entity's state or journal, None if it is another
        key."""
        if (state := self._keys.parse(key)) is not None:
            return state
        journal = self._keys.parse_journal(key)
        return None if journal is None else EntityKey(*journal, journal=True)

    async def _record(self, name: str, layout: str) -> None:
        await self._servers.call(scripts.PLACE, self._keys.table(name)[:1], layout)

    async def _pages(self) -> AsyncIterator[list[str]]:
        """Yield the keys of all types, in pages. A key may come twice."""
        cursor: str | None = None
        while True:
            page, cursor = await self._servers.page_keys(self._keys.everything(), cursor, SCANNED)
            yield page
            if cursor is None:
                return


def _field(row: Sequence[bytes], name: bytes) -> bytes:
    """Return the value of a field of a hash, empty if it has none."""
    return dict(zip(row[::2], row[1::2], strict=True)).get(name, b"")
