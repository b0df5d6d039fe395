"""The journals of the Redis store: one key each, in the slot of their shard.

Source: `journal_protocol`; `redis_journal_scripts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from shardbus.errors import JournalConflict, StaleFence, StoreError
from shardbus.store import redis_journal_scripts as scripts
from shardbus.store.batches import BatchEnded
from shardbus.store.journal_protocol import (
    PAGE_BYTES,
    TRIM_STEP,
    Append,
    JournalPage,
    NamePage,
    page_of,
)
from shardbus.store.redis_cluster import ClusterLink
from shardbus.store.redis_keys import RedisKeys
from shardbus.store.redis_link import RedisLink
from shardbus.store.redis_packing import Value
from shardbus.store.redis_parts import begin_parts, in_rounds, parts_of
from shardbus.store.redis_scripts import FENCE_WIDTH
from shardbus.store.rows import check_fence, fence_of

PageKeys = Callable[[str, str | None, int], Awaitable[tuple[list[str], str | None]]]
"""Returns about `limit` keys of a pattern after a cursor, and the next cursor."""


class RedisJournals:
    """The `JournalStore` under the keys of a store. `link_for` returns the link to use for a key,
    `page_keys` lists keys. `by_slot`: a script may have keys of one slot only."""

    def __init__(
        self,
        keys: RedisKeys,
        link_for: Callable[[Value], RedisLink | ClusterLink],
        page_keys: PageKeys,
        *,
        by_slot: bool,
    ) -> None:
        self._keys, self._link_for, self._page_keys = keys, link_for, page_keys
        self._by_slot = by_slot
        self.quick = False
        """Nothing follows a batch: the server is one, and its answer ends it."""

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        return await in_rounds(self.begin_saves, appends, [self._key(a) for a in appends])

    def begin_saves(
        self, appends: Sequence[Append], ended: BatchEnded
    ) -> list[asyncio.Future[Any]]:
        """Send appends to different journals. Returns the futures of the replies."""
        for append in appends:
            check_fence(append.fence)
        keys: list[Value] = [self._key(a) for a in appends]
        slots = (self._keys.slot(a.kind, a.shard) if self._by_slot else 0 for a in appends)
        parts = parts_of(slots, [a.size for a in appends])
        link = self._link_for(keys[0])

        def send(part: Sequence[int]) -> asyncio.Future[Any]:
            chosen, alone = [keys[i] for i in part], len(parts) == 1
            return link.send(scripts.APPEND, chosen, [appends[i] for i in part], alone=alone)

        return begin_parts(parts, send, partial(_note_refused, appends), ended)

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        key, text = self._keys.journal(kind, shard, name), _wide(fence)
        link = self._link_for(key)
        reply = await link.call(scripts.OPEN, (key,), after, limit, PAGE_BYTES, text)
        _check_fence(reply, kind, name, fence)
        return _page(kind, name, reply, limit)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        key = self._keys.journal(kind, shard, name)
        reply = await self._link_for(key).call(scripts.READ, (key,), after, limit, PAGE_BYTES)
        return _page(kind, name, reply, limit)

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        key, head = self._keys.journal(kind, shard, name), "1" if forget else "0"
        more = 1
        while more:
            more = await self._link_for(key).call(
                scripts.TRIM, (key,), _wide(fence), upto, head, TRIM_STEP
            )
            _check_fence(more, kind, name, fence)

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        keys, after = await self._page_keys(self._keys.all_journals(kind), cursor, limit)
        parsed = (self._keys.parse_journal(key) for key in keys)
        return [(journal.shard, journal.name) for journal in parsed if journal is not None], after

    def _key(self, append: Append) -> bytes:
        return self._keys.journal(append.kind, append.shard, append.name).encode()


def _note_refused(
    appends: Sequence[Append],
    refused: Sequence[Any],
    part: Sequence[int],
    answers: list[StoreError | None],
) -> None:
    """Note the answers of APPEND for these of the appends."""
    for place, cause, stored in zip(refused[::3], refused[1::3], refused[2::3], strict=True):
        i = part[place - 1]
        append = appends[i]
        if cause == b"last":
            answers[i] = JournalConflict(append.kind, append.name, append.after, int(stored))
            continue
        try:
            fence = fence_of(append.kind, append.name, stored)
        except StoreError as damaged:
            answers[i] = damaged
        else:
            answers[i] = StaleFence(append.kind, append.name, append.fence, fence)


def _check_fence(reply: Any, kind: str, name: str, fence: int) -> None:
    """Raise StaleFence if the reply has a higher fence."""
    if isinstance(reply, list) and reply[0] == b"fence":
        raise StaleFence(kind, name, fence, fence_of(kind, name, reply[1]))


def _page(kind: str, name: str, reply: Any, limit: int) -> JournalPage:
    first, last, entries = reply
    return page_of(kind, name, first, list(enumerate(entries, first)), last, limit)


def _wide(fence: int) -> str:
    return str(check_fence(fence)).zfill(FENCE_WIDTH)
