"""The journals of `cluster://`: a register for the head of each, and one for each block of older
entries (`replication.journal_rows`).

    append  ChangeValue of the head, one round under our group; a full head moves to a block
    open    ChangeValue of the head, which raises its fence, then the blocks are read
    read    ReadValue of the head, then of the blocks
    trim    ChangeValue of the head, then of the blocks that are in it no more
    page    scans of buckets, then the heads are read for their shards

Between the reads of a head and of its blocks another process may trim the journal, and the slots of
its blocks may be used again. A block that is not the one that the head has named says so, and the
head is read anew.

A head that could not move to a block grows, until the next append: this one moves it first, or
fails.

Source: docs/architecture.md; docs/how-to/own-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from shardbus.errors import StoreError, StoreUnavailable
from shardbus.replication import journals
from shardbus.replication.journal_rows import (
    BlockPlace,
    BlockValue,
    DroppedBlock,
    JournalValue,
    free_slot,
)
from shardbus.replication.values import SEPARATOR, Function, Reading, block_key, journal_key
from shardbus.store.journal_protocol import PAGE_BYTES, Append, JournalPage, NamePage

REMEMBERED_MAX = 10_000
"""Journals of which this object remembers that something is left to do, or done."""
READS = 5
"""How often a journal that is trimmed meanwhile is read."""

Change = Callable[[str, int, Function], Awaitable[object]]
"""Changes the value of a key under a fence: returns the function's result, or raises it."""
ChangeAll = Callable[[Sequence[tuple[str, int, Function]]], Awaitable[list[object]]]
"""Changes many values at once. Returns the result of each; an error is a result."""
Read = Callable[[str], Awaitable[Reading]]
Page = Callable[[str, str | None, int], Awaitable[tuple[list[str], str | None]]]
"""Returns the keys with this prefix after a cursor, and the next cursor."""

Journal = tuple[str, str]
"""Kind and name."""


class ReplicatedJournals:
    """The `JournalStore` of a `ReplicatedStore`, by whose operations it works."""

    def __init__(self, change: Change, change_all: ChangeAll, read: Read, page: Page) -> None:
        self._change, self._change_all, self._read, self._page = change, change_all, read, page
        self._full: dict[Journal, JournalValue] = {}
        """Heads that could not move to a block."""
        self._cleared: dict[Journal, tuple[DroppedBlock, ...]] = {}
        """Blocks that this object has cleared, and that their heads still name as dropped."""

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        for journal in {(a.kind, a.name) for a in appends} & self._full.keys():
            await self._move(journal, self._full[journal])
        changes = [
            (
                journal_key(a.kind, a.name),
                a.fence,
                journals.append_to(a.kind, a.shard, a.name, a.fence, a.entries, a.op_id, a.after),
            )
            for a in appends
        ]
        results = await self._change_all(changes)
        heads: dict[Journal, JournalValue] = {}
        for append, result in zip(appends, results, strict=True):
            if isinstance(result, JournalValue):
                heads[append.kind, append.name] = result
        full = {journal: head for journal, head in heads.items() if head.is_full}
        _bound(self._full)
        self._full.update(full)
        for journal, head in full.items():
            try:
                await self._move(journal, head)
            except StoreUnavailable:
                continue  # before the next append
        return [result if isinstance(result, StoreError) else None for result in results]

    async def _move(self, journal: Journal, head: JournalValue) -> None:
        """Move the entries of a full head to a block.

        Raises:
            StoreUnavailable: too few replicas answer. The entries stay in the head, or are in both.
        """
        kind, name = journal
        slot = free_slot(head)
        block = BlockValue(head.life, head.begin, head.entries)
        written = await self._change(block_key(kind, name, slot), 0, journals.write_block(block))
        if isinstance(written, BlockValue) and written[:2] == block[:2] and written.entries:
            place, count = BlockPlace(head.begin, slot), len(written.entries)
            seal = journals.seal(head.life, place, count)
            await self._change(journal_key(kind, name), head.fence, seal)
        self._full.pop(journal, None)

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        function = journals.raise_fence(kind, shard, name, fence)
        head = await self._change(journal_key(kind, name), fence, function)
        assert isinstance(head, JournalValue)
        return await self._page_of(kind, name, head, after, limit)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        return await self._page_of(kind, name, await self._head(kind, name), after, limit)

    async def _head(self, kind: str, name: str) -> JournalValue:
        return journals.head_of((await self._read(journal_key(kind, name))).value)

    async def _page_of(
        self, kind: str, name: str, head: JournalValue, after: int, limit: int
    ) -> JournalPage:
        for _ in range(READS):
            page = await self._entries(kind, name, head, after, limit)
            if page is not None:
                return page
            head = await self._head(kind, name)
        raise StoreError(
            f"a block of the journal {kind!r} {name!r:.100} is missing",
            hint="restore the store from a copy",
        )

    async def _entries(
        self, kind: str, name: str, head: JournalValue, after: int, limit: int
    ) -> JournalPage | None:
        """Return a page; None if a block is not the one that the head has named."""
        first = max(after, head.trimmed) + 1
        entries, size = list[bytes](), 0
        ends = [place.begin for place in head.blocks[1:]] + [head.begin]
        for place, end in zip(head.blocks, ends, strict=False):
            if end <= first + len(entries):
                continue
            if len(entries) >= limit or size >= PAGE_BYTES:
                break
            value = (await self._read(block_key(kind, name, place.slot))).value
            if not isinstance(value, BlockValue) or value[:2] != (head.life, place.begin):
                return None
            part = value.entries[first + len(entries) - place.begin : end - place.begin]
            if len(part) != end - first - len(entries):
                return None
            entries += part
            size += sum(map(len, part))
        else:
            if len(entries) < limit and size < PAGE_BYTES:
                entries += head.entries[first + len(entries) - head.begin :]
        return JournalPage(first, _bounded(entries, limit), head.last)

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        journal, key = (kind, name), journal_key(kind, name)
        cleared = self._cleared.get(journal, ())
        function = journals.trim(kind, name, fence, upto, cleared, forget=forget)
        head = await self._change(key, fence, function)
        assert isinstance(head, JournalValue)
        self._full.pop(journal, None)
        changes: list[tuple[str, int, Any]] = [
            (block_key(kind, name, place.slot), 0, journals.clear(place)) for place in head.dropped
        ]
        results = await self._change_all(changes)
        rows = zip(head.dropped, results, strict=True)
        done = [block for block, result in rows if result is None]
        if done:
            _bound(self._cleared)
            self._cleared[journal] = tuple(done)
        else:
            self._cleared.pop(journal, None)

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """As the protocol says. The cursor is the number of a bucket."""
        keys, following = await self._page(journal_key(kind, ""), cursor, limit)
        readings = await asyncio.gather(*map(self._read, keys))
        heads = [journals.head_of(reading.value) for reading in readings]
        rows = zip(keys, heads, strict=True)
        return [(h.shard, key.split(SEPARATOR, 2)[2]) for key, h in rows if h.there], following


def _bound(remembered: dict[Journal, Any]) -> None:
    """Forget the oldest: a full head grows by one more append, or a block is cleared twice."""
    while len(remembered) >= REMEMBERED_MAX:
        del remembered[next(iter(remembered))]


def _bounded(entries: list[bytes], limit: int) -> list[bytes]:
    """Return the entries that a page has: at most `limit`, and none behind `PAGE_BYTES`."""
    page, size = list[bytes](), 0
    for entry in entries[:limit]:
        if size >= PAGE_BYTES:
            break
        page.append(entry)
        size += len(entry)
    return page
