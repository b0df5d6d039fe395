"""The hosts on one node of the types that share a table: an outermost type, and those that live
within it (`routing.paths`).

A shard of the table is a shard of each of these types. All of them start it and open it together.
Their entities stop one level after the other, the innermost first, so that an entity can still
answer while the entities within it stop:

    StopShard ──> innermost entities ──none runs──> ... ──> outermost entities ──none runs──> ENDING

An entity may call those within it until it has stopped (`entities.draining`), and starts them
again. So a level is done when no entity of it, nor of one within it, is in memory. No host ends its
shard before all levels are done; then all do:

    ENDING ──every host has ended the shard──> ShardDown

Each level has an equal part of the time to stop, the entities within it that run again included.
The shards that are ready for the next level in one turn of the loop go there together.

Source: S3.4-S3.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import groupby

import msgspec

from shardbus.entities.entity_type import StopReason
from shardbus.entities.host import Host
from shardbus.sharding.messages import CarriedEntity

ENDING = -1
"""In place of a level: all are done."""


class _Stop(msgspec.Struct):
    """One shard that stops: at which level, and the hosts that have not ended it."""

    reason: StopReason
    patience: float
    """Seconds for each level."""
    level: int
    here: set[Host]


class ShardHosts:
    """Starts, opens and stops shards in all hosts of one table. `on_down(shard)` is called when the
    last host has ended a shard."""

    def __init__(
        self,
        outermost: Host,
        loop: asyncio.AbstractEventLoop,
        on_down: Callable[[str], None],
    ) -> None:
        self._levels: list[list[Host]] = [[outermost]]
        self._loop, self._on_down = loop, on_down
        self._stops: dict[str, _Stop] = {}
        self._ready: list[str] = []
        """Shards that the next level must stop."""
        self._to_stop: list[tuple[str, StopReason]] = []

    def __iter__(self) -> Iterator[Host]:
        return (host for level in self._levels for host in level)

    def add(self, host: Host, depth: int) -> None:
        """Add the host of a type within `depth` others."""
        if depth == len(self._levels):
            self._levels.append([])
        self._levels[depth].append(host)
        for each in self:
            each.draining.may_end = self._may_end

    def start_shard(self, shard: str, fence: int) -> None:
        """Host a shard, as `Host.start_shard`."""
        for host in self:
            host.start_shard(shard, fence)

    def carry_in(self, shard: str, fence: int, carried: tuple[CarriedEntity, ...]) -> None:
        """Keep the carried memory of a shard's entities for their start; the shard starts next."""
        for host in self:
            if host.carrying is not None:
                mine = [entity for entity in carried if entity.kind == host.name]
                host.carrying.put(shard, fence, mine)

    def carry_out(self, shard: str) -> tuple[CarriedEntity, ...]:
        """Return, once, the memory that the entities of a stopped shard carry."""
        carrying = (host.carrying for host in self if host.carrying is not None)
        return tuple(entity for carrier in carrying for entity in carrier.take(shard))

    def set_arrivals(self, shard: str, local: bool, via: object | None) -> None:
        """Set the messages that a shard admits, as `Host.set_arrivals`."""
        for host in self:
            host.set_arrivals(shard, local, via)

    def stop_soon(self, shard: str, reason: StopReason) -> None:
        """Stop a shard, which admits nothing any more, in the next turn of the loop."""
        if not self._to_stop:
            self._loop.call_soon(self._stop_waiting)
        self._to_stop.append((shard, reason))

    def _stop_waiting(self) -> None:
        """Stop the shards that wait for it."""
        waiting, self._to_stop = self._to_stop, []
        for reason, group in groupby(waiting, key=lambda each: each[1]):
            self.stop_shards([shard for shard, _ in group], reason)

    def stop_shards(
        self, shards: list[str], reason: StopReason, patience: float | None = None
    ) -> None:
        """Stop shards, the innermost entities first. A shard that stops already gets the shorter
        time, if there is one."""
        outermost = self._levels[0][0]
        if len(self._levels) == 1:
            outermost.stop_shards(shards, reason, patience)
            return
        each = (outermost.patience if patience is None else patience) / len(self._levels)
        for shard in shards:
            stop = self._stops.get(shard)
            if stop is not None and each < stop.patience:
                stop.patience = each
                for host in self._that_stop(stop):
                    host.stop_shards([shard], reason, each)
        fresh = [shard for shard in shards if shard not in self._stops]
        innermost = len(self._levels) - 1
        for shard in fresh:
            self._stops[shard] = _Stop(reason, each, innermost, set(self))
        self._stop(fresh)

    def _that_stop(self, stop: _Stop) -> list[Host]:
        """Return the hosts at the level that a stop has reached, and those within it, whose
        entities may run again."""
        levels = self._levels[max(stop.level, 0) :]
        return [host for level in levels for host in level if host in stop.here]

    def _stop(self, shards: list[str]) -> None:
        """Stop these shards at the level that each of them has reached."""
        groups: dict[tuple[Host, StopReason, float], list[str]] = {}
        for shard in shards:
            stop = self._stops[shard]
            for host in self._that_stop(stop):
                groups.setdefault((host, stop.reason, stop.patience), []).append(shard)
        for (host, reason, patience), group in groups.items():
            host.stop_shards(group, reason, patience)

    def _may_end(self, shard: str) -> bool:
        """Note that a host has no entity of a shard in memory. Returns True if none has one."""
        stop = self._stops.get(shard)
        if stop is None or stop.level == ENDING:
            return True
        shards = (host.shards.get(shard) for host in self._that_stop(stop))
        if shard in self._ready or any(entry is not None and entry.activations for entry in shards):
            return False
        if stop.level > 0:
            if not self._ready:
                self._loop.call_soon(self._stop_ready)
            self._ready.append(shard)
            return False
        stop.level = ENDING
        for host in self:
            if (hosted := host.shards.get(shard)) is not None:
                host.maybe_down(hosted)
        return True

    def stopped(self, host: Host, shard: str) -> None:
        """Record that a host has ended a shard, or does not have it."""
        stop = self._stops.get(shard)
        if stop is not None:
            stop.here.discard(host)
            if stop.here:
                self._may_end(shard)
                return
            del self._stops[shard]
        self._on_down(shard)

    def _stop_ready(self) -> None:
        shards, self._ready = self._ready, []
        for shard in shards:
            self._stops[shard].level -= 1
        self._stop(shards)
