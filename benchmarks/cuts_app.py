"""The application of `benchmarks.cuts`: each entity checks that its messages come one after the
other."""

from __future__ import annotations

import os

from benchmarks.counters import Meter, serve
from shardbus import Entity, ShardBus, handler

bus = ShardBus("cuts")
meter = Meter()
counts = {"missed": 0, "again": 0}
"""Numbers that were skipped, and numbers that came when a later one had come."""


@bus.entity(name="line", shards=64, passivate_after=3600.0)
class Line(Entity):
    """Expects 1, 2, 3 ..."""

    def __init__(self) -> None:
        self.last = 0

    @handler
    def put(self, number: int) -> None:
        """The next one."""
        if number > self.last:
            counts["missed"] += number - self.last - 1
            self.last = number
        else:
            counts["again"] += 1
        meter.hit()


if os.environ.get("BENCH_APP") == "cuts":
    serve(os.environ["BENCH_CONTROL"], meter, lambda: counts)
