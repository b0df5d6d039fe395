"""Measures the cost of this node's shards, and reports it to their coordinators.

A type that is balanced by load (`least_load`), or whose number of instances follows the load, has
its messages sampled (`load_sampling`). `REPORTS` times in one `rebalance_interval` its region sends
ShardLoads. The figures of the node are read over the same window as the shards', so that the rest
is the work of others (`sharding.shard_load`).

Handlers are timed only if some type of this node is balanced by them, or has its number of
instances by them; then the handlers of every type are, since a node has no other way to tell one
type's work from another's.

With each report goes the user's expectation of the type (`Instances.expected`). A function of the
user that fails is logged once, and then expects nothing.

Nothing here runs per message.

Source: S3.20, S3.49, N.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shardbus.config.settings import ShardingSettings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.sharding.events import Message
from shardbus.sharding.messages import ShardLoads
from shardbus.sharding.shard_load import TIMED, NodeWork, ShardWork, loads_of, spare_of, total
from shardbus.shells.region import RegionShell
from shardbus.transport.asks import CoarseClock
from shardbus.transport.environment import Environment

log = GuardedLog("shardbus.sharding")

REPORTS = 2
"""Reports to the coordinator in one `rebalance_interval`."""


Send = Callable[[NodeId, str, Message], None]
"""Sends a message of a type's region to its coordinator."""


class LoadWindow(NamedTuple):
    """The work of the node until a window began."""

    tick: int
    at: float
    cpu: float
    messages: int
    handled: float


class LoadReports:
    """Reports the loads of every type of one node.

    Args:
        me: this node.
        regions: the types of this node.
        environment: has the counters of the process.
        now: the clock of the loop.
        send: sends a message of a type's region to its coordinator.
    """

    def __init__(
        self,
        me: NodeId,
        regions: Mapping[str, RegionShell],
        environment: Environment,
        now: Callable[[], float],
        send: Send,
    ) -> None:
        self._me, self._regions, self._environment = me, regions, environment
        self._now, self._send = now, send
        self._at_start = environment.resident_bytes()
        self._limit = environment.memory_limit()
        self._windows: dict[str, LoadWindow] = {}
        self._failed: set[str] = set()
        """Types of which it was logged that `expected` fails."""

    def switch(self, by_load: Mapping[str, ShardingSettings]) -> None:
        """Switch sampling on for these types and those within them. `by_load`: their settings."""
        timed = any(
            settings.load in TIMED or _is_timed(self._regions[name])
            for name, settings in by_load.items()
        )
        for region in self._regions.values():
            region.sampling.switch(on=timed or region.table.name in by_load, timed=timed)
        self._windows = {name: self._window(0) for name in by_load}

    def on_tick(self, tick: int) -> None:
        """Send the reports that are due. Called about once a second."""
        for name, window in self._windows.items():
            region = self._regions[name]
            ticks = int(1000 * region.settings.rebalance_interval / REPORTS) // CoarseClock.TICK_MS
            if tick - window.tick < ticks or not (region.hosts and region.router.region.registered):
                continue
            self._windows[name] = self._window(tick)
            shards = self._shards(region)
            if shards is not None and region.coordinator is not None:
                report = self._report(region, shards, window)
                self._send(region.coordinator, name, report)

    def _report(
        self, region: RegionShell, shards: Mapping[str, ShardWork], window: LoadWindow
    ) -> ShardLoads:
        node, kind = self._node(window), region.settings.load
        load = total(shards)
        return ShardLoads(
            self._me,
            loads_of(kind, shards, node),
            kind,
            spare_of(kind, load, node),
            rate=load.messages,
            busy=load.time if region.sampling.timed else None,
            waiting=load.waiting,
            expected=self._expected(region),
        )

    def _expected(self, region: RegionShell) -> float:
        """Return the messages per second that the user expects of a type."""
        instances = region.entity_type.interface.instances
        if instances is None:
            return 0.0
        try:
            expected = instances.expected_now()
        except ConfigError as e:
            if region.name not in self._failed:
                self._failed.add(region.name)
                log.warning("%s: %s", region.name, e.message)
            return 0.0
        self._failed.discard(region.name)
        return expected

    def _window(self, tick: int) -> LoadWindow:
        regions = self._regions.values()
        return LoadWindow(
            tick,
            self._now(),
            self._environment.cpu_time(),
            sum(region.host.counts.accepted for region in regions),
            sum(region.sampling.handled for region in regions),
        )

    def _shards(self, region: RegionShell) -> dict[str, ShardWork] | None:
        """Return the work of the shards of a region, with the work of the types within it; None if
        they have not been measured before."""
        now, complete = self._now(), True
        by_shard: dict[str, ShardWork] = {}
        for shell in (region, *region.inner):
            host = shell.host
            rates = shell.sampling.read(now)
            complete = complete and rates is not None
            waiting = host.runner.mailbox_limits.waiting_by_shard()
            for shard, hosted in host.shards.items():
                messages, time = (rates or {}).get(shard, (0.0, 0.0))
                before = by_shard.get(shard, ShardWork())
                work = ShardWork(messages, time, hosted.live, waiting.get(shard, 0))
                by_shard[shard] = ShardWork(*map(sum, zip(before, work, strict=True)))
        return by_shard if complete else None

    def _node(self, window: LoadWindow) -> NodeWork:
        """Return the work of the node since a window began."""
        regions = self._regions.values()
        for shell in regions:
            if shell.table.name not in self._windows:
                shell.sampling.read(self._now())
        ends = self._window(0)
        seconds = max(ends.at - window.at, 1e-3)
        return NodeWork(
            busy=min(1.0, (ends.cpu - window.cpu) / seconds),
            time=(ends.handled - window.handled) / seconds,
            messages=(ends.messages - window.messages) / seconds,
            entities=sum(shard.live for region in regions for shard in region.host.shards.values()),
            resident=self._environment.resident_bytes(),
            at_start=self._at_start,
            limit=self._limit,
        )


def _is_timed(region: RegionShell) -> bool:
    """True if the number of a type's instances follows the time of its handlers."""
    instances = region.entity_type.interface.instances
    return instances is not None and instances.timed
