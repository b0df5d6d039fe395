"""List and read stored states without a node: for people, and before a new version of a class runs.

A store that can do this offers `ListingStore` besides `StateStore`. A listing raises no fence and
writes nothing, so it may run beside nodes. It comes in pages, because there may be millions; an
entity that is saved or removed meanwhile may be in it or not, and none is in it twice unless the
store says otherwise.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from shardbus.errors import StoreError
from shardbus.store.protocol import StateStore

StoredState = tuple[str, bytes]
"""An entity's id, and its state as it is stored."""


class ListingStore(Protocol):
    """What a store offers besides `StateStore` if its states can be listed."""

    def stored_states(self, entity_type: str) -> AsyncIterator[list[StoredState]]:
        """Yield the entities of a type that have a state, in pages."""
        ...

    async def stored_state(self, entity_type: str, entity_id: str) -> bytes | None:
        """Return the state of one entity, None if there is none."""


def listing(store: StateStore) -> ListingStore:
    """Return the store as one whose states can be listed.

    Raises:
        StoreError: it offers no list.
    """
    if not hasattr(store, "stored_states"):
        raise StoreError("this store cannot list its states", hint="it needs stored_states")
    return store  # type: ignore[return-value]
