"""Measure a queue of work on one node, and the same items in a saved state, in turn.

    put one        one caller puts items of 100 B into a queue that has 1,000
    put many       256 callers
    through        4 callers put, and 8 workers pull, do nothing and confirm
    saved state    one caller; each put saves all items, of which 1,000 are there

    python -m benchmarks.queues [redis] [sqlite]

BENCH_RUNS (3) and BENCH_SECONDS (4) make it shorter or longer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import RUNS, SECONDS, emit, median, percentile
from benchmarks.queues_app import Jobs, Listed
from benchmarks.sides import Product
from shardbus.client.work_queue import ClientQueue
from tests.redis_server import RedisServer

BODY = bytes(100)
DEPTH = 1000


async def repeated(
    call: Callable[[], Awaitable[object]], callers: int
) -> tuple[float, list[float]]:
    """Return the calls in a second, and their times in seconds."""
    end, taken = time.perf_counter() + SECONDS, list[float]()

    async def one() -> None:
        while (begun := time.perf_counter()) < end:
            await call()
            taken.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    return len(taken) / (time.perf_counter() - begun), taken


class Drain:
    """Workers that take all items of a queue, and do nothing with them."""

    def __init__(self, queue: ClientQueue[bytes], workers: int) -> None:
        self.done = 0
        self._tasks = [asyncio.ensure_future(self._work(queue)) for _ in range(workers)]

    async def _work(self, queue: ClientQueue[bytes]) -> None:
        async for work in queue.work():
            async with work:
                self.done += 1

    async def end(self) -> None:
        """Stop the workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def compare(store: str, product: Product) -> None:
    """Measure one store."""
    client = product.client
    rates: dict[str, list[float]] = {}
    p50: dict[str, list[float]] = {}
    listed = client.ref(Listed, "a").within(30.0)  # type: ignore[attr-defined]
    for _ in range(DEPTH):
        await listed.put(BODY)

    async def change() -> None:
        await listed.put(BODY)
        await listed.take()

    for run in range(RUNS):
        for name, callers in (("put one", 1), ("put many", 256), ("through", 4)):
            queue = client.queue(Jobs, f"{name}-{run}")
            await queue.put_many([BODY] * DEPTH if name != "through" else [])
            drain = Drain(queue, 8 if name == "through" else 0)
            rate, taken = await repeated(partial(queue.put, BODY), callers)
            await drain.end()
            rates.setdefault(name, []).append(rate)
            p50.setdefault(name, []).append(percentile(sorted(taken), 0.5))
        rate, taken = await repeated(change, 1)
        rates.setdefault("saved state", []).append(2 * rate)
        p50.setdefault("saved state", []).append(percentile(sorted(taken), 0.5) / 2)
    for name, found in rates.items():
        place = f"queues/{store}/{name.replace(' ', '_')}"
        emit(place, median(found), "items/s", runs=[round(rate) for rate in found])
        emit(f"{place}_p50", 1000 * median(p50[name]), "ms")


async def main() -> None:
    """Measure and print."""
    os.environ["BENCH_APP"] = "queues"
    stores = sys.argv[1:] or ["redis", "sqlite"]
    with tempfile.TemporaryDirectory() as folder:
        for store in stores:
            if store == "redis":
                with RedisServer(Path(folder)) as server:
                    url = f"redis://127.0.0.1:{server.port}/0"
                    async with Product(
                        app="benchmarks.queues_app", kind=Jobs, store=url
                    ) as product:
                        await compare(store, product)
            else:
                url = f"sqlite:///{folder}/store.db"
                async with Product(app="benchmarks.queues_app", kind=Jobs, store=url) as product:
                    await compare(store, product)


if __name__ == "__main__":
    asyncio.run(main())
