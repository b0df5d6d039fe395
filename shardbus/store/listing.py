"""Read the stored states page by page, beside nodes or without any.

A store lists ids (`StateStore.page_stored`) and reads the states of some of them (`read_states`).
Neither raises a fence nor writes. There may be millions of entities, so code that reads them all
keeps one page; an entity that is saved or removed meanwhile may be in the list or not. States may
be long, so few are read at first, and then as many as fit a few MiB by the longest of the last
ones.

The state of an event-sourced entity is in its journal, and has a snapshot only now and then. So
such entities are listed by their journals.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from shardbus.store.journal_protocol import JournalStore
from shardbus.store.protocol import StateStore

PAGE = 200
"""Entities, about, of one page."""
FIRST_READ = 10
"""States that are read before it is known how long they are."""
HEADS_AT_ONCE = 20
"""Journals that are read at once."""
READ_BYTES = 4 * 1024 * 1024
"""Of states that are read in one step, if they are as long as those before."""


class StoredPage(NamedTuple):
    """Entities and their states. `cursor`: where the page began, None at the start."""

    cursor: str | None
    states: list[tuple[str, bytes]]


async def stored_pages(
    store: StateStore,
    entity_type: str,
    prefix: str = "",
    cursor: str | None = None,
    limit: int = PAGE,
) -> AsyncIterator[StoredPage]:
    """Yield the entities of a type that have a state, from `cursor` on. An entity may be in more
    than one page.

    Raises:
        StoreUnavailable: the store does not answer. StoreError: the cursor is not of this store.
    """
    following: str | None = cursor
    count = min(FIRST_READ, limit)
    while True:
        began = following
        ids, following = await store.page_stored(entity_type, prefix, began, limit)
        first = 0
        while first < len(ids):
            named = ids[first : first + count]
            first += count
            states = await store.read_states(entity_type, named)
            longest = max((len(data) for data in states if data is not None), default=0)
            count = max(1, min(limit, READ_BYTES // max(longest, 1)))
            rows = zip(named, states, strict=True)
            yield StoredPage(began, [(key, data) for key, data in rows if data is not None])
        if following is None:
            return


async def page_event_sourced(
    store: StateStore,
    journals: JournalStore,
    entity_type: str,
    prefix: str,
    cursor: str | None,
    limit: int,
) -> tuple[list[str], str | None]:
    """Return the ids of about `limit` entities that have events or a snapshot, and the next cursor,
    None at the end, as `StateStore.page_stored`.

    Raises:
        StoreUnavailable: the store does not answer. StoreError: the cursor is not of this store.
    """
    places, following = await journals.page(entity_type, cursor, limit)
    places = [(shard, name) for shard, name in places if name.startswith(prefix)]
    ids, empty = list[str](), list[str]()
    for first in range(0, len(places), HEADS_AT_ONCE):
        part = places[first : first + HEADS_AT_ONCE]
        reads = (journals.read(entity_type, shard, name, 0, 0) for shard, name in part)
        for (_, name), head in zip(part, await asyncio.gather(*reads), strict=True):
            (ids if head.first <= head.last else empty).append(name)
    snapshots = await store.read_states(entity_type, empty) if empty else []
    ids += [name for name, data in zip(empty, snapshots, strict=True) if data is not None]
    return ids, following
