"""Removes stored states that were neither loaded nor saved for `state_ttl`.

For each type with such a time, every node looks through what is stored, page by page and at most
`state_sweep_rate` entities a second, and again after a tenth of the time. It acts on the entities
whose shard it hosts and that do not run; the node of the coordinator also acts on those of shards
without a home.

The store itself decides (`StateStore.expire_states`). The first look at an idle entity only writes
down the time, which the next load or save makes void, and a later look removes the state if it
still finds that time, in the same atomic step. So an entity that starts meanwhile keeps its state,
whatever this node knew of it, and a state lives for its time and up to a tenth longer. What was
stored before the type had a time counts from the first look, too.

No key of a store has a time to live of its own: a server that is short of memory may evict such
keys earlier.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from shardbus.entities.gate import SuspensionGate
from shardbus.errors import ConfigError, StoreError
from shardbus.shells.region import RegionShell
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet

log = logging.getLogger("shardbus.store")

SLICE = 500
"""Entities, at most, of one page and of one step of the store."""
EVERY_PART = 10
"""Sweeps per `state_ttl`."""
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 3600.0
"""Between two sweeps."""


class StateExpiry:
    """The sweeps of one node. `has_no_home(type, shard)` is True if this node coordinates the type
    and the shard has no home. `now` returns seconds that all nodes agree on."""

    def __init__(
        self,
        regions: Mapping[str, RegionShell],
        store: StateStore,
        gate: SuspensionGate,
        has_no_home: Callable[[str, str], bool],
        now: Callable[[], float],
    ) -> None:
        self._regions, self._store, self._gate = regions, store, gate
        self._has_no_home, self._now = has_no_home, now
        self._tasks = TaskSet()

    def start(self) -> None:
        """Begin to sweep the types that have a `state_ttl` and may run here."""
        for name, region in self._regions.items():
            if region.settings.state_ttl and region.hosts and region.entity_type.states is not None:
                self._tasks.spawn(self._sweep_again_and_again(region), name=f"expiry of {name}")

    def stop(self) -> None:
        """End the sweeps."""
        self._tasks.cancel()

    async def _sweep_again_and_again(self, region: RegionShell) -> None:
        pause = region.settings.state_ttl / EVERY_PART
        while True:
            await asyncio.sleep(min(max(pause, PAUSE_MIN_S), PAUSE_MAX_S))
            try:
                await self._sweep(region)
            except StoreError as error:
                log.warning("%s: the sweep of idle states ended early: %s", region.name, error)

    async def _sweep(self, region: RegionShell) -> None:
        rate, cursor, first = region.settings.state_sweep_rate, None, True
        while first or cursor is not None:
            first = False
            size = min(rate, SLICE)
            ids, cursor = await self._store.page_stored(region.name, "", cursor, size)
            for at in range(0, len(ids), SLICE):
                await self._expire(region, ids[at : at + SLICE])
            await asyncio.sleep(max(len(ids), size) / rate)

    async def _expire(self, region: RegionShell, ids: list[str]) -> None:
        """Let the store remove the states of those that have been idle for long enough."""
        idle = [entity_id for entity_id in ids if self._is_idle(region, entity_id)]
        if idle and not self._gate.closed:
            now = self._now()
            since = now - region.settings.state_ttl
            removed = await self._store.expire_states(region.name, idle, now, since)
            region.host.counts.expired += len(removed)

    def _is_idle(self, region: RegionShell, entity_id: str) -> bool:
        """True if this node decides about the entity, and it does not run."""
        try:
            shard = region.router.shard_of(entity_id)
        except ConfigError:
            return False
        hosted = region.host.shards.get(shard)
        if hosted is None:
            return self._has_no_home(region.table.name, shard)
        return hosted.stopping is None and region.host.find(entity_id, shard) is None
