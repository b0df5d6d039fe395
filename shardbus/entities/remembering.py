"""Remembered entities: which entities of a shard shall run whenever the shard does.

The problem: an entity that runs must come back after a move, a crash, or a stop of everything,
though nobody sends to it. So the store has a list of ids per shard, and the list is ahead of the
memory: an entity is started only after the store has its id, and goes from the list only when it
asked to (passivation).

    message for an unknown id ──> waits in its mailbox ──stored──> starts, handles
    shard starts              ──> fence raised, list read in pages ──> starts, a few at a time
    passivation               ──> stops ──> forgotten, unless a message waited for it
    stop, failure             ──> stops ──> starts again after `entity_restart_backoff`
    hand-off, shutdown        ──> stops, and stays on the list

**Writes** of a shard go one after the other, each with everything that gathered while the last was
under way: what is wanted of an id is its last state, listed or not. A failed write is repeated for
as long as the shard is here, with a pause that doubles up to `shard_failure_backoff`; messages wait
meanwhile, bounded by the mailbox. A shard is not given away before its last write has ended.

**Fences.** Every write carries the shard's fence, and the first one raises it before the list is
read: a former home can neither add to the list nor take from it any more.

Not here: how fast what was read starts (`recovery`), and where shards live.

Source: S2.60, S4.37, S4.40; B.90-B.95; C.14-C.16; N.14.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shardbus.errors import StaleFence, StoreError
from shardbus.store.protocol import StateStore

if TYPE_CHECKING:
    from shardbus.entities.context import Context
    from shardbus.entities.shard import Shard

log = logging.getLogger("shardbus.remember")

T = TypeVar("T")

PAGE = 1000
PAUSE_MIN_S = 0.1


class ShardNotHosted(Exception):
    """The shard is not this node's any more. Never leaves this module."""


class RememberedEntities:
    """The remembered entities of one type on one node. `start(cell)` is called once the store knows
    a new entity, `recover(hosted, ids)` with what was read of the list, `settled(hosted)` when a
    shard has no write under way any more. `pause_max`: seconds between two attempts at most."""

    def __init__(
        self,
        entity_type: str,
        store: StateStore,
        loop: asyncio.AbstractEventLoop,
        *,
        pause_max: float,
        start: Callable[[Context], None],
        recover: Callable[[Shard, list[str]], None],
        settled: Callable[[Shard], None],
    ) -> None:
        self.entity_type = entity_type
        self._store, self._loop, self._pause_max = store, loop, pause_max
        self._start, self._recover, self._settled = start, recover, settled
        self._books: dict[Shard, ShardList] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Entities that wait for the store to know them."""
        return sum(len(book.activations) for book in self._books.values())

    def open(self, hosted: Shard) -> None:
        """The shard lives here now: take over its list, and read it."""
        book = self._books[hosted] = ShardList(hosted)
        self._spawn(self._read(book))

    def close(self, hosted: Shard) -> None:
        """The shard has gone."""
        self._books.pop(hosted, None)

    def busy(self, hosted: Shard) -> bool:
        """A write of this shard is under way, or wanted."""
        book = self._books.get(hosted)
        return book is not None and not book.stale and (book.writing or bool(book.wanted))

    def knows(self, hosted: Shard, entity_id: str) -> bool:
        """The store has it on the shard's list, and keeps it there."""
        book = self._books.get(hosted)
        return book is not None and entity_id in book.listed

    def add(self, hosted: Shard, activation: Context) -> None:
        """Start the entity once it is on the list."""
        book = self._books[hosted]
        book.activations[activation.entity_id] = activation
        self._want(book, activation.entity_id, True)

    def forget(self, hosted: Shard, entity_id: str) -> None:
        """Take it from the list."""
        book = self._books.get(hosted)
        if book is not None:
            book.listed.discard(entity_id)  # whoever comes now must be listed anew
            self._want(book, entity_id, False)

    def abandon(self, hosted: Shard) -> list[Context]:
        """The shard stops, and the store lets this node write nothing: the entities that waited for
        that. Nobody will start them here."""
        book = self._books.get(hosted)
        if book is None or not book.stale:
            return []
        activations, book.activations = list(book.activations.values()), {}
        return activations

    def stop(self) -> None:
        """The node ends."""
        for task in self._tasks:
            task.cancel()
        self._books.clear()

    # ---- the store

    async def _read(self, book: ShardList) -> None:
        shard, fence = book.hosted.shard, book.hosted.fence
        store, name = self._store, self.entity_type
        cursor: str | None = ""
        with suppress(ShardNotHosted):
            await self._insist(book, lambda: store.add_remembered(name, shard, (), fence))
            while cursor is not None:
                at = cursor or None
                page = partial(store.page_remembered, name, shard, at, PAGE)
                ids, cursor = await self._insist(book, page)
                fresh = [i for i in ids if i not in book.touched]
                book.listed.update(fresh)
                self._recover(book.hosted, fresh)
        book.read, book.touched = True, set()

    def _want(self, book: ShardList, entity_id: str, listed: bool) -> None:
        book.wanted[entity_id] = listed
        if not book.read:
            book.touched.add(entity_id)
        if not book.writing:
            book.writing = True
            self._spawn(self._write(book))

    async def _write(self, book: ShardList) -> None:
        shard, fence = book.hosted.shard, book.hosted.fence
        ways = {True: self._store.add_remembered, False: self._store.remove_remembered}
        with suppress(ShardNotHosted):
            while book.wanted:
                await asyncio.sleep(0)  # what this turn brings goes along
                wanted, book.wanted = book.wanted, {}
                for listed, change in ways.items():
                    ids = [i for i, want in wanted.items() if want is listed]
                    if ids:
                        write = partial(change, self.entity_type, shard, ids, fence)
                        await self._insist(book, write)
                        if listed:
                            self._listed(book, ids)
        book.writing = False
        self._settled(book.hosted)

    def _listed(self, book: ShardList, ids: list[str]) -> None:
        book.listed.update(ids)
        for entity_id in ids:
            activation = book.activations.pop(entity_id, None)
            if activation is not None:
                self._start(activation)

    async def _insist(self, book: ShardList, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the store has done it.

        Raises:
            NotOurs: the shard has gone, or the store knows a later home of it.
        """
        pause = min(PAUSE_MIN_S, self._pause_max)
        while not book.stale and self._books.get(book.hosted) is book:
            try:
                return await attempt()
            except StaleFence as stale:
                log.warning("%s shard %s: %s", self.entity_type, book.hosted.shard, stale)
                book.stale = True
            except StoreError as error:
                log.warning("%s shard %s: %s", self.entity_type, book.hosted.shard, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._pause_max)
        raise ShardNotHosted

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class ShardList:
    """What is known of one shard's list."""

    __slots__ = ("activations", "hosted", "listed", "read", "stale", "touched", "wanted", "writing")

    def __init__(self, hosted: Shard) -> None:
        self.hosted = hosted
        self.listed: set[str] = set()
        """Ids that the store has, and shall keep."""
        self.wanted: dict[str, bool] = {}
        """What the next write shall do: list the id, or take it from the list."""
        self.activations: dict[str, Context] = {}
        """Entities that start once the store has them."""
        self.read = False
        """The whole list was read."""
        self.touched: set[str] = set()
        """Ids written meanwhile: what is read of them may be old."""
        self.writing = False
        self.stale = False
        """The store has seen a later home: this one may write nothing any more."""
