"""The application of `benchmarks.projections`: counters with events, and a projection of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.counters import Meter, serve
from shardbus import EventSourced, Projection, ShardBus, event, handler

bus = ShardBus("projections")
ENTITIES, EVENTS = 256, 400
"""The entities, and the events of each."""
meter = Meter()
meter.expect(ENTITIES * EVENTS)


@dataclass
class Sum:
    """The sum of the amounts."""

    value: int = 0


@dataclass(frozen=True)
class Added:
    """An amount was added."""

    amount: int
    note: bytes


@bus.entity("adding", shards=64)
class Adding(EventSourced):
    """Add amounts."""

    state: Sum

    @event
    def on_added(self, event: Added) -> None:
        """Add the amount."""
        self.state.value += event.amount

    @handler
    async def add(self, note: bytes, times: int) -> None:
        """Store that many events in one append."""
        await self.persist(*(Added(1, note) for _ in range(times)))


class Total(Projection):
    """Add the amounts once more, in a part of the projection for each entity."""

    state: Sum

    @event
    def on_added(self, event: Added) -> None:
        """Add the amount."""
        self.state.value += event.amount
        meter.hit()


if name := os.environ.get("BENCH_PROJECTION"):  # each name begins with the first events
    bus.projection(of=Adding, name=name)(Total)
if os.environ.get("BENCH_APP") == "projections":
    serve(os.environ["BENCH_CONTROL"], meter)
