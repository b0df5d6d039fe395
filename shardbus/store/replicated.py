"""The store inside the cluster: registers on the disks of several replicas, at a majority.

Each step of the protocol is one operation on one key (`replication.proposer`), and this module is
its driver: it sends the calls, hands in the answers, and wakes at the deadlines. The functions that
change a value are in `replication.functions`:

    load_state                            LoadState, under the fence of the shard
    save_states                           SaveState, of all entities at once
    claim_epoch write_homes remove_table  ChangeValue of the table
    add_remembered remove_remembered      ChangeValue of the list
    expire_states                         ChangeValue of each state, with an id
    leases, identity                      ReadValue, then ChangeValue
    replicated values                     `replicated_values`, on the same links
    journals                              `replicated_journals`, by the same operations
    reminders                             `replicated_reminders`, by the same operations
    page_stored                           scans of buckets at a majority; keys that differ are read
    remembered_shards due_shards          scans of buckets

**A refusal says: no effect from now on.** A save that was under way when another owner loaded may
be in the state that this owner has read.

**Leases.** Replicas count the time since they stored a lease; no clock is compared
(`replication.functions`).

**Eras.** A ring of another era was founded anew from the disks that were left. It may lack
acknowledged writes, so `on_new_server` is called, as after the restore of any server.

A majority of replicas must answer. `start` waits for it as long as it takes, and logs the missing
replicas; a later call has `timeout` seconds.

Source: docs/architecture.md; S2.32, S2.33, S3.85.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from random import Random
from typing import NamedTuple

from shardbus.errors import StaleFence, StoreError, StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replication import functions
from shardbus.replication.messages import Ballot, BucketRows, ScanBucket
from shardbus.replication.proposer import (
    RULER_PAUSE_S,
    ChangeValue,
    Completed,
    Effect,
    Finished,
    LoadState,
    Operation,
    Outcome,
    Outdated,
    Proposer,
    ReadValue,
    RingFound,
    SaveState,
    SendCall,
    Unanswered,
)
from shardbus.replication.refounding import IDENTITY_KEY
from shardbus.replication.registers import is_there
from shardbus.replication.ring import (
    AdoptRing,
    ReplicaRing,
    StoreCall,
    StoreReply,
    majority,
    places_of,
)
from shardbus.replication.values import (
    BUCKETS,
    Function,
    ListValue,
    Reading,
    SavedReminders,
    StateValue,
    TableValue,
    lease_key,
    list_key,
    state_key,
    table_key,
)
from shardbus.replication.values import BUCKETS_EACH as IN_PARTITION
from shardbus.store.batches import BatchEnded, BatchTasks, written
from shardbus.store.protocol import Due, IdPage, Lease, NewHomes, Save, StoredTable, new_identity
from shardbus.store.replica_links import ReplicaLinks
from shardbus.store.replicated_journals import ReplicatedJournals
from shardbus.store.replicated_reminders import ReplicatedReminders
from shardbus.store.replicated_values import VALUES, ReplicatedValues
from shardbus.store.rows import table_of
from shardbus.transport.network import Network

log = GuardedLog("shardbus.store")

ATTEMPTS = 5
"""How often a lease that changes meanwhile is read."""
WAIT_LOG_S = 5.0
FIRST_BUCKETS, BUCKETS_EACH = 16, 256
"""Buckets that a page scans at once, at first and at most."""
SCAN_AGAIN_S = 0.05
SCANS = 2**62
"""Numbers of calls for scans begin here; the proposer's numbers are below."""
SESSION_BITS = 63
_REMINDERS = attrgetter("reminders")


class _Scanned(NamedTuple):
    """The rows of a bucket on one disk, and which disk."""

    disk: int
    rows: tuple[tuple[str, Ballot, bool], ...]


