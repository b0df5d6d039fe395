"""The application of the process tests of replicated values: an entity writes them, as any code of
a node does."""

from __future__ import annotations

from contextlib import aclosing

from shardbus import Entity, ShardBus, StoreUnavailable, handler
from shardbus.data import Counter

bus = ShardBus("lab")


@bus.entity("writer", shards=24)
class Writer(Entity):
    """Adds to one counter of the cluster."""

    @handler
    async def add(self, times: int) -> dict[str, int]:
        """Add 1, many times. Returns the additions that were acknowledged, and those in doubt."""
        counts = {"acked": 0, "doubtful": 0}
        for _ in range(times):
            try:
                await bus.data.update("hits", Counter, lambda hits: hits.add())
                counts["acked"] += 1
            except StoreUnavailable as error:
                counts["doubtful"] += not error.definite
        return counts

    @handler
    async def next_rate(self, seen: float) -> float:
        """Return the rate once it is another one than `seen`."""
        async with aclosing(bus.data.watch("rate:")) as rates:
            async for _, rate in rates:
                if rate is not None and rate.data != seen:
                    return float(rate.data)
        raise AssertionError
