"""The journals of the store in memory, as the shortest description of every store's duties."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import msgspec

from shardbus.errors import JournalConflict, StaleFence, StoreError
from shardbus.store.journal_protocol import PAGE_BYTES, Append, JournalPage, NamePage
from shardbus.store.rows import fence_of


class MemoryJournal(msgspec.Struct):
    """A journal. Its entries are those from `trimmed` + 1 on."""

    shard: str
    fence: int
    op_id: int | None = None
    trimmed: int = 0
    entries: list[bytes] = msgspec.field(default_factory=list)

    @property
    def last(self) -> int:
        """Return the number of the last entry."""
        return self.trimmed + len(self.entries)


MemoryJournalRows = dict[tuple[str, str], MemoryJournal]
"""Journals by kind and name."""


class MemoryJournals:
    """The `JournalStore` over the rows that `rows` returns, or that raises StoreUnavailable."""

    def __init__(self, rows: Callable[[], MemoryJournalRows]) -> None:
        self._rows = rows

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        rows = self._rows()
        return [_append(rows, append) for append in appends]

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        journal = self._rows().setdefault((kind, name), MemoryJournal(shard, fence))
        _raise_fence(kind, name, journal, fence)
        return _page(journal, after, limit)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        journal = self._rows().get((kind, name))
        return _page(journal or MemoryJournal(shard, 0), after, limit)

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        rows = self._rows()
        journal = rows.get((kind, name))
        if journal is None:
            return
        _raise_fence(kind, name, journal, fence)
        gone = max(0, min(upto, journal.last) - journal.trimmed)
        del journal.entries[:gone]
        journal.trimmed += gone
        if forget and not journal.entries:
            del rows[kind, name]

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """As the protocol says. The cursor is the last name."""
        rows = self._rows()
        names = sorted(name for journal_kind, name in rows if journal_kind == kind)
        first = 0 if cursor is None else bisect_right(names, cursor)
        page = [(rows[kind, name].shard, name) for name in names[first : first + limit]]
        return page, page[-1][1] if len(page) == limit else None


def _append(rows: MemoryJournalRows, append: Append) -> StoreError | None:
    journal = rows.get((append.kind, append.name))
    stored = journal or MemoryJournal(append.shard, append.fence)
    if stored.op_id == append.op_id:
        return None
    try:
        fence = fence_of(append.kind, append.name, stored.fence)
    except StoreError as damaged:
        return damaged
    if fence > append.fence:
        return StaleFence(append.kind, append.name, append.fence, fence)
    if stored.last != append.after:
        return JournalConflict(append.kind, append.name, append.after, stored.last)
    stored.shard, stored.fence, stored.op_id = append.shard, append.fence, append.op_id
    stored.entries += append.entries
    rows[append.kind, append.name] = stored
    return None


def _raise_fence(kind: str, name: str, journal: MemoryJournal, fence: int) -> None:
    stored = fence_of(kind, name, journal.fence)
    if stored > fence:
        raise StaleFence(kind, name, fence, stored)
    journal.fence = fence


def _page(journal: MemoryJournal, after: int, limit: int) -> JournalPage:
    first = max(after, journal.trimmed) + 1
    entries: list[bytes] = []
    size = 0
    begin = first - journal.trimmed - 1
    for entry in journal.entries[begin : begin + limit]:
        if size >= PAGE_BYTES:
            break
        entries.append(entry)
        size += len(entry)
    return JournalPage(first, entries, journal.last)
