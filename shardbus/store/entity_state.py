"""The state of entities in the store: single loads, and saves that share round trips.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
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
        self._group = SaveGroup(store, op_ids(uid), self, within=within)
        self.errors = 0
        self._silent_at: float | None = None
        self.silent_because = ""
        """The last failure of the store, with the remedy."""
        self.seconds = 0.0
        self.calls = 0

    async def load(self, entity_type: str, shard: str, entity_id: str, fence: int) -> bytes | None:
        """Return the stored state, None if there is none; raise its stored fence to `fence`."""
        began = time.perf_counter()
        try:
            return await self._store.load_state(entity_type, shard, entity_id, fence)
        except Exception as e:
            self.failed(e)
            raise
        finally:
            self.called(1, time.perf_counter() - began)

    def save(
        self, entity_type: str, shard: str, entity_id: str, fence: int, data: bytes | None
    ) -> asyncio.Future[None]:
        """Write the state; the future is done when the store has it. `data` None removes the
        state."""
        return self._group.save(entity_type, shard, entity_id, fence, data)

    @property
    def silent_ago(self) -> float | None:
        """Return the seconds since the store last gave no answer, None if it always answered."""
        return None if self._silent_at is None else time.perf_counter() - self._silent_at

    def failed(self, error: Exception) -> None:
        """Note that a load or a save has failed."""
        self.errors += 1
        if isinstance(error, StoreUnavailable):
            self._silent_at, self.silent_because = time.perf_counter(), str(error)

    def called(self, calls: int, seconds: float) -> None:
        """Note loads or saves that have ended, and the sum of the times that they took."""
        self.seconds += seconds
        self.calls += calls
