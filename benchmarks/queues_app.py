"""The application of `benchmarks.queues`: a queue of work, and the same items in a saved state."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from benchmarks.counters import Meter, serve
from shardbus import Entity, ShardBus, handler
from shardbus.delivery import WorkQueue

bus = ShardBus("queues")
meter = Meter()


@bus.entity(name="jobs", shards=64)
class Jobs(WorkQueue[bytes]):
    """A queue of work."""

    limit = 100_000
    bytes_limit = 32 * 2**20


@dataclass
class Items:
    """What a list stores."""

    bodies: list[bytes] = field(default_factory=list)


@bus.entity(name="listed", shards=64, state_limit="64MiB")
class Listed(Entity):
    """A queue without a journal: each change saves all items."""

    state: Items

    @handler
    async def put(self, body: bytes) -> int:
        """Save the items with another one."""
        self.state.bodies.append(body)
        await self.save()
        return len(self.state.bodies)

    @handler
    async def take(self) -> bytes:
        """Save the items without the first one, and return that."""
        body = self.state.bodies.pop(0)
        await self.save()
        return body


if os.environ.get("BENCH_APP") == "queues":
    serve(os.environ["BENCH_CONTROL"], meter)
