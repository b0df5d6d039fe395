"""Remembered entities: the entities of a shard that run whenever the shard does.

The problem: an entity must start again after a move, a crash, or a stop of the whole cluster,
though no message comes for it. So the store has a list of ids per shard, and the list is ahead of
the memory: an entity starts only after the store has its id, and its id leaves the list only when
the entity passivates.

    message for an unknown id ──> waits in its mailbox ──stored──> starts, handles
    shard starts              ──> fence raised, list read in pages ──> starts, a few at a time
    passivation               ──> stops ──> forgotten, unless a message waited for it
    stop, failure             ──> stops ──> starts again after `entity_restart_backoff`
    hand-off, shutdown        ──> stops, and stays on the list

**Writes** of a shard go one after the other, each with everything that gathered during the last
one: for an id its last state counts, listed or not. A failed write is repeated while the shard is
here, with a pause that doubles up to `shard_failure_backoff`; messages wait meanwhile, bounded by
the mailbox. A shard is not given away before its last write has ended.

**Fences.** Every write carries the shard's fence, and the first one raises it before the list is
read: a former home can neither add to the list nor remove from it any more.

**Recovery** is how fast the entities of a list start again:

    all         every entity that was read, at once
    constant    a number per interval: `entity_recovery_constant_rate_*`
    adaptive    for 4 ms in each turn of the loop, fewer if the loop is late

In each of them a turn ends after 4 ms, and at most 1000 starts are under way, since each may ask
the store for its state. An entity for which a message arrives does not wait for its recovery: the
message starts it.

**Relocation.** After a change of the shard function an id belongs to another shard than its list
says. The node that finds it starts it in its right shard, and then forgets it here; in this order,
so that it is on a list at every moment. A start that fails is tried again.

Source: S2.60, S2.70-S2.72, S4.37, S4.40, B.90-B.95, N.14.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, LifeState, Shard
from shardbus.entities.gate import SuspensionGate
from shardbus.errors import RequestError, StaleFence, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.remember")

T = TypeVar("T")

PAGE = 1000
"""Ids of a list that are read at a time."""
PAUSE_MIN_S = 0.1
"""The pause before the first repetition of a store operation."""

TURN_S = 0.004
"""Time that recovery takes of one turn of the loop."""
LATE_S = 0.02
"""A loop that is later than this is busy, for the adaptive strategy."""
STARTING_MAX = 1000
SHUT_S = 0.1
"""The pause of recovery while the node is suspended."""

MOVES_MAX = 100
"""Relocations under way at a time."""
MOVE_AGAIN_S = 2.0
"""The pause before a relocation is repeated."""


class ShardNotHosted(Exception):
    """This node does not host the shard any more. Never leaves this module."""


class ListedEntity(Protocol):
    """An entity that is to be listed: its activation, or its mailbox."""

    @property
    def key(self) -> str: ...


class RememberedEntities:
    """The lists of one type's shards on one node, the recovery of the entities on them, and the
    relocation of those that belong to other shards.

    Args:
        start: called once the store has a new entity.
        again: starts an entity that was read from a list, if it is still to be started.
        settled: called when a shard has no write under way any more.
        start_elsewhere: starts an entity in its right shard.
    """

    def __init__(
        self,
        entity_type: str,
        store: StateStore,
        loop: asyncio.AbstractEventLoop,
        settings: ShardingSettings,
        gate: SuspensionGate,
        *,
        start: Callable[[Any], None],
        again: Start,
        settled: Callable[[Shard], None],
        start_elsewhere: Callable[[str], Awaitable[None]],
    ) -> None:
        self.entity_type = entity_type
        self.recovery = EntityRecovery(settings, loop, again, gate)
        self.relocation = EntityRelocation(entity_type, loop, start_elsewhere, self.forget, again)
        self._store, self._loop = store, loop
        self._pause_max = settings.shard_failure_backoff
        self._start, self._settled = start, settled
        self._lists: dict[Shard, ShardList] = {}
        self._tasks = TaskSet()

    @property
    def waiting(self) -> int:
        """Entities that wait for the store to list them."""
        return sum(len(shard_list.activations) for shard_list in self._lists.values())

    def open(self, hosted: Shard) -> None:
        """Take over the list of a shard that this node hosts now, and read it."""
        shard_list = self._lists[hosted] = ShardList(hosted)
        self._spawn(self._read(shard_list))

    def close(self, hosted: Shard) -> None:
        """Forget a shard that has left this node."""
        self._lists.pop(hosted, None)

    def busy(self, hosted: Shard) -> bool:
        """True if a write of this shard is under way, or due."""
        shard_list = self._lists.get(hosted)
        return (
            shard_list is not None
            and not shard_list.stale
            and (shard_list.writing or bool(shard_list.changes))
        )

    def knows(self, hosted: Shard, entity_id: str) -> bool:
        """True if the entity is on the shard's list in the store, and stays there."""
        shard_list = self._lists.get(hosted)
        return shard_list is not None and entity_id in shard_list.listed

    def add(self, hosted: Shard, activation: ListedEntity) -> None:
        """Add an entity to the list, and start it afterwards."""
        shard_list = self._lists[hosted]
        shard_list.activations[activation.key] = activation
        self._want(shard_list, activation.key, True)

    def forget(self, hosted: Shard, entity_id: str) -> None:
        """Remove an entity from the list."""
        shard_list = self._lists.get(hosted)
        if shard_list is not None:
            shard_list.listed.discard(entity_id)  # its next activation must be listed again
            self._want(shard_list, entity_id, False)

    def list_again(self) -> None:
        """Write every list again, with its fence: the store may have lost them."""
        for shard_list in self._lists.values():
            if shard_list.stale or not shard_list.read:
                continue
            for entity_id in shard_list.listed:
                if entity_id not in shard_list.changes:
                    self._want(shard_list, entity_id, True)

    def abandon(self, hosted: Shard) -> list[Any]:
        """Return the entities that wait for the list of a stopping shard, if the store accepts no
        write of this node any more. They do not start here."""
        shard_list = self._lists.get(hosted)
        if shard_list is None or not shard_list.stale:
            return []
        activations, shard_list.activations = list(shard_list.activations.values()), {}
        return activations

    def stop(self) -> None:
        """Cancel all store operations, recovery and relocation: the node ends."""
        self.recovery.stop()
        self.relocation.stop()
        self._tasks.cancel()
        self._lists.clear()

    # ---- the store

    async def _read(self, shard_list: ShardList) -> None:
        shard, fence = shard_list.hosted.shard, shard_list.hosted.fence
        store, name = self._store, self.entity_type
        cursor: str | None = ""
        with suppress(ShardNotHosted):
            await self._insist(shard_list, lambda: store.add_remembered(name, shard, (), fence))
            while cursor is not None:
                at = cursor or None
                page = partial(store.page_remembered, name, shard, at, PAGE)
                ids, cursor = await self._insist(shard_list, page)
                fresh = [i for i in ids if i not in shard_list.touched]
                shard_list.listed.update(fresh)
                self.recovery.put(shard_list.hosted, fresh)
        shard_list.read, shard_list.touched = True, set()

    def _want(self, shard_list: ShardList, entity_id: str, listed: bool) -> None:
        shard_list.changes[entity_id] = listed
        if not shard_list.read:
            shard_list.touched.add(entity_id)
        if not shard_list.writing:
            shard_list.writing = True
            self._spawn(self._write(shard_list))

    async def _write(self, shard_list: ShardList) -> None:
        shard, fence = shard_list.hosted.shard, shard_list.hosted.fence
        changes = {True: self._store.add_remembered, False: self._store.remove_remembered}
        with suppress(ShardNotHosted):
            while shard_list.changes:
                await asyncio.sleep(0)  # one write for all changes of this turn of the loop
                batch, shard_list.changes = shard_list.changes, {}
                for listed, change in changes.items():
                    ids = [i for i, want in batch.items() if want is listed]
                    if ids:
                        write = partial(change, self.entity_type, shard, ids, fence)
                        await self._insist(shard_list, write)
                        if listed:
                            self._listed(shard_list, ids)
        shard_list.writing = False
        self._settled(shard_list.hosted)

    def _listed(self, shard_list: ShardList, ids: list[str]) -> None:
        shard_list.listed.update(ids)
        for entity_id in ids:
            activation = shard_list.activations.pop(entity_id, None)
            if activation is not None:
                self._start(activation)

    async def _insist(self, shard_list: ShardList, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a store operation until it succeeds.

        Raises:
            ShardNotHosted: the shard has left this node, or the store knows a later home of it.
        """
        pause = min(PAUSE_MIN_S, self._pause_max)
        while not shard_list.stale and self._lists.get(shard_list.hosted) is shard_list:
            try:
                return await attempt()
            except StaleFence as stale:
                log.warning("%s shard %s: %s", self.entity_type, shard_list.hosted.shard, stale)
                shard_list.stale = True
            except StoreError as error:
                log.warning("%s shard %s: %s", self.entity_type, shard_list.hosted.shard, error)
            except Exception:  # a defect must not end it: entities would wait for ever
                log.exception(
                    "%s shard %s: a call for its remembered entities failed",
                    self.entity_type,
                    shard_list.hosted.shard,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._pause_max)
        raise ShardNotHosted

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.spawn(work, self._loop)


class ShardList:
    """This node's knowledge of one shard's list."""

    __slots__ = (
        "activations",
        "changes",
        "hosted",
        "listed",
        "read",
        "stale",
        "touched",
        "writing",
    )

    def __init__(self, hosted: Shard) -> None:
        self.hosted = hosted
        self.listed: set[str] = set()
        """Ids on the list in the store, that stay there."""
        self.changes: dict[str, bool] = {}
        """Changes for the next write: True lists the id, False removes it."""
        self.activations: dict[str, ListedEntity] = {}
        """Entities that start once the store has listed them."""
        self.read = False
        """The whole list was read."""
        self.touched: set[str] = set()
        """Ids changed during the reading: a page may hold an older state of them."""
        self.writing = False
        self.stale = False
        """The store knows a later home and accepts no write of this node."""


Start = Callable[[Shard, str], Activation | None]
"""Starts an entity that was read from a list; None if it runs already, or its shard has gone."""


class EntityRecovery:
    """The entities of one type that wait to be started again."""

    def __init__(
        self,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        start: Start,
        gate: SuspensionGate | None = None,
    ) -> None:
        self._settings, self._loop, self._start = settings, loop, start
        self._gate = gate or SuspensionGate()
        self._queue: deque[tuple[Shard, str]] = deque()
        self._starting: list[Activation] = []
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._starts_left = 0
        """Constant strategy: entities of this interval that are still to be started."""

    @property
    def waiting(self) -> int:
        """Entities that are still to be started."""
        return len(self._queue)

    def put(self, hosted: Shard, entity_ids: Iterable[str]) -> None:
        """Queue entities of a shard to be started."""
        self._queue.extend((hosted, entity_id) for entity_id in entity_ids)
        if self._queue and self._timer is None:
            self._later(0.0)

    def stop(self) -> None:
        """Cancel the recovery: the node ends."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._gate.close_if_due():
            self._later(SHUT_S)
            return
        late = self._loop.time() - self._due
        self._starting = [a for a in self._starting if a.state < LifeState.RUNNING]
        settings = self._settings
        constant = settings.entity_recovery_strategy == "constant"
        if constant and not self._starts_left:
            self._starts_left = settings.entity_recovery_constant_rate_number_of_entities
        started = self._start_some(self._starts_left if constant else None)
        self._starts_left -= min(started, self._starts_left)
        if not self._queue:
            self._starts_left = 0
        elif constant and not (started and self._starts_left):
            self._starts_left = 0
            self._later(settings.entity_recovery_constant_rate_frequency)
        elif settings.entity_recovery_strategy == "adaptive" and late > LATE_S:
            self._later(late)
        else:
            self._later(0.0 if started else TURN_S)

    def _start_some(self, most: int | None) -> int:
        """Start at most `most` entities, until the time of the turn or the bound on starts is used
        up. Returns the number."""
        end = self._loop.time() + TURN_S
        started = 0
        while self._queue and started != most and len(self._starting) < STARTING_MAX:
            hosted, entity_id = self._queue.popleft()
            activation = self._start(hosted, entity_id)
            if activation is not None:
                started += 1
                if activation.state < LifeState.RUNNING:
                    self._starting.append(activation)
            if self._loop.time() >= end:
                break
        return started


@dataclass(eq=False, repr=False)
class EntityRelocation:
    """Moves listed entities of one type to their right shards. `forget` removes an id from the list
    of a shard, `again` decides once more about it."""

    entity_type: str
    _loop: asyncio.AbstractEventLoop
    _start_elsewhere: Callable[[str], Awaitable[None]]
    _forget: Callable[[Shard, str], None]
    _again: Callable[[Shard, str], object]
    _tasks: TaskSet = field(default_factory=TaskSet)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOVES_MAX))

    def move(self, hosted: Shard, entity_id: str) -> None:
        """Start an entity in its right shard, then forget it here."""
        self._tasks.spawn(self._move(hosted, entity_id), self._loop)

    async def _move(self, hosted: Shard, entity_id: str) -> None:
        async with self._places:
            try:
                await self._start_elsewhere(entity_id)
            except RequestError as e:
                log.warning("%s %r does not start elsewhere: %s", self.entity_type, entity_id, e)
                self._tasks.call_later(self._loop, MOVE_AGAIN_S, self._again, hosted, entity_id)
            else:
                self._forget(hosted, entity_id)

    def stop(self) -> None:
        """Cancel every relocation: the node ends."""
        self._tasks.cancel()
