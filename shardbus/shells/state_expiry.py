"""Removes stored states that were neither loaded nor saved for `state_ttl`.

For each type with such a time, the node of the coordinator looks through the stored states, page by
page and at most `state_sweep_rate` entities a second, and again after a tenth of the time. It names
the entities of each page to the nodes that host their shards; such a node acts on those that do not
run there. On the entities of shards without a home the coordinator's node acts itself.

So a store is looked through once for each sweep, however many nodes there are. No store lists the
entities of one shard alone without looking at all its keys, but for a second key to write with each
first save and each removal: an index by shard would cost every save so that a sweep, which is in no
hurry, is shorter. The work that grows with the nodes, to compare and remove, is spread over them. A
coordinator that takes over begins the list anew; a state that was looked at twice is not removed
earlier.

The store itself decides (`StateStore.expire_states`). The first look at an idle entity only writes
down the time, which the next load or save makes void, and a later look removes the state if it
still finds that time, in the same atomic step. So an entity that starts meanwhile keeps its state,
whatever this node knew of it, and a state lives for its time and up to a tenth longer. A state
stored before the type had a time counts from the first look, too.

No key of a store has a time to live of its own: a server that is short of memory may evict such
keys earlier.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from shardbus.entities.gate import SuspensionGate
from shardbus.errors import ConfigError, RequestError, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.shells.region import RegionShell
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.store")

EXPIRE_STATES = "expire_states"
"""The question to a node that hosts shards."""
SLICE = 500
"""Entities, at most, of one page, of one question, and of one step of the store."""
EVERY_PART = 10
"""Sweeps per `state_ttl`."""
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 3600.0
"""Between two sweeps."""


@dataclass(eq=False, repr=False)
class StateExpiry:
    """The sweeps of one node. `homes(type)` returns the node of each shard that has one, if this
    node coordinates the type now, None otherwise. `ask(node, type, ids)` calls `expire` there.
    `now` returns seconds that all nodes agree on."""

    _regions: Mapping[str, RegionShell]
    _store: StateStore
    _gate: SuspensionGate
    _homes: Callable[[str], Mapping[str, Home] | None]
    _ask: Callable[[NodeId, str, list[str]], Awaitable[object]]
    _now: Callable[[], float]
    _tasks: TaskSet = field(default_factory=TaskSet)

    def start(self) -> None:
        """Begin to sweep the types that have a `state_ttl`, while this node coordinates them."""
        for name, region in self._regions.items():
            if region.settings.state_ttl and region.entity_type.states is not None:
                self._tasks.spawn(self._sweep_again_and_again(region), name=f"expiry of {name}")

    def stop(self) -> None:
        """End the sweeps."""
        self._tasks.cancel()

    async def expire(self, entity_type: str, ids: list[str]) -> int:
        """Let the store remove the states of these entities, as far as they have been idle for long
        enough, their shards are here and they do not run. Returns their number.

        Raises:
            StoreError: the store does not answer; some may be removed.
        """
        region = self._regions.get(entity_type)
        if region is None or not region.settings.state_ttl or self._gate.closed:
            return 0
        idle = [entity_id for entity_id in ids if self._is_idle(region, entity_id)]
        count = 0
        for at in range(0, len(idle), SLICE):
            now = self._now()
            since = now - region.settings.state_ttl
            count += len(
                await self._store.expire_states(region.name, idle[at : at + SLICE], now, since)
            )
        region.host.counts.expired += count
        return count

    async def _sweep_again_and_again(self, region: RegionShell) -> None:
        pause = region.settings.state_ttl / EVERY_PART
        while True:
            await asyncio.sleep(min(max(pause, PAUSE_MIN_S), PAUSE_MAX_S))
            try:
                await self._sweep(region)
            except StoreError as error:
                log.warning("%s: the sweep of idle states ended early: %s", region.name, error)
            except Exception:
                log.exception("%s: the sweep of idle states ended early", region.name)

    async def _sweep(self, region: RegionShell) -> None:
        rate, cursor, first = region.settings.state_sweep_rate, None, True
        while (first or cursor is not None) and self._homes(region.name) is not None:
            first = False
            size = min(rate, SLICE)
            ids, cursor = await self._store.page_stored(region.name, "", cursor, size)
            for at in range(0, len(ids), SLICE):
                await self._pass_on(region, ids[at : at + SLICE])
            await asyncio.sleep(max(len(ids), size) / rate)

    async def _pass_on(self, region: RegionShell, ids: list[str]) -> None:
        """Let each node act on the entities of the shards that it hosts. The next sweep asks a node
        again that does not answer now."""
        homes = self._homes(region.name)
        if homes is None:
            return
        here: list[str] = []
        there: defaultdict[NodeId, list[str]] = defaultdict(list)
        for entity_id in ids:
            home = homes.get(shard_of_stored(region, entity_id) or "")
            (here if home is None else there[home.node]).append(entity_id)
        await self.expire(region.name, here)
        for node, named in there.items():
            with contextlib.suppress(RequestError):
                await self._ask(node, region.name, named)

    def _is_idle(self, region: RegionShell, entity_id: str) -> bool:
        """True if this node decides about the entity, and it does not run."""
        shard = shard_of_stored(region, entity_id)
        if shard is None:
            return False
        hosted = region.host.shards.get(shard)
        if hosted is None:
            homes = self._homes(region.name)
            return homes is not None and shard not in homes
        return hosted.stopping is None and region.host.find(entity_id, shard) is None


def shard_of_stored(region: RegionShell, entity_id: str) -> str | None:
    """Return the shard of a stored id, None if the type's function of shards has none for it."""
    try:
        return region.router.shard_of(entity_id)
    except ConfigError:
        return None
