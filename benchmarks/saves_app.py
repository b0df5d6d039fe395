"""The application of `benchmarks.saves`: carts that save each change."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.counters import Meter, serve
from shardbus import Entity, ShardBus, handler

bus = ShardBus("saves")
meter = Meter()


@dataclass
class CartState:
    """The state of a cart."""

    changes: int = 0
    content: bytes = b""


@bus.entity(name="cart", shards=64, passivate_after=3600.0)
class Cart(Entity):
    """Keep the last content."""

    state: CartState

    @handler
    async def put(self, content: bytes) -> int:
        """Save the content; return the number of changes."""
        self.state.changes += 1
        self.state.content = content
        await self.save()
        meter.hit()
        return self.state.changes

    @handler
    async def add(self, amount: int) -> int:
        """Save the sum of the amounts, and return it."""
        self.state.changes += amount
        await self.save()
        meter.hit()
        return self.state.changes

    @handler
    def size(self, content: bytes) -> int:
        """Return the size of the content that was stored."""
        return len(self.state.content)


@bus.entity(name="durable", shards=64, passivate_after=3600.0, durable_mailbox=True)
class DurableCart(Cart):
    """The same, with a durable mailbox."""


if os.environ.get("BENCH_APP") == "saves":
    serve(os.environ["BENCH_CONTROL"], meter)