class _BucketScan:
    """The answers to one scan of buckets, all under one ring."""

    def __init__(self, ring: ReplicaRing, buckets: range, complete: asyncio.Future[None]) -> None:
        self._buckets, self.complete = buckets, complete
        self._begin(ring)

    def _begin(self, ring: ReplicaRing) -> None:
        self.ring, self._unread = ring, set(self._buckets)
        self.answers: dict[int, dict[int, _Scanned]] = {bucket: {} for bucket in self._buckets}

    def begin_in(self, ring: ReplicaRing) -> None:
        """Begin anew if this is another ring: answers of two rings never count together."""
        if ring.number != self.ring.number:
            self._begin(ring)

    def take(self, bucket: int, disk: int, ring: int, rows: BucketRows) -> None:
        """Take the answer of a disk under the ring of this number."""
        if ring != self.ring.number:
            return
        self.answers[bucket][disk] = _Scanned(disk, rows.rows)
        if len(self.answers[bucket]) >= majority(len(self._disks(bucket))):
            self._unread.discard(bucket)
        if not self._unread and not self.complete.done():
            self.complete.set_result(None)

    def _disks(self, bucket: int) -> tuple[int, ...]:
        return places_of(self.ring)[bucket // IN_PARTITION]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The buckets that no majority has answered, each with a disk that has not."""
        return [
            (bucket, disk)
            for bucket in self._unread
            for disk in self._disks(bucket)
            if disk not in self.answers[bucket]
        ]


class _Batch:
    """Operations that end together. `ended` takes their outcomes."""

    __slots__ = ("ended", "outcomes", "pending")

    def __init__(self, count: int, ended: Callable[[list[Outcome]], None]) -> None:
        self.outcomes: list[Outcome] = [Unanswered(sent=True)] * count
        self.pending, self.ended = count, ended


class ReplicatedStore:
    """A `StateStore` on the replicas at `addresses`. `timeout` bounds each call, in seconds, and
    `start_within` the start. `network` makes the network of one start."""

    quick = False

    def __init__(
        self,
        url: str,
        cluster: str,
        addresses: Sequence[Address],
        network: Callable[[], Network],
        *,
        timeout: float = 2.0,
        start_within: float = inf,
        copies: Callable[[int], int] = lambda disks: 0,
        dice: Random | None = None,
    ) -> None:
        self._url, self._cluster, self._addresses = url, cluster, tuple(addresses)
        self._network, self._timeout, self._copies = network, timeout, copies
        self._start_within = start_within
        self._dice = dice or Random()
        self._proposer: Proposer | None = None
        self._links: ReplicaLinks
        self._loop: asyncio.AbstractEventLoop
        self._scans = count(SCANS)
        self._batches: set[_Batch] = set()
        """Those under way. The ticket of an operation is its batch and its place there."""
        self._scanned: dict[int, Callable[[int, int, BucketRows], None]] = {}
        self._values: ReplicatedValues | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the timer wakes."""
        self._changed: asyncio.Event
        self._era = 0
        self.on_new_server: Callable[[], None] = lambda: None
        self.journals = ReplicatedJournals(
            self._change, self._change_all, self._read, self._page_keys
        )
        self._tasks = BatchTasks(self.save_states)
        self._reminders = ReplicatedReminders(
            self._change, self._do_all, self._read, self._save_all
        )

    # ---- the driver

    async def start(self) -> None:
        """Connect, and wait until a majority of the replicas serves.

        Raises:
            ConfigError: this build cannot encrypt, or libzmq is too old.
            StoreUnavailable: they did not serve within `start_within`.
        """
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._links = ReplicaLinks(
            self._cluster, self._addresses, self._network(), self._on_replies, self._on_change,
            on_refused=self._on_refused,
        )  # fmt: skip
        self._links.open(self._loop)
        try:
            ring = await self._serving_ring()
        except BaseException:
            self._links.close()
            raise
        session = secrets.randbits(SESSION_BITS)
        self._links.take_ring(ring)
        self._era = ring.era
        self._proposer = Proposer(session, ring, self._dice)
        self._values = ReplicatedValues(
            self._url, self._links, ring, self._timeout, self._keys_there, self._dice
        )

    async def _serving_ring(self) -> ReplicaRing:
        """Wait for a majority of the disks of a ring. Returns the ring."""
        end = self._loop.time() + self._start_within
        while True:
            self._changed.clear()
            ring, links = self._links.ring, self._links
            if ring.members and links.serving(ring) >= majority(len(ring.members)):
                return ring
            try:
                async with asyncio.timeout(min(WAIT_LOG_S, end - self._loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                if self._loop.time() >= end:
                    text = f"{self._url} has no majority: {links.troubles}"
                    raise StoreUnavailable(text, definite=True) from None
                log.warning("the store %s waits for replicas: %s", self._url, links.troubles)

    def rekey(self) -> None:
        """Let every replica read the file of its keys again. The links find the new ones when these
        end their connections."""
        self._links.rekey()

    async def close(self) -> None:
        """Close the connections. Operations under way fail."""
        proposer, self._proposer = self._proposer, None
        if proposer is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.values.close()
        self._links.close()
        batches, self._batches = self._batches, set()
        for batch in batches:
            self._loop.call_soon(batch.ended, batch.outcomes)
        self._scanned.clear()

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the replicas that do not serve, each with the reason."""
        troubles = self._links.troubles if self._proposer is not None else ""
        return tuple(f"a replica does not serve: {t}" for t in troubles.split("; ") if t)

    @property
    def replicas(self) -> tuple[dict[str, object], ...]:
        """The replicas as this object reaches them (`protocol.replicas_of`)."""
        return self._links.rows if self._proposer is not None else ()

    @property
    def voters(self) -> tuple[int, tuple[str, ...]] | None:
        """The ring and its voters (`protocol.voters_of`)."""
        return self._links.voters if self._proposer is not None else None

    @property
    def values(self) -> ReplicatedValues:
        """The replicated values.

        Raises:
            StoreUnavailable: the store is not open.
        """
        if self._values is None:
            raise StoreUnavailable(f"{self._url} is not open", definite=True)
        return self._values

    @property
    def value_counts(self) -> Mapping[tuple[str, str], int]:
        """The requests of replicated values that have ended (`protocol.value_counts_of`)."""
        return self._values.counts if self._values is not None else {}

    @property
    def value_conflicts(self) -> Mapping[str, int]:
        """The keys with many values (`protocol.value_conflicts_of`)."""
        return self._values.conflicts.keys if self._values is not None else {}

    def _open(self) -> Proposer:
        if self._proposer is None:
            raise StoreUnavailable(f"{self._url} is not open", definite=True)
        return self._proposer

    def _on_change(self) -> None:
        self._changed.set()
        if self._proposer is not None:
            self._carry_out(self._proposer.take_ring(self._links.ring, self._loop.time()))
            self.values.on_change()

    def _on_refused(self, disk: int, ring: ReplicaRing) -> None:
        if self._proposer is not None:
            self.values.on_refused(disk, ring)

    def _on_replies(self, replies: list[StoreReply]) -> None:
        proposer = self._proposer
        if proposer is None:
            return
        now = self._loop.time()
        for reply in replies:
            if VALUES <= reply.number < SCANS:
                self.values.handle(reply)
            elif reply.number >= SCANS:
                scanned = self._scanned.get(reply.number)
                answer = reply.answer
                if scanned is not None and isinstance(answer, BucketRows):
                    scanned(reply.disk, reply.ring, answer)
            else:
                self._carry_out(proposer.handle(reply, now))
        self._arm()

    def _carry_out(self, effects: list[Effect]) -> None:
        send = self._links.send
        for effect in effects:
            if type(effect) is SendCall and type(effect.call) is StoreCall:
                send(effect.disk, effect.call)  # most effects, faster than by a pattern
                continue
            match effect:
                case Finished((_Batch() as batch, int() as place), outcome):
                    batch.outcomes[place] = outcome
                    batch.pending -= 1
                    if not batch.pending:
                        self._batches.discard(batch)
                        self._loop.call_soon(batch.ended, batch.outcomes)
                case SendCall(disk, AdoptRing(ring)):
                    self._links.adopt(ring, {disk})
                case RingFound(ring):
                    log.info("%s: ring %d of %d disks", self._url, ring.number, len(ring.members))
                    self._on_ring(ring)
                case Finished():
                    pass

    def _on_ring(self, ring: ReplicaRing) -> None:
        self._links.take_ring(ring)
        if ring.era != self._era:
            self._era = ring.era
            log.warning("%s was founded anew: acknowledged saves may be lost", self._url)
            self.on_new_server()

    def _arm(self) -> None:
        """Wake at the proposer's next deadline."""
        due = self._proposer.deadline() if self._proposer is not None else None
        if self._timer is not None and (due is None or self._due > due):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._due, self._timer = due, self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._proposer is not None:
            self._carry_out(self._proposer.tick(self._loop.time()))
            self._arm()

    def _begin_all(
        self, works: Sequence[tuple[str, Operation]], ended: Callable[[list[Outcome]], None]
    ) -> None:
        """Begin operations, at least one. `ended` is called once, in a callback of the loop."""
        proposer, batch = self._open(), _Batch(len(works), ended)
        self._batches.add(batch)
        now = self._loop.time()
        for place, (key, work) in enumerate(works):
            self._carry_out(proposer.submit((batch, place), key, work, now, self._timeout))
        self._arm()

    async def _do_all(self, works: Sequence[tuple[str, Operation]]) -> list[Outcome]:
        """Carry out operations at once. Returns their outcomes.

        Raises:
            StoreUnavailable: too few replicas have answered in time, for any of them.
        """
        self._open()
        if not works:
            return []
        future: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._begin_all(works, lambda done: None if future.done() else future.set_result(done))
        outcomes = await future
        if all(isinstance(outcome, Unanswered) for outcome in outcomes):
            definite = all(isinstance(o, Unanswered) and not o.sent for o in outcomes)
            raise self._unavailable(definite=definite)
        return outcomes

    async def _do(self, key: str, work: Operation) -> Outcome:
        """Carry out one operation, as `_do_all`."""
        [outcome] = await self._do_all([(key, work)])
        return outcome

    def _unavailable(self, *, definite: bool = False) -> StoreUnavailable:
        troubles = "" if self._proposer is None else self._links.troubles
        return StoreUnavailable(
            f"{self._url}: too few replicas have answered within {self._timeout:g} s"
            + (f": {troubles}" if troubles else ""),
            hint="a majority of the replicas must run",
            definite=definite,
        )

    async def _change_all(self, changes: Sequence[tuple[str, int, Function]]) -> list[object]:
        """Change many values at once. Returns the result of each, StoreUnavailable for one that too
        few replicas have answered. Raises as `_do_all`."""
        works = [(key, ChangeValue(fence, function)) for key, fence, function in changes]
        return [
            outcome.result
            if isinstance(outcome, Completed)
            else self._unavailable(definite=isinstance(outcome, Unanswered) and not outcome.sent)
            for outcome in await self._do_all(works)
        ]

    async def _change(
        self, key: str, fence: int, function: Function, patience: float = 0.0
    ) -> object:
        """Change a value. Returns the result of the function, or raises it if it is an error."""
        outcome = await self._do(key, ChangeValue(fence, function, patience))
        assert isinstance(outcome, Completed)
        if isinstance(outcome.result, Exception):
            raise outcome.result
        return outcome.result

    async def _read(self, key: str) -> Reading:
        outcome = await self._do(key, ReadValue())
        assert isinstance(outcome, Completed)
        reading = outcome.result
        assert isinstance(reading, Reading)
        return reading

    # ---- the store's identity, and tables

    async def identity(self, known: str = "") -> str:
        function = functions.identify(known, new_identity())
        return str(await self._change(IDENTITY_KEY, 0, function))

    async def load_table(self, entity_type: str) -> StoredTable | None:
        value = (await self._read(table_key(entity_type))).value
        return _stored(entity_type, value) if isinstance(value, TableValue) else None

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        function = functions.claim(entity_type, epoch, layout, self._open().session)
        table = await self._change(table_key(entity_type), epoch, function, RULER_PAUSE_S)
        assert isinstance(table, TableValue)
        return _stored(entity_type, table)

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        function = functions.write_homes(entity_type, epoch, self._open().session, homes, op_id)
        await self._change(table_key(entity_type), epoch, function, RULER_PAUSE_S)

    async def remove_table(self, entity_type: str) -> bool:
        function = functions.remove_homes(_new_id())
        return bool(await self._change(table_key(entity_type), 0, function))

    # ---- states

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        outcome = await self._do(state_key(entity_type, entity_id), LoadState(fence))
        if isinstance(outcome, Outdated):
            raise StaleFence(entity_type, entity_id, fence, outcome.stored)
        assert isinstance(outcome, Completed)
        state = outcome.result
        return state.data if isinstance(state, StateValue) else None

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        if any(map(_REMINDERS, saves)):
            return await self._reminders.save_states(saves)
        return await self._save_all(saves)

    def begin_saves(self, saves: Sequence[Save], ended: BatchEnded) -> None:
        """Send saves at once; with reminders, other writes come first."""
        if any(map(_REMINDERS, saves)):
            self._tasks.begin_saves(saves, ended)
        else:
            self._begin_saves(saves, ended)

    async def _save_all(self, saves: Sequence[Save]) -> list[StoreError | None]:
        return await written(self._begin_saves, saves)

    def _begin_saves(self, saves: Sequence[Save], ended: BatchEnded) -> None:
        copies = self._copies(len(self._addresses))
        works: list[tuple[str, Operation]] = [
            (
                state_key(save.entity_type, save.entity_id),
                SaveState(save.fence, save.op_id, save.data, copies, _saved_reminders(save)),
            )
            for save in saves
        ]
        self._begin_all(works, lambda outcomes: ended(self._saved(saves, outcomes)))

    def _saved(self, saves: Sequence[Save], outcomes: Sequence[Outcome]) -> list[StoreError | None]:
        answers: list[StoreError | None] = [None] * len(saves)
        for place, outcome in enumerate(outcomes):
            match outcome:
                case Outdated(stored):
                    kind, _, entity_id, fence, *_ = saves[place]
                    answers[place] = StaleFence(kind, entity_id, fence, stored)
                case Unanswered(sent):
                    answers[place] = self._unavailable(definite=not sent)
                case _:
                    pass
        return answers

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        reads = (self._read(state_key(entity_type, entity_id)) for entity_id in entity_ids)
        values = [reading.value for reading in await asyncio.gather(*reads)]
        return [value.data if isinstance(value, StateValue) else None for value in values]

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        function = functions.expire(now, since, _new_id())
        keys = [state_key(entity_type, entity_id) for entity_id in entity_ids]
        removed = await asyncio.gather(*(self._change(key, 0, function) for key in keys))
        return [entity_id for entity_id, gone in zip(entity_ids, removed, strict=True) if gone]

    # ---- lists

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        function = functions.change_list(entity_type, shard, entity_ids, (), fence)
        await self._change(list_key(entity_type, shard), fence, function)

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        function = functions.change_list(entity_type, shard, (), entity_ids, fence)
        await self._change(list_key(entity_type, shard), fence, function)

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> IdPage:
        value = (await self._read(list_key(entity_type, shard))).value
        ids = value.entity_ids if isinstance(value, ListValue) else ()
        page = sorted(name for name in ids if cursor is None or name > cursor)[:limit]
        return page, page[-1] if len(page) == limit else None

    async def remembered_shards(self, entity_type: str) -> list[str]:
        return await self._listed_shards(entity_type)

    async def _listed_shards(self, entity_type: str) -> list[str]:
        """Return the shards whose lists have something: remembered entities or reminders."""
        shards, prefix = list[str](), list_key(entity_type, "")
        for first in range(0, BUCKETS, BUCKETS_EACH):
            scanned = await self._scan(range(first, first + BUCKETS_EACH), prefix)
            for disks in scanned:
                here = {key for disk in disks for key, _, there in disk.rows if there}
                shards += [key.removeprefix(prefix) for key in sorted(here)]
        return shards

    # ---- reminders

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        return await self._reminders.load(entity_type, entity_ids)

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        return await self._reminders.page_due(entity_type, shard, after, limit)

    async def due_shards(self, entity_type: str) -> list[str]:
        return await self._listed_shards(entity_type)

    # ---- scans

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> IdPage:
        """As the protocol says. The cursor is the number of a bucket."""
        start = state_key(entity_type, "")
        keys, following = await self._page_keys(start + prefix, cursor, limit)
        return [key.removeprefix(start) for key in keys], following

    async def _page_keys(self, prefix: str, cursor: str | None, limit: int) -> IdPage:
        """Return about `limit` keys with this prefix whose values are there, and the next
        cursor."""
        place = cursor or "0"
        if not (place.isascii() and place.isdigit() and len(place) <= 4):
            raise StoreError(f"{place!r:.60} is no cursor of this store")
        first, page = int(place), list[str]()
        width = FIRST_BUCKETS if cursor is None else BUCKETS_EACH
        buckets = range(first, min(first + width, BUCKETS))
        for bucket, disks in zip(buckets, await self._scan(buckets, prefix), strict=True):
            page += await self._there(disks)
            if len(page) >= limit and bucket + 1 < BUCKETS:
                return page, str(bucket + 1)
        return page, str(buckets.stop) if buckets.stop < BUCKETS else None

    async def _there(self, disks: list[_Scanned]) -> list[str]:
        """Return the keys of a bucket whose values are there; read those on which disks differ."""
        rows: dict[str, list[tuple[Ballot, bool]]] = {}
        for disk in disks:
            for key, ballot, there in disk.rows:
                rows.setdefault(key, []).append((ballot, there))
        keys, doubtful = list[str](), list[str]()
        for key, seen in rows.items():
            if len(seen) == len(disks) and len(set(seen)) == 1:
                keys += [key] if seen[0][1] else []
            elif any(there for _, there in seen):
                doubtful.append(key)
        readings = await asyncio.gather(*map(self._read, doubtful))
        for key, reading in zip(doubtful, readings, strict=True):
            if is_there(reading.value):
                keys.append(key)
        return sorted(keys)

    async def _keys_there(self, prefix: str) -> list[str]:
        """Return the keys of a kind without ballots that begin with this text, and that a disk
        has."""
        keys = set[str]()
        for first in range(0, BUCKETS, BUCKETS_EACH):
            for disks in await self._scan(range(first, first + BUCKETS_EACH), prefix):
                keys |= {key for disk in disks for key, _, there in disk.rows if there}
        return list(keys)

    async def _scan(self, buckets: range, prefix: str) -> list[list[_Scanned]]:
        """Return the rows of each bucket, from a majority of disks.

        Raises:
            StoreUnavailable: too few replicas have answered in time.
        """
        proposer = self._open()
        number = {bucket: next(self._scans) for bucket in buckets}
        scan = _BucketScan(proposer.ring, buckets, self._loop.create_future())
        for bucket in buckets:
            self._scanned[number[bucket]] = partial(scan.take, bucket)
        try:
            async with asyncio.timeout(self._timeout):
                while not scan.complete.done():
                    scan.begin_in(proposer.ring)
                    for bucket, disk in scan.missing:
                        call = ScanBucket(bucket, prefix)
                        self._links.send(disk, StoreCall(number[bucket], scan.ring.number, call))
                    await asyncio.wait({scan.complete}, timeout=SCAN_AGAIN_S)
        except TimeoutError:
            raise self._unavailable(definite=True) from None
        finally:
            for ticket in number.values():
                self._scanned.pop(ticket, None)
        return [list(scan.answers[bucket].values()) for bucket in buckets]

    # ---- leases

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        key = lease_key(name)
        for _ in range(ATTEMPTS):
            function = functions.acquire(owner, ttl, await self._read(key), _new_id())
            if function is None:
                return None
            counter = await self._change(key, 0, function)
            if isinstance(counter, int):
                return Lease(name, owner, counter)
        return None  # others take it and free it meanwhile

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        key = lease_key(lease.name)
        function = functions.renew(lease.owner, lease.counter, ttl, await self._read(key))
        return bool(await self._change(key, 0, function))

    async def release_lease(self, lease: Lease) -> None:
        function = functions.release(lease.owner, lease.counter)
        await self._change(lease_key(lease.name), 0, function)


def _new_id() -> int:
    """Return a random id of an operation; never 0."""
    return secrets.randbits(SESSION_BITS) | 1


def _saved_reminders(save: Save) -> SavedReminders | None:
    """Return the reminders of a save as the row of a state takes them."""
    reminders = save.reminders
    if reminders is None:
        return None
    due, record, alone = reminders
    return SavedReminders(save.shard, due, record if due else None, alone)


def _stored(entity_type: str, table: TableValue) -> StoredTable:
    rows = [(shard, *home) for shard, home in table.homes.items()]
    return table_of(entity_type, table.epoch, table.layout, rows)
