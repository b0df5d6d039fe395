"""The store in PostgreSQL: one server, or the one of several that takes writes.

Each step of the protocol is one statement (`postgres_statements`), sent over the link
(`postgres_link`). Many clusters may share a database: each row has the name of its cluster. The
tables are in a schema of their own, `?schema=` of the URL.

Source: docs/architecture.md; N.1, N.6, N.7, N.23.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from shardbus import errors
from shardbus.store import postgres_statements as sql
from shardbus.store.clock import machine_clock
from shardbus.store.load_group import Load, Loaded, LoadGroup
from shardbus.store.postgres_check import REPEAT_S, check_server, prepare
from shardbus.store.postgres_errors import trouble_of
from shardbus.store.postgres_journals import PostgresJournals
from shardbus.store.postgres_link import CREATE_S, PostgresLink, close_connection
from shardbus.store.postgres_urls import PostgresConnection, PostgresUrl
from shardbus.store.protocol import Due, IdPage, Lease, NewHomes, Save, StoredTable, new_identity
from shardbus.store.repair import RawFence, RawTable
from shardbus.store.rows import Row, check_fence, epoch_of, table_of
from shardbus.store.server_clock import ServerClock, clock_offset, milliseconds
from shardbus.store.server_watch import PROBE_S, ServerWatch
from shardbus.store.urls import mask_url

ATTEMPTS = 5
"""How often a step is tried that finds its row changed by others meanwhile."""
CHUNK_SAVES = 1000
CHUNK_BYTES = 4 * 1024 * 1024
PAGE = 10_000
"""Fences that are read in one step of a repair."""
READ_STATES = 100
"""Entities whose states, which may be long, are read in one step."""


class PostgresStore:
    """A `StateStore` in the PostgreSQL server of `url`. `cluster` separates the clusters of one
    database. `timeout` bounds each call, and the settings of the server are checked every
    `check_every`, in seconds."""

    def __init__(
        self, url: str, cluster: str = "", *, timeout: float = 2.0, check_every: float = REPEAT_S
    ) -> None:
        parsed = PostgresUrl.parse(url)
        self._cluster, self._schema = cluster, parsed.schema
        self._timeout = timeout
        self._shown = mask_url(url)
        self._durability = parsed.durability
        self._connect = parsed.connector(timeout)
        self._mark: str | None = None
        self._clock = ServerClock(2 * PROBE_S)
        self.clock_offset: float | None = None
        self._watch = ServerWatch(
            self._shown, self._probe, self._find_problems, check_every=check_every
        )
        self._link = PostgresLink(
            self._connect,
            self._prepare,
            schema=parsed.schema,
            shown=self._shown,
            timeout=timeout,
            connections=parsed.connections,
        )
        self._loads = LoadGroup(self._load_all)
        self.journals = PostgresJournals(self._link, cluster, self._contended)

    async def start(self) -> None:
        await self._check(create=True)
        self._link.open()
        with contextlib.suppress(errors.StoreUnavailable):  # The mark is known from the start.
            await self._probe()
        self._watch.start()

    async def close(self) -> None:
        await self._watch.close()
        await self._link.close()

    @property
    def problems(self) -> tuple[str, ...]:
        return self._watch.problems

    @property
    def on_new_server(self) -> Callable[[], None]:
        return self._link.on_new_server

    @on_new_server.setter
    def on_new_server(self, call: Callable[[], None]) -> None:
        self._link.on_new_server = call

    async def _prepare(self, connection: PostgresConnection, anew: bool) -> bool:
        return await prepare(connection, self._schema, anew)

    async def _check(self, create: bool) -> None:
        """Check the server over a connection of its own, and create the tables if asked.

        Raises:
            ConfigError: the server is unfit, or refuses the user.
            StoreUnavailable: the server does not answer, or takes no writes.
        """
        connection: PostgresConnection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = (await self._connect()).connection
            if create:
                async with asyncio.timeout(CREATE_S):
                    await prepare(connection, self._schema)
            async with asyncio.timeout(self._timeout):
                await check_server(connection, self._schema, self._shown, self._durability)
        except errors.ConfigError:
            raise
        except Exception as error:  # The client library's errors have no common root.
            trouble = trouble_of(error)
            if trouble.again or not trouble.definite:
                raise errors.StoreUnavailable(
                    f"{self._shown} {trouble.what}", hint=trouble.hint, definite=True
                ) from None
            raise errors.ConfigError(
                f"store.url: {self._shown} {trouble.what}", hint=trouble.hint
            ) from None
        finally:
            if connection is not None:
                await close_connection(connection, self._timeout / 2)

    async def _probe(self) -> None:
        """Call the server, and notice whether it is another one, or has lost all rows."""
        asked_at, began = machine_clock(), time.time()
        [row] = await self._link.call(sql.PROBE, self._cluster, secrets.token_hex(8))
        server = row["now"] / 1000
        self.clock_offset = clock_offset(server, began, time.time())
        self._clock.observe(server, asked_at)
        before, self._mark = self._mark, row["mark"]
        if before is not None and before != row["mark"]:
            self._link.on_new_server()
        else:
            self._link.meet(row["server"])

    async def _find_problems(self) -> tuple[str, ...]:
        """Return the faults in the server's settings."""
        try:
            await self._check(create=False)
        except errors.ConfigError as error:
            return (str(error),)
        return ()

    async def identity(self, known: str = "") -> str:
        text = known or new_identity()
        [row] = await self._link.call(sql.IDENTITY, self._cluster, text, bool(known))
        return str(row["identity"])

    # Tables

    async def load_table(self, entity_type: str) -> StoredTable | None:
        rows = await self._link.call(sql.LOAD_TABLE, self._cluster, entity_type)
        return _table(entity_type, rows) if rows else None

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        check_fence(epoch)
        key = (self._cluster, entity_type)
        for _ in range(ATTEMPTS):
            rows = await self._link.call(sql.LOAD_TABLE, *key)
            if rows:
                table = _table(entity_type, rows)
                claimer = rows[0]["claimer"]
                if (table.epoch, table.layout, claimer) == (epoch, layout, self._link.session):
                    return table
                if table.epoch >= epoch:
                    raise errors.StaleEpoch(entity_type, epoch, table.epoch)
                if table.layout != layout and (table.homes or table.dropped):
                    raise errors.LayoutDiffers(entity_type, layout, table.layout)
            version = rows[0]["version"] if rows else 0
            if await self._link.call(sql.CLAIM_EPOCH, *key, epoch, layout, version):
                return table_of(entity_type, epoch, layout, _homes(rows))
        raise self._contended("the table", entity_type)

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        key = (self._cluster, entity_type)
        shards = sorted(homes)
        nodes = [None if (home := homes[shard]) is None else str(home[0]) for shard in shards]
        fences = [0 if (home := homes[shard]) is None else home[1] for shard in shards]
        for _ in range(ATTEMPTS):
            [row] = await self._link.call(
                sql.WRITE_HOMES, *key, epoch, op_id, shards, nodes, fences
            )
            if row["written"]:
                return
            rows = await self._link.call(sql.LOAD_TABLE, *key)
            if rows and rows[0]["op_id"] == op_id:
                return
            stored = rows[0]["epoch"] if rows else 0
            if stored != epoch or rows[0]["claimer"] != self._link.session:
                raise errors.StaleEpoch(entity_type, epoch, epoch_of(entity_type, stored))
        raise self._contended("the table", entity_type)

    async def remove_table(self, entity_type: str) -> bool:
        [row] = await self._link.call(sql.REMOVE_TABLE, self._cluster, entity_type)
        return bool(row["homes"])

    # States

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        check_fence(fence)
        return await self._loads.load(entity_type, shard, entity_id, fence)

    async def _load_all(self, loads: Sequence[Load]) -> list[Loaded]:
        """Load entities of one type, each once."""
        entity_type = loads[0].entity_type
        answers: dict[str, Loaded] = {}
        open_loads = {load.entity_id: load.fence for load in loads}
        for _ in range(ATTEMPTS):
            ids, fences = list(open_loads), list(open_loads.values())
            rows = await self._link.call(sql.LOAD_STATES, self._cluster, entity_type, ids, fences)
            for entity_id, data in rows:
                answers[entity_id] = data
                del open_loads[entity_id]
            if not open_loads:
                return [answers[load.entity_id] for load in loads]
            stored = await self._link.call(sql.FENCES, self._cluster, entity_type, list(open_loads))
            for entity_id, row in stored:
                fence = open_loads[entity_id]
                stale = _stale(entity_type, entity_id, fence, row)
                if stale is not None:
                    answers[entity_id] = stale
                    del open_loads[entity_id]
            if not open_loads:
                return [answers[load.entity_id] for load in loads]
        raise self._contended("states", entity_type)

    async def save_states(self, saves: Sequence[Save]) -> list[errors.StoreError | None]:
        answers: list[errors.StoreError | None] = [None] * len(saves)
        for number, chunk in enumerate(_chunks(saves)):
            try:
                stale = await self._save_chunk([saves[i] for i in chunk])
            except errors.StoreUnavailable as error:
                error.definite = error.definite and number == 0
                raise
            for place, answer in stale:
                answers[chunk[place]] = answer
        return answers

    async def _save_chunk(self, saves: Sequence[Save]) -> list[tuple[int, errors.StaleFence]]:
        """Write these saves, which have each entity once. Returns the place of each that is stale,
        with its answer."""
        stale: list[tuple[int, errors.StaleFence]] = []
        places = list(range(len(saves)))
        for _ in range(ATTEMPTS):
            chosen = [saves[place] for place in places]
            types = [save.entity_type for save in chosen]
            ids = [save.entity_id for save in chosen]
            fences = [check_fence(save.fence) for save in chosen]
            ops = [save.op_id for save in chosen]
            states = [save.data for save in chosen]
            row: tuple[Any, ...] = (self._cluster, types, ids, fences, ops, states)
            written = await self._write_chunk(chosen, row)
            if written == len(chosen):
                return stale
            rows = await self._link.call(sql.SAVED, self._cluster, types, ids)
            left = []
            for place, save, (stored, op_id) in zip(places, chosen, rows, strict=True):
                if op_id == save.op_id:
                    continue
                refused = _stale(save.entity_type, save.entity_id, save.fence, stored)
                if refused is None:
                    left.append(place)
                else:
                    stale.append((place, refused))
            places = left
            if places and saves[0].reminders is not None:
                stale += await self._raise_lists(saves, places)
            if not places:
                return stale
        raise self._contended("states", saves[places[0]].entity_type)

    async def _write_chunk(self, saves: Sequence[Save], row: tuple[Any, ...]) -> int:
        """Write saves, which have all reminders or none. `row`: the arguments of SAVE_STATES.
        Returns the number that was written."""
        if saves[0].reminders is None:
            return int(await self._link.call(sql.SAVE_STATES, *row))
        reminders = [save.reminders for save in saves if save.reminders is not None]
        alone = reminders[0].alone
        [written] = await self._link.call(
            sql.SAVE_REMINDERS if alone else sql.SAVE_REMINDED,
            *row,
            [save.shard for save in saves],
            [reminder.due if reminder.record is not None else 0 for reminder in reminders],
            [reminder.record if reminder.due else None for reminder in reminders],
        )
        return int(written["written"])

    async def _raise_lists(
        self, saves: Sequence[Save], places: list[int]
    ) -> list[tuple[int, errors.StaleFence]]:
        """Write the fences of the shards of these saves where none is. Take the places of those
        that are lower than the shard's from `places`, and return them with their answers."""
        stale: list[tuple[int, errors.StaleFence]] = []
        types, shards = zip(*((saves[i].entity_type, saves[i].shard) for i in places), strict=True)
        rows = await self._link.call(sql.LIST_FENCES_OF, self._cluster, list(types), list(shards))
        for place, (stored,) in zip(tuple(places), rows, strict=True):
            save = saves[place]
            refused = _stale(save.entity_type, save.entity_id, save.fence, stored)
            if refused is not None:
                stale.append((place, refused))
                places.remove(place)
            elif stored is None:
                await self.add_remembered(save.entity_type, save.shard, (), save.fence)
        return stale

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> IdPage:
        """As the protocol says. The cursor is the last id that was looked at."""
        begin = prefix if cursor is None else cursor
        rows = await self._link.call(
            sql.PAGE_STORED, self._cluster, entity_type, begin, cursor is not None, limit
        )
        page = [entity_id for entity_id, stored in rows if stored and entity_id.startswith(prefix)]
        ended = len(rows) < limit or not rows[-1]["id"].startswith(prefix)
        return page, None if ended else rows[-1]["id"]

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        states: dict[str, bytes | None] = {}
        for first in range(0, len(entity_ids), READ_STATES):
            named = list(entity_ids[first : first + READ_STATES])
            rows = await self._link.call(sql.READ_STATES, self._cluster, entity_type, named)
            states.update((entity_id, data) for entity_id, data in rows)
        return [states.get(entity_id) for entity_id in entity_ids]

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        rows = await self._link.call(
            sql.EXPIRE_STATES, self._cluster, entity_type, list(entity_ids), now, since
        )
        gone = {entity_id for entity_id, removed in rows if removed}
        return [entity_id for entity_id in entity_ids if entity_id in gone]

    # Remembered entities

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        key = (self._cluster, entity_type, shard)
        for _ in range(ATTEMPTS):
            [row] = await self._link.call(
                sql.REMEMBER, *key, check_fence(fence), sorted(set(entity_ids))
            )
            if row["written"]:
                return
            await self._check_list(entity_type, shard, fence)
        raise self._contended("a list", entity_type)

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        key = (self._cluster, entity_type, shard)
        for _ in range(ATTEMPTS):
            for signed in await self._link.call(sql.SIGN_LIST, *key, check_fence(fence)):
                session, sequence = signed
                [row] = await self._link.call(
                    sql.FORGET, *key, fence, session, sequence, sorted(set(entity_ids))
                )
                if row["written"]:
                    return
            await self._check_list(entity_type, shard, fence)
        raise self._contended("a list", entity_type)

    async def _check_list(self, entity_type: str, shard: str, fence: int) -> None:
        """Raise StaleFence if the list has a later home."""
        for (stored,) in await self._link.call(sql.LIST_FENCE, self._cluster, entity_type, shard):
            stale = _stale(entity_type, shard, fence, stored)
            if stale is not None:
                raise stale

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> IdPage:
        rows = await self._link.call(
            sql.PAGE_REMEMBERED, self._cluster, entity_type, shard, cursor or "", limit
        )
        page = [entity_id for (entity_id,) in rows]
        return page, page[-1] if len(page) == limit else None

    async def remembered_shards(self, entity_type: str) -> list[str]:
        rows = await self._link.call(sql.REMEMBERED_SHARDS, self._cluster, entity_type)
        return [shard for (shard,) in rows]

    # Reminders

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        rows = await self._link.call(
            sql.LOAD_REMINDERS, self._cluster, entity_type, list(entity_ids)
        )
        records = dict(rows)
        return [records.get(entity_id) for entity_id in entity_ids]

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        due, entity_id = after or (0, "")
        rows = await self._link.call(
            sql.PAGE_DUE, self._cluster, entity_type, shard, due, entity_id, limit
        )
        return [(row["due"], row["id"]) for row in rows]

    async def due_shards(self, entity_type: str) -> list[str]:
        rows = await self._link.call(sql.DUE_SHARDS, self._cluster, entity_type)
        return [shard for (shard,) in rows]

    # Leases

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        [row] = await self._link.call(
            sql.ACQUIRE_LEASE, self._cluster, name, owner, milliseconds(ttl), self._limit(ttl)
        )
        return Lease(name, owner, row["counter"]) if row["granted"] else None

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        renewed = await self._link.call(
            sql.RENEW_LEASE,
            self._cluster,
            lease.name,
            lease.owner,
            lease.counter,
            milliseconds(ttl),
            self._limit(ttl),
        )
        return bool(renewed)

    async def release_lease(self, lease: Lease) -> None:
        await self._link.call(
            sql.RELEASE_LEASE, self._cluster, lease.name, lease.owner, lease.counter
        )

    def _limit(self, ttl: float) -> int | None:
        """Return the server's time at which a lease may be taken as ended, in ms; None if only the
        server knows."""
        limit = self._clock.limit(ttl, machine_clock())
        return None if limit is None else milliseconds(limit)

    # Repair

    async def raw_table(self, entity_type: str) -> RawTable | None:
        rows = await self._link.call(sql.LOAD_TABLE, self._cluster, entity_type)
        if not rows:
            return None
        return RawTable(rows[0]["epoch"], rows[0]["layout"], tuple(_homes(rows)))

    async def raw_fences(self, entity_type: str) -> AsyncIterator[list[RawFence]]:
        rows = await self._link.call(sql.LIST_FENCES, self._cluster, entity_type)
        yield [
            RawFence(f"list of shard {shard!r:.60}", ("list", shard), fence)
            for shard, fence in rows
        ]
        after = ""
        while True:
            rows = await self._link.call(sql.ENTITY_FENCES, self._cluster, entity_type, after, PAGE)
            if not rows:
                return
            after = rows[-1]["id"]
            yield [
                RawFence(f"entity {name!r:.60}", ("entity", name), fence) for name, fence in rows
            ]

    async def mend_table(
        self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]
    ) -> None:
        shards = [str(shard) for shard in gone]
        await self._link.call(sql.MEND_TABLE, self._cluster, entity_type, epoch, layout, shards)

    async def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        for kind, statement in (("entity", sql.MEND_ENTITIES), ("list", sql.MEND_LISTS)):
            names = [raw.key[1] for raw in fences if raw.key[0] == kind]
            if names:
                await self._link.call(statement, self._cluster, entity_type, fence, names)

    def _contended(self, what: str, entity_type: str) -> errors.StoreUnavailable:
        return errors.StoreUnavailable(
            f"{self._shown} did not write {what} of {entity_type!r}: others changed it"
            f" {ATTEMPTS} times meanwhile"
        )


