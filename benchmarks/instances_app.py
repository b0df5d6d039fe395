"""The application of `benchmarks.instances`: a type that runs once, and one with three instances.

BENCH_PAUSE_MS is the time of `work` on this node, in milliseconds.
"""

from __future__ import annotations

import asyncio
import os

from benchmarks.counters import meter
from shardbus import Entity, ShardBus, handler

CONTROL = meter
"""Importing `counters` serves the control socket, by which the benchmark knows that it runs."""

bus = ShardBus("instances")
PAUSE_S = float(os.environ.get("BENCH_PAUSE_MS", "1")) / 1000


class Handlers(Entity):
    """The handlers of both types."""

    def __init__(self) -> None:
        self.seen = 0

    @handler
    def hit(self, payload: bytes) -> None:
        self.seen += 1

    @handler
    async def work(self) -> int:
        await asyncio.sleep(PAUSE_S)
        return self.context.instance


@bus.entity("once", shards=64)
class Once(Handlers):
    """Runs once."""


@bus.entity("thrice", shards=64, instances=3)
class Thrice(Handlers):
    """Runs three times, on as many nodes."""
