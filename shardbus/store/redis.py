"""The store in Redis: one server, a master under Sentinels, or a Redis Cluster.

Each step of the protocol is one script (`redis_scripts`), sent over the link (`redis_link`). This
module does not depend on the version of Redis's wire protocol, because scripts answer in lists.

Source: docs/architecture.md; N.1, N.6, N.7.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from shardbus.errors import (
    ConfigError,
    LayoutDiffers,
    StaleEpoch,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from shardbus.ids import NodeId
from shardbus.store import redis_scripts as scripts
from shardbus.store.clock import machine_clock
from shardbus.store.load_group import Load, Loaded, LoadGroup
from shardbus.store.protocol import Lease, Save, StoredTable, new_identity
from shardbus.store.redis_check import REPEAT_S, check_access, check_server
from shardbus.store.redis_link import RedisClient, RedisLink, RedisSession, Value
from shardbus.store.redis_scan import KeyScan
from shardbus.store.redis_scripts import FENCE_WIDTH, SESSION_WIDTH
from shardbus.store.redis_urls import RedisUrl
from shardbus.store.repair import RawFence, RawTable
from shardbus.store.rows import (
    Row,
    check_fence,
    epoch_of,
    fence_of,
    table_of,
)
from shardbus.store.server_clock import ServerClock
from shardbus.store.urls import mask_url
from shardbus.task_set import TaskSet

log = logging.getLogger("shardbus.store")

PROBE_S = 2.0
"""Between two calls that only ask whether the server is there, and which it is."""

PLAIN = re.compile(r"[A-Za-z0-9_.~-]*", re.ASCII).fullmatch
"""Names that percent-encoding leaves as they are."""
CHUNK_SAVES = 128
CHUNK_KEYS = 1000
"""Keys of entities in one step of a repair."""
CHUNK_BYTES = 512 * 1024
READ_KEYS = 100
"""Entities whose states are read in one step."""


class RedisStore:
    """A `StateStore` in the Redis server of `url`, under keys that begin with `prefix`. `timeout`
    bounds each call, and the settings of the server are checked every `check_every`, in seconds.
    `connect` replaces the client, for tests."""

    def __init__(
        self,
        url: str,
        prefix: str = "shardbus",
        *,
        timeout: float = 2.0,
        connect: Callable[[], RedisClient] | None = None,
        check_every: float = REPEAT_S,
    ) -> None:
        parsed = RedisUrl.parse(url)
        self._prefix = prefix
        self._timeout = timeout
        self._shown = mask_url(url)
        self._durability = parsed.durability
        self._connect = connect or parsed.connector(timeout)
        self._check_every = check_every
        self._problems: tuple[str, ...] = ()
        self._mark: bytes | None = None
        one = parsed.kind != "redis+cluster"
        self._clock = ServerClock(2 * PROBE_S) if one else None
        self._watch: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._session = RedisSession(secrets.token_hex(SESSION_WIDTH // 2), self._shown)
        self._link = RedisLink(self._connect, self._session, timeout=timeout, one=one)
        self._second_link = RedisLink(self._connect, self._session, timeout=timeout, one=one)
        """Only for loads and saves, while the first is busy."""
        self._loads = LoadGroup(self._load_all)
        self._keys = KeyScan(self._connect, self._shown, timeout=timeout, one=one)

    async def start(self) -> None:
        client = self._connect()
        try:
            fsync, warnings = await check_server(
                client, self._shown, self._durability, self._timeout
            )
            await check_access(client, self._prefix, self._shown, self._timeout)
        finally:
            await _close(client)
        for warning in warnings:
            log.warning(warning)
        for link in (self._link, self._second_link):
            link.open(sync_key=f"{self._prefix}:sync" if fsync else None)
        with contextlib.suppress(StoreUnavailable):  # The mark is known from the start.
            await self._probe()
        if self._watch is None:
            self._watch = self._tasks.spawn(self._watch_server(), name="shardbus-redis-watch")

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        await self._link.close()
        await self._second_link.close()
        await self._keys.close()

    @property
    def on_new_server(self) -> Callable[[], None]:
        return self._session.on_new_server

    @on_new_server.setter
    def on_new_server(self, call: Callable[[], None]) -> None:
        self._session.on_new_server = call

    @property
    def problems(self) -> tuple[str, ...]:
        return self._problems

    async def _watch_server(self) -> None:
        """Call the server every `PROBE_S`, so that an idle node notices another server too, and
        check its settings every `check_every`."""
        due = self._check_every
        while True:
            await asyncio.sleep(min(PROBE_S, self._check_every))
            due -= min(PROBE_S, self._check_every)
            with contextlib.suppress(StoreUnavailable):
                await self._probe()
                if due <= 0:
                    due = self._check_every
                    await self._check_again()

    async def _probe(self) -> None:
        """Call the server, and notice whether it is another one, or has lost all keys. The client
        library may connect again unseen, and FLUSHALL does not restart a server."""
        mark = secrets.token_hex(8)
        asked_at = machine_clock()
        key = f"{self._prefix}:probe"
        found, run_id, server_ms = await self._link.call(scripts.PROBE, (key,), mark)
        if self._clock is not None:
            self._clock.observe(int(server_ms) / 1000, asked_at)
        before, self._mark = self._mark, found
        if before is not None and before != found:
            self._session.on_new_server()
        elif run_id:
            self._session.meet(run_id.decode())

    async def _check_again(self) -> None:
        """Check the server's settings, and keep what is wrong in `problems`."""
        client = self._connect()
        try:
            await check_server(client, self._shown, self._durability, self._timeout)
            problems: tuple[str, ...] = ()
        except ConfigError as error:
            problems = (str(error),)
        finally:
            await _close(client)
        for problem in set(problems) - set(self._problems):
            log.error("%s", problem)
        if self._problems and not problems:
            log.info("the settings of the store %s are in order again", self._shown)
        self._problems = problems

    async def identity(self, known: str = "") -> str:
        text, force = known or new_identity(), "1" if known else "0"
        found = await self._link.call(scripts.IDENTITY, (f"{self._prefix}:probe",), text, force)
        return str(found.decode(errors="replace"))

    async def load_table(self, entity_type: str) -> StoredTable | None:
        reply = await self._link.call(scripts.LOAD_TABLE, self._table(entity_type))
        return None if reply is None else _table(entity_type, reply)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        reply = await self._link.call(
            scripts.CLAIM_EPOCH, self._table(entity_type), _wide(epoch), layout
        )
        if reply[0] == b"stale":
            raise StaleEpoch(entity_type, epoch, epoch_of(entity_type, reply[1]))
        if reply[0] == b"layout":
            raise LayoutDiffers(entity_type, layout, reply[1].decode(errors="replace"))
        return _table(entity_type, reply)

    async def write_homes(
        self,
        entity_type: str,
        epoch: int,
        homes: Mapping[str, tuple[NodeId, int] | None],
        op_id: int,
    ) -> None:
        pairs: list[Value] = []
        for shard, home in homes.items():
            pairs += [shard, "" if home is None else f"{home[1]} {home[0]}"]
        reply = await self._link.call(
            scripts.WRITE_HOMES, self._table(entity_type), _wide(epoch), f"{op_id:016x}", *pairs
        )
        if reply[0] == b"stale":
            raise StaleEpoch(entity_type, epoch, epoch_of(entity_type, reply[1]))

    async def remove_table(self, entity_type: str) -> bool:
        return bool(await self._link.call(scripts.REMOVE_TABLE, self._table(entity_type)))

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        check_fence(fence)
        return await self._loads.load(entity_type, shard, entity_id, fence)

    async def _load_all(self, loads: Sequence[Load]) -> list[Loaded]:
        """Load entities of one type."""
        prefix = self._key(loads[0].entity_type, "entity", "")
        keys = [prefix + quoted(load.entity_id) for load in loads]
        fences = [_wide(load.fence) for load in loads]
        link = self._second_link if self._link.busy else self._link
        replies = await link.call(scripts.LOAD_STATES, keys, *fences)
        return [_loaded(load, reply) for load, reply in zip(loads, replies, strict=True)]

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        answers: list[StoreError | None] = [None] * len(saves)
        chunks = list(_chunks(saves))
        link = self._second_link if self._link.busy else self._link
        if len(chunks) == 1:
            replies = [await self._save_chunk(link, saves, chunks[0])]
        else:
            try:
                replies = await asyncio.gather(*(self._save_chunk(link, saves, c) for c in chunks))
            except StoreUnavailable as error:
                error.definite = False
                raise
        for chunk, stale in zip(chunks, replies, strict=True):
            for place, stored in zip(stale[::2], stale[1::2], strict=True):
                i = chunk[place - 1]
                answers[i] = _stale(saves[i], stored)
        return answers

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        pattern = self._key(entity_type, "entity", prefix) + "*"
        keys, after = await self._page_keys(pattern, cursor, limit)
        has: list[int] = []
        for first in range(0, len(keys), CHUNK_KEYS):
            has += await self._link.call(scripts.HAVE_STATES, keys[first : first + CHUNK_KEYS])
        return [_id_of(key) for key, stored in zip(keys, has, strict=True) if stored], after

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        prefix, found = self._key(entity_type, "entity", ""), list[bytes | None]()
        for first in range(0, len(entity_ids), READ_KEYS):
            keys = [prefix + quoted(one) for one in entity_ids[first : first + READ_KEYS]]
            found += await self._link.call(scripts.ENTITY_STATES, keys)
        return found

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        prefix, removed = self._key(entity_type, "entity", ""), list[str]()
        for first in range(0, len(entity_ids), READ_KEYS):
            named = entity_ids[first : first + READ_KEYS]
            keys = [prefix + quoted(one) for one in named]
            times = (_milliseconds(now), _milliseconds(since))
            places = await self._link.call(scripts.EXPIRE_STATES, keys, *times)
            removed += [named[place - 1] for place in places]
        return removed

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        await self._remember(entity_type, shard, entity_ids, fence, "1")

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        await self._remember(entity_type, shard, entity_ids, fence, "0")

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        key = self._key(entity_type, "remembered", shard)
        lowest = "-" if cursor is None else f"({cursor}"
        reply = await self._link.call(scripts.PAGE_REMEMBERED, (key,), lowest, limit)
        page = [entity_id.decode() for entity_id in reply]
        return page, page[-1] if len(page) == limit else None

    async def remembered_shards(self, entity_type: str) -> list[str]:
        key = self._key(entity_type, "shards")
        reply = await self._link.call(scripts.REMEMBERED_SHARDS, (key,))
        return [shard.decode() for shard in reply]

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        counter = await self._link.call(
            scripts.ACQUIRE_LEASE,
            (self._lease(name),),
            owner,
            _milliseconds(ttl),
            self._limit(ttl),
        )
        return None if counter is None else Lease(name, owner, int(counter))

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        renewed = await self._link.call(
            scripts.RENEW_LEASE,
            (self._lease(lease.name),),
            lease.owner,
            lease.counter,
            _milliseconds(ttl),
            self._limit(ttl),
        )
        return bool(renewed)

    async def release_lease(self, lease: Lease) -> None:
        key = self._lease(lease.name)
        await self._link.call(scripts.RELEASE_LEASE, (key,), lease.owner, lease.counter)

    # Repair

    async def raw_table(self, entity_type: str) -> RawTable | None:
        reply = await self._link.call(scripts.LOAD_TABLE, self._table(entity_type))
        return None if reply is None else RawTable(reply[1], reply[2], tuple(_rows(reply[3])))

    async def raw_fences(self, entity_type: str) -> AsyncIterator[list[RawFence]]:
        flat = await self._link.call(scripts.SHARD_FENCES, (self._key(entity_type, "shards"),))
        lists = zip(flat[::2], flat[1::2], strict=True)
        yield [RawFence(f"list of shard {_text(shard)!r}", shard, fence) for shard, fence in lists]
        async for keys in self._entity_keys(entity_type):
            fences = await self._link.call(scripts.ENTITY_FENCES, keys)
            rows = zip(map(_id_of, keys), keys, fences, strict=True)
            yield [RawFence(f"entity {name!r:.60}", key, fence) for name, key, fence in rows]

    async def _entity_keys(self, entity_type: str) -> AsyncIterator[list[str]]:
        """Yield the keys of the entities of a type, in pages. A key may come twice."""
        pattern, cursor = self._key(entity_type, "entity", "") + "*", None
        while True:
            keys, cursor = await self._page_keys(pattern, cursor, CHUNK_KEYS)
            for first in range(0, len(keys), CHUNK_KEYS):
                yield keys[first : first + CHUNK_KEYS]
            if cursor is None:
                return

    async def _page_keys(
        self, pattern: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        if self._watch is None:
            raise StoreUnavailable(f"the store {self._shown} is not open")
        return await self._keys.page(pattern, cursor, limit)

    async def mend_table(
        self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]
    ) -> None:
        shards: list[Any] = list(gone)
        await self._link.call(
            scripts.MEND_TABLE, self._table(entity_type), _wide(epoch), layout, *shards
        )

    async def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        keys = [key for _, key, _ in fences if isinstance(key, str)]
        shards = [shard for _, shard, _ in fences if not isinstance(shard, str)]
        if keys:
            await self._link.call(scripts.MEND_ENTITIES, keys, _wide(fence))
        if shards:
            lists = (self._key(entity_type, "shards"),)
            await self._link.call(scripts.MEND_SHARDS, lists, _wide(fence), *shards)

    def _limit(self, ttl: float) -> Value:
        """Return the server's time at which a lease may be taken as ended, in ms; empty if only the
        server knows."""
        limit = self._clock.limit(ttl, machine_clock()) if self._clock is not None else None
        return "" if limit is None else _milliseconds(limit)

    async def _save_chunk(
        self, link: RedisLink, saves: Sequence[Save], chunk: list[int]
    ) -> list[Any]:
        """Write these of the saves, which are of one type. Returns the place in the chunk, from 1,
        and the stored fence of each that is stale, in turn."""
        prefix = self._key(saves[chunk[0]].entity_type, "entity", "")
        keys: list[Value] = []
        args: list[Value] = []
        for i in chunk:
            _, _, entity_id, fence, data, op_id = saves[i]
            keys.append((prefix + quoted(entity_id)).encode())
            check_fence(fence)
            if data is None:
                args.append(b"%019d%016x0" % (fence, op_id))
            else:
                args.append(b"%019d%016x1%b" % (fence, op_id, data))
        stale: list[Any] = await link.call(scripts.SAVE_STATES, keys, *args)
        return stale

    async def _remember(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int, add: str
    ) -> None:
        keys = (self._key(entity_type, "shards"), self._key(entity_type, "remembered", shard))
        reply = await self._link.call(scripts.REMEMBER, keys, shard, _wide(fence), add, *entity_ids)
        if reply[0] == b"stale":
            raise StaleFence(entity_type, shard, fence, fence_of(entity_type, shard, reply[1]))

    def _key(self, entity_type: str, *parts: str) -> str:
        return ":".join([f"{self._prefix}:{{{quoted(entity_type)}}}", *map(quoted, parts)])

    def _table(self, entity_type: str) -> tuple[str, str]:
        return self._key(entity_type, "table"), self._key(entity_type, "homes")

    def _lease(self, name: str) -> str:
        return f"{self._prefix}:lease:{{{quote(name, safe='')}}}"


