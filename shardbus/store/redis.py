"""The store in Redis: one server, a master under Sentinels, or a Redis Cluster.

Each step of the protocol is one script (`redis_scripts`) with keys of `redis_keys`, sent over a
link: to one server (`redis_link`), or to the masters of a cluster (`redis_cluster`). Loads and
saves of many entities share a script. On one server such a group has entities of any shards; in a
cluster it is cut by slot, and each part goes to the master of its slot, beside the others. This
module does not depend on the version of Redis's wire protocol, because scripts answer in lists.

Source: docs/architecture.md; N.1, N.6, N.7.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from operator import itemgetter
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from shardbus.errors import (
    ConfigError,
    LayoutDiffers,
    StaleEpoch,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.store import redis_scripts as scripts
from shardbus.store.batches import BatchEnded, written
from shardbus.store.clock import machine_clock
from shardbus.store.group_commit import QUICK_WRITERS, WRITERS
from shardbus.store.load_group import Load, Loaded, LoadGroup
from shardbus.store.migration import Declared, Migration
from shardbus.store.node_registry import RESERVED, SHARD
from shardbus.store.placement import UNFINISHED, UNRECORDED, shard_function
from shardbus.store.protocol import Due, IdPage, Lease, NewHomes, Save, StoredTable, new_identity
from shardbus.store.redis_check import REPEAT_S
from shardbus.store.redis_cluster import ClusterLink, ClusterMap
from shardbus.store.redis_journals import RedisJournals
from shardbus.store.redis_keys import PLAIN, VERSION, RedisKeys, quoted, slot_of
from shardbus.store.redis_link import Durability, RedisClient, RedisLink, RedisSession
from shardbus.store.redis_migration import RedisMigration
from shardbus.store.redis_packing import Value
from shardbus.store.redis_parts import (
    CHUNK_BYTES,
    CHUNK_WRITES,
    begin_parts,
    in_rounds,
    parts_of,
)
from shardbus.store.redis_scan import KeyScan
from shardbus.store.redis_scripts import FENCE_WIDTH, SESSION_WIDTH, Script
from shardbus.store.redis_servers import RedisServers
from shardbus.store.redis_urls import RedisUrl
from shardbus.store.repair import RawFence, RawTable
from shardbus.store.rows import (
    Row,
    check_fence,
    epoch_of,
    fence_of,
    table_of,
)
from shardbus.store.server_clock import milliseconds
from shardbus.store.server_watch import ServerWatch
from shardbus.store.urls import mask_url

log = GuardedLog("shardbus.store")

_REMINDERS = itemgetter(Save._fields.index("reminders"))

LANES = 32
"""Lanes of loads and saves in a cluster."""
CHUNK_KEYS = 1000
"""Keys of entities in one step of a repair."""
BATCHES_MAX = 2 * QUICK_WRITERS
"""Batches of saves, and of appends to journals, in flight at once. Each has a link of its own."""
READ_KEYS = 100
"""Entities whose states are read in one step."""


class RedisStore:
    """A `StateStore` in the Redis server of `url`, under keys that begin with `prefix`. `timeout`
    bounds each call, and the settings of the server are checked every `check_every`, in seconds.
    `connect` replaces the client, and `connect_to` the client of one node of a cluster, for
    tests."""

    def __init__(
        self,
        url: str,
        prefix: str = "shardbus",
        *,
        timeout: float = 2.0,
        connect: Callable[[], RedisClient] | None = None,
        connect_to: Callable[[Address], RedisClient] | None = None,
        check_every: float = REPEAT_S,
    ) -> None:
        parsed = RedisUrl.parse(url)
        self._keys = RedisKeys(prefix)
        self._prefix = prefix
        self._shown = mask_url(url)
        self._replicas = parsed.replicas
        connect = connect or parsed.connector(timeout)
        one_server = parsed.kind != "redis+cluster"
        self._session = RedisSession(secrets.token_hex(SESSION_WIDTH // 2), self._shown)
        self._on_new_server: Callable[[], None] = lambda: None
        self._session.on_new_server = self._new_server
        self._map: ClusterMap | None = None
        self.lane: Callable[[str, str], int] | None = None
        self.quick = False
        """Nothing follows a batch: the server is one, and its answer ends it."""
        self._links: Sequence[RedisLink | ClusterLink]
        """All but the first only for loads, saves and appends, while those before are busy. A link
        connects with its first use."""
        if one_server:
            self._links = [
                RedisLink(connect, self._session, timeout=timeout) for _ in range(BATCHES_MAX)
            ]
        else:
            connect_to = connect_to or parsed.node_connector(timeout)
            slots = ClusterMap(
                parsed.hosts, connect_to, self._shown, self._keys.mark, timeout=timeout / 2
            )
            slots.on_new_master = self._new_server
            self._map = slots
            self.lane = self._lane_of
            self._links = [
                ClusterLink(slots, self._session, timeout=timeout) for _ in range(WRITERS)
            ]
        self._link = self._links[0]
        guide = connect() if parsed.kind == "redis+sentinel" else None
        parts = (self._links, self._session, self._keys, connect, self._map)
        self._servers = RedisServers(*parts, parsed.durability, timeout, guide)
        self._watch = ServerWatch(
            self._shown, self._servers.probe, self._servers.find_problems, check_every=check_every
        )
        self._loads: dict[int, LoadGroup] = defaultdict(lambda: LoadGroup(self._load_all))
        self._scan = KeyScan(connect, self._shown, timeout=timeout, one_server=one_server)
        self._with_list: set[tuple[str, str]] = set()
        """The shards that are known to be among those with a list."""
        self._shard_of: dict[str, Callable[[str], str] | None] = {}
        """The shard functions by which states are placed, None if unknown."""
        self._accepts_older = False
        self.journals = RedisJournals(
            self._keys, self._free_link, self.page_keys, by_slot=self._map is not None
        )

    async def start(self) -> None:
        fsync = await self._servers.check(self._prefix)
        for link in self._links:
            if isinstance(link, ClusterLink):
                link.open(fsync=fsync, replicas=self._replicas)
            else:
                durable = Durability(lambda: self._keys.sync, fsync, self._replicas)
                link.open(durable if fsync or self._replicas else None)
                self.quick = self.journals.quick = not fsync and not self._replicas
        await self._check_version()
        with contextlib.suppress(StoreUnavailable):  # The mark is known from the start.
            await self._servers.probe()
        self._watch.start()

    async def _check_version(self) -> None:
        """Refuse a store whose keys are of another version.

        Raises:
            ConfigError: they are, or are being moved.
        """
        version = (await self._link.call(scripts.VERSION, (self._keys.probe,))).decode()
        if not version or version == str(VERSION) or (version == "1" and self._accepts_older):
            return
        await self.close()
        if version == "1":
            raise ConfigError(
                f"store.url: {self._shown} has its keys as an earlier release left them",
                hint="stop all nodes and run `shardbus data migrate --store URL`",
            )
        raise ConfigError(
            f"store.url: {self._shown} has keys of version {version:.20},"
            f" this release has {VERSION}",
            hint="use the release that wrote them, or a later one",
        )

    async def close(self) -> None:
        await self._watch.close()
        for link in self._links:
            await link.close()
        await self._scan.close()
        await self._servers.close()

    @property
    def on_new_server(self) -> Callable[[], None]:
        return self._on_new_server

    @on_new_server.setter
    def on_new_server(self, call: Callable[[], None]) -> None:
        self._on_new_server = call

    def _new_server(self) -> None:
        """Note that a server may have lost writes."""
        self._with_list.clear()
        self._scan.leave_server()
        self._on_new_server()

    @property
    def clock_offset(self) -> float | None:
        return self._servers.clock_offset

    @property
    def problems(self) -> tuple[str, ...]:
        return self._watch.problems

    async def identity(self, known: str = "") -> str:
        text, force = known or new_identity(), "1" if known else "0"
        reply = await self._link.call(scripts.IDENTITY, (self._keys.probe,), text, force)
        return str(reply.decode(errors="replace"))

    async def load_table(self, entity_type: str) -> StoredTable | None:
        reply = await self._link.call(scripts.LOAD_TABLE, self._keys.table(entity_type))
        return None if reply is None else _table(entity_type, reply)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        reply = await self._link.call(
            scripts.CLAIM_EPOCH, self._keys.table(entity_type), _wide(epoch), layout
        )
        if reply[0] == b"stale":
            raise StaleEpoch(entity_type, epoch, epoch_of(entity_type, reply[1]))
        if reply[0] == b"layout":
            raise LayoutDiffers(entity_type, layout, reply[1].decode(errors="replace"))
        return _table(entity_type, reply)

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        pairs: list[Value] = []
        for shard, home in homes.items():
            pairs += [shard, "" if home is None else f"{home[1]} {home[0]}"]
        reply = await self._link.call(
            scripts.WRITE_HOMES,
            self._keys.table(entity_type),
            _wide(epoch),
            f"{op_id:016x}",
            *pairs,
        )
        if reply[0] == b"stale":
            raise StaleEpoch(entity_type, epoch, epoch_of(entity_type, reply[1]))

    async def remove_table(self, entity_type: str) -> bool:
        return bool(await self._link.call(scripts.REMOVE_TABLE, self._keys.table(entity_type)))

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        check_fence(fence)
        group = self._loads[0 if self.lane is None else self.lane(entity_type, shard)]
        return await group.load(entity_type, shard, entity_id, fence)

    def _lane_of(self, entity_type: str, shard: str) -> int:
        """Return a number from 0: loads and saves of shards with different numbers share no batch,
        so that a master of a cluster that does not answer holds up few others. The slots of a
        master mostly follow each other."""
        return self._keys.slot(entity_type, shard) * LANES // REDIS_CLUSTER_HASH_SLOTS

    async def _load_all(self, loads: Sequence[Load]) -> list[Loaded]:
        keys = [self._keys.entities(load[0], load[1]) + quoted(load.entity_id) for load in loads]
        slots = (0 if self._map is None else slot_of(key) for key in keys)
        parts = parts_of(slots, [0] * len(keys))

        def send(part: Sequence[int]) -> asyncio.Future[Any]:
            chosen, fences = [keys[i] for i in part], [_wide(loads[i].fence) for i in part]
            return self._free_link(chosen[0]).send(scripts.LOAD_STATES, chosen, fences)

        def note(replies: Sequence[Any], part: Sequence[int], loaded: list[Loaded]) -> None:
            for i, reply in zip(part, replies, strict=True):
                loaded[i] = _loaded(loads[i], reply)

        return await written(lambda _, ended: begin_parts(parts, send, note, ended), loads)

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        return await in_rounds(self.begin_saves, saves, self._keys_of(saves))

    def begin_saves(self, saves: Sequence[Save], ended: BatchEnded) -> list[asyncio.Future[Any]]:
        """Send saves of different entities. Returns the futures of the replies."""
        for fence in scripts.fences_of(saves):
            check_fence(fence)
        keys = self._keys_of(saves)

        parts, link = self._parts(saves), self._free_link(keys[0])

        def send(part: Sequence[int]) -> asyncio.Future[Any]:
            chosen, script = [keys[i] for i in part], scripts.SAVE_STATES
            writes = [saves[i] for i in part]
            if writes[0].reminders is not None:
                script, chosen = scripts.SAVE_REMINDED, self._reminded_keys(writes, chosen)
            return link.send(script, chosen, writes, alone=len(parts) == 1)

        return begin_parts(parts, send, partial(_note_stale, saves), ended)

    def _parts(self, saves: Sequence[Save]) -> list[Sequence[int]]:
        """Return the places of saves, one part for each script."""
        small = len(saves) <= CHUNK_WRITES and scripts.size_of_data(saves) < CHUNK_BYTES
        if self._map is None and small and not any(map(_REMINDERS, saves)):
            return [range(len(saves))]
        groups = (
            (
                save.reminders is None,
                0 if self._map is None else self._keys.slot(save.entity_type, save.shard),
            )
            for save in saves
        )
        return parts_of(groups, [len(save.data or b"") for save in saves])

    def _reminded_keys(self, saves: Sequence[Save], keys: Sequence[Value]) -> list[Value]:
        """Return the keys that SAVE_REMINDED takes. `keys`: of the entities."""
        reminded: list[Value] = []
        of_shard: dict[tuple[str, str], tuple[str, str]] = {}
        for save, key in zip(saves, keys, strict=True):
            names = of_shard.get(save[:2])
            if names is None:
                fence, _ = self._keys.remembered(*save[:2])
                names = of_shard[save[:2]] = fence, self._keys.due(*save[:2])
            reminded += (key, *names)
        return reminded

    def _keys_of(self, saves: Sequence[Save]) -> list[Value]:
        """Return the key of each save."""
        prefixes = self._keys.entity_prefixes
        if PLAIN("".join([save[2] for save in saves])):
            return [
                (prefixes[entity_type, shard] + name).encode()
                for entity_type, shard, name, *_ in saves
            ]
        return [self._keys.entity(*save[:3]).encode() for save in saves]

    async def _by_slot(
        self, call: Callable[[list[int]], Awaitable[None]], keys: Sequence[str]
    ) -> None:
        """Make a call for each group of keys, given by their places, that one script may have."""
        groups: dict[int, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            groups[0 if self._map is None else slot_of(key)].append(i)
        outcomes = await asyncio.gather(*map(call, groups.values()), return_exceptions=True)
        for failed in filter(None, outcomes):
            raise failed

    def _free_link(self, key: Value) -> RedisLink | ClusterLink:
        """Return the first link that is not busy, the last one if all are."""
        return next((link for link in self._links if not link.busy_for(key)), self._links[-1])

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> IdPage:
        pattern = self._keys.all_entities(entity_type, prefix)
        keys, after = await self.page_keys(pattern, cursor, limit)
        has: list[int] = []
        for first in range(0, len(keys), CHUNK_KEYS):
            has += await self.call_each(scripts.HAVE_STATES, keys[first : first + CHUNK_KEYS])
        return [self._id_of(key) for key, stored in zip(keys, has, strict=True) if stored], after

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for first in range(0, len(entity_ids), READ_KEYS):
            keys = await self._find(entity_type, entity_ids[first : first + READ_KEYS])
            present = [key for key in keys if key is not None]
            states = iter(await self.call_each(scripts.ENTITY_STATES, present))
            values += [None if key is None else next(states) for key in keys]
        return values

    async def call(self, script: Script, keys: Sequence[str], *args: Any) -> Any:
        """Run a script at the server of its keys."""
        return await self._link.call(script, keys, *args)

    async def call_each(self, script: Script, keys: Sequence[str]) -> list[Any]:
        """Return a script's answer for each of these keys."""
        answers: list[Any] = [None] * len(keys)

        async def call(part: list[int]) -> None:
            replies = await self._link.call(script, [keys[i] for i in part])
            for i, reply in zip(part, replies, strict=True):
                answers[i] = reply

        if keys:
            await self._by_slot(call, keys)
        return answers

    async def placed(
        self, entity_type: str, layout: str, shard_of: Callable[[str], str] | None = None
    ) -> str:
        """Return the layout by which the states of a type are placed; see `PlacingStore`."""
        shard_of = shard_of or shard_function(layout)
        recorded = await self.placement(entity_type)
        if recorded != layout:
            if recorded.startswith(UNFINISHED):
                return recorded
            async for page in self._entity_keys(entity_type):
                if page and recorded:
                    return recorded
                if page and not self._are_placed(page, shard_of):
                    return UNRECORDED
                if page:
                    break
            key = self._keys.table(entity_type)[:1]
            await self._link.call(scripts.PLACE, key, layout)
        self._shard_of[entity_type] = shard_of
        return layout

    async def placement(self, entity_type: str) -> str:
        placed, _ = await self._link.call(scripts.LAYOUTS, self._keys.table(entity_type)[:1])
        return "" if placed is None else str(placed.decode(errors="replace"))

    def _are_placed(self, keys: Sequence[str], shard_of: Callable[[str], str] | None) -> bool:
        """True if these entities are in the shards that the function has them in."""
        if shard_of is None:
            return True
        parsed = (self._keys.parse(key) for key in keys)
        return all(parts is None or shard_of(parts.entity_id) == parts.shard for parts in parsed)

    async def _find(self, entity_type: str, entity_ids: Sequence[str]) -> list[str | None]:
        """Return the keys of these entities, None for one without. If the shard function is not
        known, it looks at the keys of all entities of the type."""
        if entity_type not in self._shard_of:
            layout = await self.placement(entity_type)
            self._shard_of[entity_type] = shard_function(layout)
        shard_of = self._shard_of[entity_type]
        if shard_of is not None:
            return [
                self._keys.entity(entity_type, shard_of(entity_id), entity_id)
                for entity_id in entity_ids
            ]
        key_of: dict[str, str] = {}
        missing = set(entity_ids)
        async for page in self._entity_keys(entity_type):
            key_of |= {entity_id: key for key in page if (entity_id := self._id_of(key)) in missing}
            if len(key_of) == len(missing):
                break
        return [key_of.get(entity_id) for entity_id in entity_ids]

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        removed: list[str] = []
        times = (milliseconds(now), milliseconds(since))
        for first in range(0, len(entity_ids), READ_KEYS):
            located = await self._find(entity_type, entity_ids[first : first + READ_KEYS])
            keys = [key for key in located if key is not None]
            gone: list[bool] = [False] * len(keys)

            async def expire(
                part: list[int], keys: list[str] = keys, gone: list[bool] = gone
            ) -> None:
                chosen = [keys[i] for i in part]
                for place in await self._link.call(scripts.EXPIRE_STATES, chosen, *times):
                    gone[part[place - 1]] = True

            if keys:
                await self._by_slot(expire, keys)
            removed += [self._id_of(key) for key, went in zip(keys, gone, strict=True) if went]
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
    ) -> IdPage:
        _, key = self._keys.remembered(entity_type, shard)
        lowest = "-" if cursor is None else f"({cursor}"
        reply = await self._link.call(scripts.PAGE_REMEMBERED, (key,), lowest, limit)
        page = [entity_id.decode() for entity_id in reply]
        return page, page[-1] if len(page) == limit else None

    async def remembered_shards(self, entity_type: str) -> list[str]:
        key = self._keys.shards(entity_type)
        reply = await self._link.call(scripts.REMEMBERED_SHARDS, (key,))
        return [shard.decode() for shard in reply]

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        keys = [self._keys.entity(entity_type, shard, entity_id) for entity_id in entity_ids]
        return await self.call_each(scripts.LOAD_REMINDERS, keys)

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        due, entity_id = after or (0, "")
        key = self._keys.due(entity_type, shard)
        reply = await self._link.call(scripts.PAGE_DUE, (key,), str(due), entity_id, limit)
        return [(int(at), name.decode()) for name, at in zip(reply[::2], reply[1::2], strict=True)]

    async def due_shards(self, entity_type: str) -> list[str]:
        shards = await self.remembered_shards(entity_type)
        keys = [self._keys.due(entity_type, shard) for shard in shards]
        filled = await self.call_each(scripts.ANY_DUE, keys)
        return [shard for shard, has in zip(shards, filled, strict=True) if has]

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        counter = await self._link.call(
            scripts.ACQUIRE_LEASE,
            (self._keys.lease(name),),
            owner,
            milliseconds(ttl),
            self._limit(ttl),
        )
        return None if counter is None else Lease(name, owner, int(counter))

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        renewed = await self._link.call(
            scripts.RENEW_LEASE,
            (self._keys.lease(lease.name),),
            lease.owner,
            lease.counter,
            milliseconds(ttl),
            self._limit(ttl),
        )
        return bool(renewed)

    async def release_lease(self, lease: Lease) -> None:
        key = self._keys.lease(lease.name)
        await self._link.call(scripts.RELEASE_LEASE, (key,), lease.owner, lease.counter)

    # Repair

    async def raw_table(self, entity_type: str) -> RawTable | None:
        reply = await self._link.call(scripts.LOAD_TABLE, self._keys.table(entity_type))
        return None if reply is None else RawTable(reply[1], reply[2], tuple(_rows(reply[3])))

    async def raw_fences(self, entity_type: str) -> AsyncIterator[list[RawFence]]:
        shards = await self.remembered_shards(entity_type)
        lists = [self._keys.remembered(entity_type, shard)[0] for shard in shards]
        listed = zip(shards, lists, await self.call_each(scripts.FENCES, lists), strict=True)
        yield [RawFence(f"list of shard {name[:60]!r}", key, v) for name, key, v in listed if v]
        async for keys in self._entity_keys(entity_type):
            fences = await self.call_each(scripts.FENCES, keys)
            rows = zip(map(self._id_of, keys), keys, fences, strict=True)
            yield [RawFence(f"entity {name!r:.60}", key, fence) for name, key, fence in rows]

    async def _entity_keys(self, entity_type: str) -> AsyncIterator[list[str]]:
        """Yield the keys of the entities of a type, in pages. A key may come twice."""
        pattern, cursor = self._keys.all_entities(entity_type), None
        while True:
            keys, cursor = await self.page_keys(pattern, cursor, CHUNK_KEYS)
            for first in range(0, len(keys), CHUNK_KEYS):
                yield keys[first : first + CHUNK_KEYS]
            if cursor is None:
                return

    async def page_keys(self, pattern: str, cursor: str | None, limit: int) -> IdPage:
        """Return keys of this pattern, and the next cursor, None at the end."""
        if not self._watch.running:
            raise StoreUnavailable(f"the store {self._shown} is not open")
        return await self._scan.page(pattern, cursor, limit)

    # Migration

    def accept_older(self) -> None:
        self._accepts_older = True

    async def older_nodes(self) -> list[str]:
        key = self._keys.old_remembered(RESERVED, SHARD)
        nodes: list[str] = []
        lowest = "-"
        while lowest:
            page = await self._link.call(scripts.PAGE_REMEMBERED, (key,), lowest, CHUNK_KEYS)
            nodes += [node.decode() for node in page]
            lowest = f"({nodes[-1]}" if len(page) == CHUNK_KEYS else ""
        return nodes

    async def survey(self, declared: Mapping[str, Declared]) -> Migration:
        return await RedisMigration(self, self._keys, declared).survey()

    async def migrate(
        self, declared: Mapping[str, Declared], progress: Callable[[int, int], None]
    ) -> Migration:
        self._shard_of.clear()
        return await RedisMigration(self, self._keys, declared).run(progress)

    async def mend_table(
        self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]
    ) -> None:
        shards: list[Any] = list(gone)
        await self._link.call(
            scripts.MEND_TABLE, self._keys.table(entity_type), _wide(epoch), layout, *shards
        )

    async def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        keys: list[str] = [key for _, key, _ in fences]

        async def mend(part: list[int]) -> None:
            await self._link.call(scripts.MEND_FENCES, [keys[i] for i in part], _wide(fence))

        if keys:
            await self._by_slot(mend, keys)

    def _limit(self, ttl: float) -> Value:
        """Return the server's time at which a lease may be taken as ended, in ms; empty if only the
        server knows."""
        clock = self._servers.clock
        limit = clock.limit(ttl, machine_clock()) if clock is not None else None
        return "" if limit is None else milliseconds(limit)

    async def _remember(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int, add: str
    ) -> None:
        place = (entity_type, shard)
        if place not in self._with_list:
            await self._link.call(scripts.ADD_LIST, (self._keys.shards(entity_type),), shard)
            self._with_list.add(place)
        keys = self._keys.remembered(entity_type, shard)
        reply = await self._link.call(scripts.REMEMBER, keys, _wide(fence), add, *entity_ids)
        if reply[0] == b"stale":
            raise StaleFence(entity_type, shard, fence, fence_of(entity_type, shard, reply[1]))

    def _id_of(self, key: str) -> str:
        """Return the entity's id in a key."""
        parts = self._keys.parse(key)
        return key if parts is None else parts.entity_id


