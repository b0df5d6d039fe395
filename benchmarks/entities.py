"""How many entities one process holds: first messages, memory, and tells to all of them in turn.

Each count has a fresh host. First messages are sent at full speed; `memory` is the growth of
the host's resident memory over them, for each entity, and `rss` all of it at the end. Then every
entity gets more tells, in a fixed stride, until about SECONDS have passed. The producer keeps no
reference to an entity, so the figure is the host's.

    python -m benchmarks.entities [COUNT ...]    100 1000 10000 100000 1000000 by default
"""

from __future__ import annotations

import asyncio
import math
import sys

from benchmarks.harness import PAYLOAD, SECONDS, STRIDE, emit
from benchmarks.sides import CHUNK, Product

COUNTS = (100, 1_000, 10_000, 100_000, 1_000_000)
LEAST = 200_000
"""Messages in a measurement of tells."""


async def tell(side: Product, count: int, messages: int) -> float:
    """Send `count` tells in rounds and return the messages a second at the host."""
    await side.host.ask(f"expect {messages}")
    say = side.client.tell
    for i in range(messages):
        await say("counter", f"entity-{i * STRIDE % count}", "hit", PAYLOAD)
        if i % CHUNK == 0:
            await asyncio.sleep(0)
    return (messages - 1) / await side.host.finished(messages)


async def measure(count: int) -> None:
    """Measure one count of entities."""
    async with Product() as side:
        await tell(side, 1, 1_000)
        before = (await side.host.ask("rss"))["rss"]
        first = await tell(side, count, count)
        after = (await side.host.ask("rss"))["rss"]
        rounds = math.ceil(max(LEAST, SECONDS * LEAST) / count)
        again = await tell(side, count, rounds * count)
        emit("entities/first", first, "entities/s", entities=count)
        emit("entities/memory", (after - before) / count, "bytes/entity", entities=count)
        emit("entities/rss", after / 2**20, "MiB", entities=count, before=round(before / 2**20))
        emit("entities/tell", again, "msg/s", entities=count, messages=rounds * count)


async def main() -> None:
    """Measure and print."""
    for count in map(int, sys.argv[1:] or COUNTS):
        await measure(count)


if __name__ == "__main__":
    asyncio.run(main())
