"""Entities' state in the store, as entities see it: one load at a time, saves in shared round
trips.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import time

from shardbus.errors import StoreUnavailable
from shardbus.store.group_commit import SaveGroup, op_ids
from shardbus.store.protocol import StateStore


class EntityStates:
    """The keeper of a node's entities, with what it measured."""

    def __init__(self, store: StateStore, uid: int) -> None:
        self._store = store
        self._group = SaveGroup(store, op_ids(uid))
        self.errors = 0
        self._silent_at: float | None = None
        self.seconds = 0.0
        self.calls = 0

    async def load(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        """The stored state, under a fence that is raised to `fence`."""
        began = time.perf_counter()
        try:
            return await self._store.load_state(entity_type, entity_id, fence)
        except Exception as e:
            self._failed(e)
            raise
        finally:
            self._measure(began)

    async def save(self, entity_type: str, entity_id: str, fence: int, data: bytes | None) -> None:
        """Write it; returns when the store has it."""
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
        """For how many seconds it is past that the store gave no answer; None: it always did."""
        return None if self._silent_at is None else time.perf_counter() - self._silent_at

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        if isinstance(error, StoreUnavailable):
            self._silent_at = time.perf_counter()

    def _measure(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        self.calls += 1
