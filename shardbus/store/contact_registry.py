"""The registrations of contacts in the state store (`membership.registrations`).

They are stored as remembered entities of a reserved type, all under one fence, as the addresses of
`node_registry` are. That registry is for commands, which must not miss a node that was killed; this
one is for nodes that look for each other, and forgets the dead.

Source: B.145.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardbus.store.protocol import StateStore

RESERVED = "$contacts"
"""The entity type of the registrations; no application can have a type of that name."""
SHARD, FENCE = "all", 1
PAGE = 1000
ENTRIES_MAX = 10_000
"""Entries that a reader takes, at most."""


async def add(store: StateStore, entry: str) -> None:
    """Add an entry. May be repeated. Raises StoreUnavailable."""
    await store.add_remembered(RESERVED, SHARD, [entry], FENCE)


async def remove(store: StateStore, entries: Sequence[str]) -> None:
    """Remove entries. Raises StoreUnavailable."""
    if entries:
        await store.remove_remembered(RESERVED, SHARD, entries, FENCE)


async def entries(store: StateStore) -> set[str]:
    """Return the entries. Raises StoreUnavailable."""
    rows: set[str] = set()
    cursor: str | None = None
    while True:
        page, cursor = await store.page_remembered(RESERVED, SHARD, cursor, PAGE)
        rows.update(page)
        if cursor is None or len(rows) >= ENTRIES_MAX:
            return rows
