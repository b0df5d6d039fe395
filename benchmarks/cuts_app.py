"""The application of `benchmarks.cuts` and `benchmarks.slow`: each entity checks that its messages
arrive in sequence, and may be slow."""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks.counters import Meter, serve
from shardbus import Entity, ShardBus, handler

bus = ShardBus("cuts")
meter = Meter()
counts = {"missed": 0, "again": 0}
"""Numbers that were skipped, and numbers that came when a later one had come."""


@bus.entity(name="line", shards=64, passivate_after=3600.0)
class Line(Entity):
    """Expect the numbers 1, 2, 3 and so on."""

    def __init__(self) -> None:
        self.last = 0

    @handler
    def put(self, number: int) -> None:
        """Take the next number."""
        if number > self.last:
            counts["missed"] += number - self.last - 1
            self.last = number
        else:
            counts["again"] += 1
        meter.hit()

    @handler
    def put_slowly(self, number: int, seconds: float, payload: bytes) -> None:
        """Take the next number and keep the loop busy for this time."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        self.put(number)

    @handler
    async def put_late(self, number: int, seconds: float, payload: bytes) -> None:
        """Take the next number and wait for this time, while others work."""
        await asyncio.sleep(seconds)
        self.put(number)


if os.environ.get("BENCH_APP") == "cuts":
    serve(os.environ["BENCH_CONTROL"], meter, lambda: counts)
