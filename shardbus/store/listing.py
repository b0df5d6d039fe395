"""Read what is stored page by page, beside nodes or without any.

A store lists ids (`StateStore.page_stored`) and reads the states of some of them (`read_states`).
Neither raises a fence nor writes. There may be millions of entities, so what reads them all keeps
one page; an entity that is saved or removed meanwhile may be in the list or not.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from shardbus.store.protocol import StateStore

PAGE = 200
"""Entities, about, of one page: their states may be long."""


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
    while True:
        began = following
        ids, following = await store.page_stored(entity_type, prefix, began, limit)
        for first in range(0, len(ids), limit):
            named = ids[first : first + limit]
            states = await store.read_states(entity_type, named)
            rows = zip(named, states, strict=True)
            yield StoredPage(began, [(one, data) for one, data in rows if data is not None])
        if following is None:
            return
