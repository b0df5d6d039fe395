"""The journals of the SQLite store: two tables, of heads and of entries.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardbus.errors import JournalConflict, StaleFence, StoreError
from shardbus.store.journal_protocol import (
    PAGE_BYTES,
    TRIM_STEP,
    Append,
    JournalPage,
    NamePage,
    page_of,
)
from shardbus.store.rows import fence_of
from shardbus.store.sqlite_steps import Steps
from shardbus.store.sqlite_worker import SqliteWorker

HEAD = "SELECT fence, op_id, last, trimmed FROM journal WHERE cluster = ? AND kind = ? AND name = ?"
PUT_HEAD = """INSERT INTO journal (cluster, kind, name, shard, fence, op_id, last, trimmed)
 VALUES (?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO UPDATE SET shard = excluded.shard,
 fence = excluded.fence, op_id = excluded.op_id, last = excluded.last"""
PUT_ENTRY = "REPLACE INTO journal_entry (cluster, kind, name, number, data) VALUES (?, ?, ?, ?, ?)"
ENTRIES = """SELECT number, data FROM journal_entry WHERE cluster = ? AND kind = ? AND name = ?
 AND number BETWEEN ? AND ? ORDER BY number LIMIT ?"""
NAMES = """SELECT shard, name FROM journal WHERE cluster = ? AND kind = ? AND name > ?
 ORDER BY name LIMIT ?"""
RAISE = "UPDATE journal SET fence = ? WHERE cluster = ? AND kind = ? AND name = ?"
TRIM = "UPDATE journal SET trimmed = ? WHERE cluster = ? AND kind = ? AND name = ?"
GONE = "DELETE FROM journal_entry WHERE cluster = ? AND kind = ? AND name = ? AND number <= ?"
FORGET = "DELETE FROM journal WHERE cluster = ? AND kind = ? AND name = ?"


class SqliteJournals:
    """The `JournalStore` in the file of this worker."""

    def __init__(self, worker: SqliteWorker) -> None:
        self._worker = worker

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        kept = tuple(appends)
        return await self._worker.call(lambda steps: [_append(steps, append) for append in kept])

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        return await self._worker.call(
            lambda steps: _open(steps, kind, shard, name, fence, after, limit)
        )

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        return await self._worker.call(
            lambda steps: _page(steps, kind, name, after, limit), writes=False
        )

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        while await self._worker.call(
            lambda steps: _trim(steps, kind, name, fence, upto, forget=forget)
        ):
            pass

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """As the protocol says. The cursor is the last name."""
        page = await self._worker.call(
            lambda steps: steps.db.execute(
                NAMES, (steps.cluster, kind, cursor or "", limit)
            ).fetchall(),
            writes=False,
        )
        return page, page[-1][1] if len(page) == limit else None


def _head(steps: Steps, kind: str, name: str) -> tuple[Any, int | None, int, int] | None:
    row: tuple[Any, int | None, int, int] | None = steps.db.execute(
        HEAD, (steps.cluster, kind, name)
    ).fetchone()
    return row


def _append(steps: Steps, append: Append) -> StoreError | None:
    key = (steps.cluster, append.kind, append.name)
    stored_fence, op_id, last, _ = _head(steps, *key[1:]) or (append.fence, None, 0, 0)
    if op_id == append.op_id:
        return None
    try:
        fence = fence_of(append.kind, append.name, stored_fence)
    except StoreError as damaged:
        return damaged
    if fence > append.fence:
        return StaleFence(append.kind, append.name, append.fence, fence)
    if last != append.after:
        return JournalConflict(append.kind, append.name, append.after, last)
    steps.db.execute(PUT_HEAD, (*key, append.shard, append.fence, append.op_id, append.last))
    rows = [(*key, number, data) for number, data in enumerate(append.entries, append.after + 1)]
    steps.db.executemany(PUT_ENTRY, rows)
    return None


def _open(
    steps: Steps, kind: str, shard: str, name: str, fence: int, after: int, limit: int
) -> JournalPage:
    head = _head(steps, kind, name)
    if head is None:
        steps.db.execute(PUT_HEAD, (steps.cluster, kind, name, shard, fence, None, 0))
    else:
        _raise_fence(steps, kind, name, head[0], fence)
    return _page(steps, kind, name, after, limit)


def _raise_fence(steps: Steps, kind: str, name: str, stored_fence: object, fence: int) -> None:
    stored = fence_of(kind, name, stored_fence)
    if stored > fence:
        raise StaleFence(kind, name, fence, stored)
    if stored < fence:
        steps.db.execute(RAISE, (fence, steps.cluster, kind, name))


def _page(steps: Steps, kind: str, name: str, after: int, limit: int) -> JournalPage:
    _, _, last, trimmed = _head(steps, kind, name) or (0, None, 0, 0)
    first = max(after, trimmed) + 1
    rows: list[tuple[int, bytes]] = []
    size = 0
    cursor = steps.db.execute(ENTRIES, (steps.cluster, kind, name, first, last, limit))
    for number, data in cursor:
        if size >= PAGE_BYTES:
            break
        rows.append((number, data))
        size += len(data)
    cursor.close()
    return page_of(kind, name, first, rows, last, limit)


def _trim(steps: Steps, kind: str, name: str, fence: int, upto: int, *, forget: bool) -> bool:
    """Trim a journal by one step. Returns True if more entries are to be removed."""
    key = (steps.cluster, kind, name)
    head = _head(steps, kind, name)
    if head is None:
        return False
    stored_fence, _, last, trimmed = head
    _raise_fence(steps, kind, name, stored_fence, fence)
    end = min(upto, last)
    step = min(end, trimmed + TRIM_STEP)
    if step > trimmed:
        steps.db.execute(GONE, (*key, step))
        steps.db.execute(TRIM, (step, *key))
    if forget and max(step, trimmed) == last:
        steps.db.execute(FORGET, key)
    return step < end
