"""Shards that have a home and are not confirmed: HostShard is repeated until ShardStarted.

A region that lives and does not confirm gets HostShard `TRIES` times, `shard_start_timeout` seconds
apart. Then the coordinator hands the shard off as it does any other, for the region may have
started it after all.

Source: S0.7, S0.8, S2.67.
"""

from __future__ import annotations

from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.messages import Home
from shardbus.sharding.timers import Timers

TRIES = 3


class PendingStarts:
    """The shards that wait for ShardStarted. `timeout`: seconds for each try."""

    __slots__ = ("_begun", "_homes", "_outbox", "_timeout", "_timers")

    def __init__(self, outbox: Outbox, timeout: float) -> None:
        self._outbox = outbox
        self._timeout = timeout
        self._homes: dict[str, tuple[Home, int]] = {}
        self._begun: dict[str, float] = {}
        self._timers: Timers[str] = Timers()

    def __contains__(self, shard: str) -> bool:
        return shard in self._homes

    def homes(self) -> list[Home]:
        """Return the homes whose shards have not started yet."""
        return [home for home, _ in self._homes.values()]

    def begun(self, shard: str) -> float | None:
        """Return when the region was first asked to host the shard; None if it is confirmed."""
        return self._begun.get(shard)

    def deadline(self) -> float | None:
        """Return when the next region is overdue."""
        return self._timers.deadline()

    def host(self, home: Home, now: float, tries: int = 1) -> None:
        """Send HostShard to the region, for the `tries`-th time."""
        self._outbox.add(home.node, HomeMessage.HOST_SHARD, (home,))
        self._homes[home.shard] = home, tries
        self._begun.setdefault(home.shard, now)
        self._timers.set(home.shard, now + self._timeout)

    def forget(self, shard: str) -> None:
        """Stop waiting for the shard: it has started, or its home ends."""
        self._homes.pop(shard, None)
        self._begun.pop(shard, None)
        self._timers.cancel(shard)

    def overdue(self, now: float) -> list[tuple[Home, int]]:
        """Return the homes that have not confirmed in time, and how often HostShard was sent."""
        return [self._homes[shard] for shard in self._timers.due(now)]

    def check(self) -> None:
        """Check that every pending start has a deadline; for tests."""
        assert all(shard in self._timers for shard in self._homes)
