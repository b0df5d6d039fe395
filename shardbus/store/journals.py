"""The journals of a store as a process uses them: appends that share round trips, and reads.

Appends to many journals share round trips as saves do (`group_commit`). Of a journal one append is
in flight at a time; it may have several entries. An append without an answer is sent again under
its operation id. If it fails with StoreUnavailable, it may or may not be in the journal: who
appends opens the journal again before the next append.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from shardbus.errors import StoreUnavailable
from shardbus.store.batches import batches_of
from shardbus.store.clock import machine_clock
from shardbus.store.group_commit import ATTEMPTS, SaveGroup, SaveObserver, op_ids
from shardbus.store.journal_protocol import JournalPage, JournalStore, NamePage
from shardbus.tasks.batch_answer import BatchAnswer

T = TypeVar("T")
OUTCOME_S = 1.0
"""Seconds, beyond the time that a batch takes at most, for which an opening waits for its
outcome."""
PAGE = 1000
"""Entries of a page, at most, unless the caller says otherwise."""

Lane = Callable[[str, str], int]
"""Returns the number of the server of a shard, by kind and shard."""


class SilentObserver:
    """Takes the figures of a group, and drops them."""

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None:
        """Take the durations of writes."""

    def failed(self, error: Exception) -> None:
        """Take the failure of a write."""

    def backed_up(self) -> None:
        """Take that writes wait for a writer."""


class Journals:
    """Appends to journals and reads them. `uid` is the process's, from which operation ids are
    drawn. `lane` separates the servers of a store that has several. An append is not sent again
    `within` seconds after it was first sent, by `clock`."""

    def __init__(
        self,
        journals: JournalStore,
        uid: int,
        *,
        observer: SaveObserver | None = None,
        lane: Lane | None = None,
        within: float = 6.0,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._journals, self._lane = journals, lane
        self._observer = observer or SilentObserver()
        self._patience = within + within / ATTEMPTS + OUTCOME_S
        ids: Iterator[int] = op_ids(uid)
        batches = batches_of(journals, lambda appends: journals.append(appends))
        self._groups: dict[int, SaveGroup] = defaultdict(
            lambda: SaveGroup(batches, ids, self._observer, within=within, clock=clock)
        )

    def append(
        self, kind: str, shard: str, name: str, fence: int, after: int, entries: tuple[bytes, ...]
    ) -> BatchAnswer:
        """Return a future that is done once the journal has these entries, at least one, after the
        entry of this number. Its errors:

            StaleFence: the journal was opened or written under a higher fence. Nothing was written.
            JournalConflict: it ends with another number. Nothing was written.
            StoreUnavailable: the store did not answer; the entries may or may not be there.
        """
        return self._group(kind, shard).append(kind, shard, name, fence, after, entries)

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int = 0, limit: int = PAGE
    ) -> JournalPage:
        """Raise the fence of a journal, and return the entries after this number, at most `limit`.
        An append that was sent before is in the journal, or will never be.

        Raises:
            StaleFence: the stored fence is higher.
            StoreUnavailable: such an append has no outcome yet, or the store does not answer.
        """
        journal = (kind, shard, name)
        if (outcome := self._group(kind, shard).outcome_of(journal)) is not None:
            await self._wait_for(outcome, kind, name)
        return await self._noted(self._journals.open(kind, shard, name, fence, after, limit))

    async def read(
        self, kind: str, shard: str, name: str, after: int = 0, limit: int = PAGE
    ) -> JournalPage:
        """Return the entries after this number, at most `limit`. Raises StoreUnavailable."""
        return await self._noted(self._journals.read(kind, shard, name, after, limit))

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        """Remove the entries up to this number; with `forget`, and if none is left, the journal.

        Raises:
            StaleFence: the stored fence is higher. StoreUnavailable: the store does not answer.
        """
        await self._noted(self._journals.trim(kind, shard, name, fence, upto, forget))

    async def page(self, kind: str, cursor: str | None = None, limit: int = PAGE) -> NamePage:
        """Return shards and names of journals, and the next cursor; see `JournalStore.page`."""
        return await self._noted(self._journals.page(kind, cursor, limit))

    def refuse_unsent(self, kind: str, shard: str, name: str) -> None:
        """Refuse the appends to a journal that are not sent: their writer is over."""
        if self._groups:
            self._group(kind, shard).refuse_unsent((kind, shard, name))

    @property
    def backlog(self) -> tuple[int, float]:
        """Return the appends that wait for a round trip, and the age of the oldest in seconds."""
        waiting = [group.backlog for group in self._groups.values()]
        return sum(count for count, _ in waiting), max((age for _, age in waiting), default=0.0)

    @property
    def longest_append(self) -> float:
        """Seconds for which the oldest append under way has had no answer; 0 without one."""
        return max((group.longest_wait for group in self._groups.values()), default=0.0)

    def _group(self, kind: str, shard: str) -> SaveGroup:
        return self._groups[0 if self._lane is None else self._lane(kind, shard)]

    async def _noted(self, call: Awaitable[T]) -> T:
        """Return the answer to a call. Note its failure."""
        try:
            return await call
        except Exception as e:
            self._observer.failed(e)
            raise

    async def _wait_for(self, outcome: asyncio.Future[None], kind: str, name: str) -> None:
        """Wait for the outcome of the append to a journal that is in flight."""
        try:
            async with asyncio.timeout(self._patience):
                await outcome
        except TimeoutError:
            text = f"an earlier append to {kind} {name!r:.100} has no outcome yet"
            error = StoreUnavailable(text, hint="see why the store does not answer", definite=True)
            self._observer.failed(error)
            raise error from None
