"""Shards that have a home and have not been confirmed: HostShard is repeated until ShardStarted.

A region that lives and does not confirm is asked `TRIES` times. Then the coordinator takes the
shard from it, the way it takes any shard: the region may have it after all.

Source: S0.7, S0.8, S2.67.
"""

from __future__ import annotations

from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.messages import Home
from shardbus.sharding.timers import Timers

TRIES = 3


class PendingStarts:
    """Shards on their way into life."""

    __slots__ = ("_homes", "_outbox", "_timeout", "_timers")

    def __init__(self, outbox: Outbox, timeout: float) -> None:
        self._outbox = outbox
        self._timeout = timeout
        self._homes: dict[str, tuple[Home, int]] = {}
        self._timers: Timers[str] = Timers()

    def __contains__(self, shard: str) -> bool:
        return shard in self._homes

    def deadline(self) -> float | None:
        """When a region has been silent for too long."""
        return self._timers.deadline()

    def host(self, home: Home, now: float, tries: int = 1) -> None:
        """Tell the region that it is the home."""
        self._outbox.add(home.node, HomeMessage.HOST_SHARD, (home,))
        self._homes[home.shard] = home, tries
        self._timers.set(home.shard, now + self._timeout)

    def started(self, shard: str) -> None:
        """Nobody waits for it any more."""
        self._homes.pop(shard, None)
        self._timers.cancel(shard)

    def tick(self, now: float) -> list[tuple[Home, int]]:
        """The homes that were silent for too long, and how often they were asked."""
        return [self._homes[shard] for shard in self._timers.due(now)]

    def check(self) -> None:
        """Audit: nothing waits without a deadline."""
        assert all(shard in self._timers for shard in self._homes)
