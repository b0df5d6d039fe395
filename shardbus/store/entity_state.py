"""The state of entities in the store: single loads, and saves that share round trips.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import time

from shardbus.errors import StoreUnavailable
from shardbus.store.group_commit import SaveGroup, op_ids
from shardbus.store.protocol import StateStore


class EntityStates:
    """Loads and saves the state of a node's entities, and measures the store. `uid` is the node's,
    from which operation ids are drawn. A save is not sent again `within` seconds after it was first
    sent."""

    def __init__(self, store: StateStore, uid: int, within: float = 6.0) -> None:
        self._store = store
        self._group = SaveGroup(store, op_ids(uid), within=within)
        self.errors = 0
        self._silent_at: float | None = None
        self.silent_because = ""
        """The last failure of the store, with the remedy."""
        self.seconds = 0.0
        self.calls = 0

    async def load(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        """Return the stored state, None if there is none; raise its stored fence to `fence`."""
        began = time.perf_counter()
        try:
            return await self._store.load_state(entity_type, entity_id, fence)
        except Exception as e:
            self._failed(e)
            raise
        finally:
            self._measure(began)

    async def save(self, entity_type: str, entity_id: str, fence: int, data: bytes | None) -> None:
        """Write the state; return when the store has it. `data` None removes the state."""
        began = time.perf_counter()
        try:
            await self._group.save(entity_type, entity_id, fence, data)
        except Exception as e:
            self._failed(e)
            raise
        finally:
            self._measure(began)

    @property
    def silent_ago(self) -> float | None:
        """Return the seconds since the store last gave no answer, None if it always answered."""
        return None if self._silent_at is None else time.perf_counter() - self._silent_at

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        if isinstance(error, StoreUnavailable):
            self._silent_at, self.silent_because = time.perf_counter(), str(error)

    def _measure(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        self.calls += 1