def _note_stale(
    saves: Sequence[Save],
    stale: Sequence[Any],
    part: Sequence[int],
    answers: list[StoreError | None],
) -> None:
    """Note the answers of SAVE_STATES for these of the saves."""
    for place, stored in zip(stale[::2], stale[1::2], strict=True):
        index = part[place - 1]
        answers[index] = _stale(saves[index], stored)


def _loaded(load: Load, reply: bytes | list[bytes] | None) -> Loaded:
    """Return the script's answer for one load. A stored fence that is damaged is the error of this
    one alone."""
    return _stale(load, reply[0]) if isinstance(reply, list) else reply


def _stale(written: Load | Save, stored: bytes) -> StoreError:
    """Return the error for a stored fence that is higher, or damaged."""
    try:
        fence = fence_of(written.entity_type, written.entity_id, stored)
    except StoreError as damaged:
        return damaged
    return StaleFence(written.entity_type, written.entity_id, written.fence, fence)


def _table(entity_type: str, reply: list[Any]) -> StoredTable:
    _, epoch, layout, flat = reply
    return table_of(entity_type, epoch, layout, _rows(flat))


def _rows(flat: list[bytes]) -> Iterator[Row]:
    for shard, home in zip(flat[::2], flat[1::2], strict=True):
        fence, _, node = home.partition(b" ")
        yield shard, node, fence


def _wide(number: int) -> str:
    return str(check_fence(number)).zfill(FENCE_WIDTH)