def quoted(name: str) -> str:
    """Return a name as it stands in a key: percent-encoded."""
    return name if PLAIN(name) else quote(name, safe="")


def _chunks(saves: Sequence[Save]) -> Iterator[list[int]]:
    """Yield groups of saves of one type, each entity once, bounded in number and bytes, as indexes
    into `saves`."""
    groups: dict[str, dict[str, int]] = {}
    sizes: dict[str, int] = {}
    for i, save in enumerate(saves):
        entity_type, entity_id = save.entity_type, save.entity_id
        group = groups.setdefault(entity_type, {})
        if entity_id in group:
            yield list(group.values())
            group = groups[entity_type] = {}
            sizes[entity_type] = 0
        group[entity_id] = i
        size = sizes[entity_type] = sizes.get(entity_type, 0) + len(save.data or b"")
        if len(group) == CHUNK_SAVES or size >= CHUNK_BYTES:
            yield list(groups.pop(entity_type).values())
            del sizes[entity_type]
    yield from (list(group.values()) for group in groups.values())


def _loaded(load: Load, reply: bytes | list[bytes] | None) -> Loaded:
    """Return what the script has answered for one load. A stored fence that is damaged is the
    error of this one alone."""
    return _stale(load, reply[0]) if isinstance(reply, list) else reply


def _stale(one: Load | Save, stored: bytes) -> StoreError:
    """Return the error for a stored fence that is higher, or damaged."""
    try:
        fence = fence_of(one.entity_type, one.entity_id, stored)
    except StoreError as damaged:
        return damaged
    return StaleFence(one.entity_type, one.entity_id, one.fence, fence)


def _table(entity_type: str, reply: list[Any]) -> StoredTable:
    _, epoch, layout, flat = reply
    return table_of(entity_type, epoch, layout, _rows(flat))


def _rows(flat: list[bytes]) -> Iterator[Row]:
    for shard, home in zip(flat[::2], flat[1::2], strict=True):
        fence, _, node = home.partition(b" ")
        yield shard, node, fence


def _id_of(key: str) -> str:
    """Return the entity's id in a key."""
    return unquote(key.rpartition(":")[2])


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")[:60]


def _wide(number: int) -> str:
    return str(check_fence(number)).zfill(FENCE_WIDTH)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


async def _close(client: RedisClient) -> None:
    with contextlib.suppress(Exception):
        await client.aclose()
