"""The journals of the PostgreSQL store.

Source: `journal_protocol`; `postgres_journal_statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from shardbus.errors import JournalConflict, StaleFence, StoreError, StoreUnavailable
from shardbus.store import postgres_journal_statements as sql
from shardbus.store.journal_protocol import (
    PAGE_BYTES,
    TRIM_STEP,
    Append,
    JournalPage,
    NamePage,
    page_of,
)
from shardbus.store.postgres_link import PostgresLink
from shardbus.store.postgres_urls import PostgresConnection
from shardbus.store.rows import check_fence

ATTEMPTS = 5
"""How often a step is tried that finds its row changed by others meanwhile."""
CHUNK_APPENDS = 1000
CHUNK_BYTES = 4 * 1024 * 1024


async def prepare_journals(connection: PostgresConnection, schema: str) -> None:
    """Create the tables of journals in a schema that has the others: an earlier version did not
    create them. If the user may not, the store has no journals until the owner has created
    them, and works without."""
    [row] = await connection.fetch(sql.HAS_TABLE, f'"{schema}".journal')
    if row["found"]:
        return
    try:
        await connection.execute(sql.CREATE.replace("@", f'"{schema}".'))
    except asyncpg.InsufficientPrivilegeError:
        return


@dataclass(eq=False, repr=False)
class PostgresJournals:
    """The `JournalStore` over a link. `cluster` is in each row; `contended` makes the error for
    rows that others changed too often."""

    _link: PostgresLink
    _cluster: str
    _contended: Callable[[str, str], StoreUnavailable]

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        answers: list[StoreError | None] = [None] * len(appends)
        for number, chunk in enumerate(_chunks(appends)):
            try:
                refused = await self._append_chunk([appends[i] for i in chunk])
            except StoreUnavailable as error:
                error.definite = error.definite and number == 0
                raise
            for place, answer in refused:
                answers[chunk[place]] = answer
        return answers

    async def _append_chunk(self, appends: Sequence[Append]) -> list[tuple[int, StoreError]]:
        """Write these appends, which have each journal once. Returns the place of each that is
        refused, with its answer."""
        refused: list[tuple[int, StoreError]] = []
        places = list(range(len(appends)))
        for _ in range(ATTEMPTS):
            chosen = [appends[place] for place in places]
            written = await self._link.call(sql.APPEND, self._cluster, *_columns(chosen))
            if written == sum(len(a.entries) for a in chosen):
                return refused
            kinds, names = [a.kind for a in chosen], [a.name for a in chosen]
            rows = await self._link.call(sql.HEADS, self._cluster, kinds, names)
            left = []
            for place, append, row in zip(places, chosen, rows, strict=True):
                if row["op_id"] == append.op_id:
                    continue
                answer = _refusal(append, row["fence"], row["last"])
                if answer is None:
                    left.append(place)
                else:
                    refused.append((place, answer))
            places = left
            if not places:
                return refused
        raise self._contended("journals", appends[places[0]].kind)

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        for _ in range(ATTEMPTS):
            if await self._link.call(
                sql.OPEN, self._cluster, kind, name, shard, check_fence(fence)
            ):
                return await self.read(kind, shard, name, after, limit)
            await self._check_head(kind, name, fence)
        raise self._contended("a journal", kind)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        rows = await self._link.call(sql.READ, self._cluster, kind, name, after, limit, PAGE_BYTES)
        if not rows:
            return JournalPage(after + 1, [], 0)
        entries = [(row["number"], row["data"]) for row in rows if row["number"] is not None]
        first = max(after, rows[0]["trimmed"]) + 1
        return page_of(kind, name, first, entries, rows[0]["last"], limit)

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        key = (self._cluster, kind, name, check_fence(fence))
        tries = 0
        while tries < ATTEMPTS:
            rows = await self._link.call(sql.TRIM, *key, upto, TRIM_STEP)
            if not rows:
                if not await self._check_head(kind, name, fence):
                    return
                tries += 1
                continue
            trimmed, last = rows[0]["trimmed"], rows[0]["last"]
            if trimmed >= min(upto, last):
                if forget and trimmed == last:
                    await self._link.call(sql.FORGET, *key)
                return
        raise self._contended("a journal", kind)

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """As the protocol says. The cursor is the last name."""
        rows = await self._link.call(sql.NAMES, self._cluster, kind, cursor or "", limit)
        page = [(row["shard"], row["name"]) for row in rows]
        return page, page[-1][1] if len(page) == limit else None

    async def _check_head(self, kind: str, name: str, fence: int) -> bool:
        """Raise StaleFence if the journal has a later fence. Returns True if it is there."""
        [row] = await self._link.call(sql.HEADS, self._cluster, [kind], [name])
        stored = row["fence"]
        if stored is not None and stored > fence:
            raise StaleFence(kind, name, fence, stored)
        return stored is not None


def _columns(appends: Sequence[Append]) -> tuple[list[Any], ...]:
    """Return the columns that APPEND takes."""
    entries = [
        (place, number, data)
        for place, append in enumerate(appends, 1)
        for number, data in enumerate(append.entries, append.after + 1)
    ]
    return (
        [append.kind for append in appends],
        [append.name for append in appends],
        [append.shard for append in appends],
        [check_fence(append.fence) for append in appends],
        [append.op_id for append in appends],
        [append.after for append in appends],
        [append.last for append in appends],
        [place for place, _, _ in entries],
        [number for _, number, _ in entries],
        [data for _, _, data in entries],
    )


def _refusal(append: Append, fence: int | None, last: int | None) -> StoreError | None:
    """Return why the head refuses an append, None if it does not any more."""
    if fence is not None and fence > append.fence:
        return StaleFence(append.kind, append.name, append.fence, fence)
    if (last or 0) != append.after:
        return JournalConflict(append.kind, append.name, append.after, last or 0)
    return None


def _chunks(appends: Sequence[Append]) -> Iterator[list[int]]:
    """Yield groups of appends that have each journal once, bounded in number and bytes, as indexes
    into `appends`. The appends to one journal stay in order."""
    chunk: list[int] = []
    journals: set[tuple[str, str]] = set()
    size = 0
    for i, append in enumerate(appends):
        journal = (append.kind, append.name)
        if journal in journals or len(chunk) == CHUNK_APPENDS or size >= CHUNK_BYTES:
            yield chunk
            chunk, journals, size = [], set(), 0
        chunk.append(i)
        journals.add(journal)
        size += append.size
    if chunk:
        yield chunk