def _chunks(saves: Sequence[Save]) -> Iterator[list[int]]:
    """Yield groups of saves of one kind that have each entity once, bounded in number and bytes, as
    indexes into `saves`. The saves of one entity stay in order."""
    chunk: list[int] = []
    entities: set[tuple[str, str]] = set()
    size = 0
    for i, save in enumerate(saves):
        entity = (save.entity_type, save.entity_id)
        full = len(chunk) == CHUNK_SAVES or size >= CHUNK_BYTES
        if entity in entities or full or (chunk and _kind(saves[chunk[0]]) != _kind(save)):
            yield chunk
            chunk, entities, size = [], set(), 0
        chunk.append(i)
        entities.add(entity)
        size += len(save.data or b"")
        if save.reminders is not None:
            size += len(save.reminders.record or b"")
    if chunk:
        yield chunk


def _kind(save: Save) -> bool | None:
    """Return whether a save writes reminders alone, None if it writes none."""
    return None if save.reminders is None else save.reminders.alone


def _stale(entity_type: str, name: str, fence: int, stored: int | None) -> errors.StaleFence | None:
    """Return the refusal of a fence by the stored one, None if that is not higher, or is gone."""
    if stored is None or stored <= fence:
        return None
    return errors.StaleFence(entity_type, name, fence, stored)


def _table(entity_type: str, rows: Sequence[Any]) -> StoredTable:
    return table_of(entity_type, rows[0]["epoch"], rows[0]["layout"], _homes(rows))


def _homes(rows: Sequence[Any]) -> Iterator[Row]:
    for row in rows:
        if row["shard"] is not None:
            yield row["shard"], row["node"], row["fence"]
