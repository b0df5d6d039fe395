"""Measure the claim of a shard table by a new coordinator, which reads the whole table.

For each store, processor time and time of a claim, the shortest and the median of some. With
`cluster://` three replicas run in this process, so their time counts, too; on three machines most
of it passes at the same time.

    python -m benchmarks.claims [SHARDS ...]        1,000 and 10,000 by default
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import emit
from shardbus.ids import NodeId
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from tests.redis_server import RedisServer
from tests.replicas import Replicas

CLUSTER = "claims"
HOMES = [NodeId(f"10.0.0.{n}", 7355, n) for n in range(1, 6)]
CLAIMS, ROWS_EACH = 9, 500
TIMEOUT_S = 30.0


async def measure(name: str, store: StateStore, shards: int) -> None:
    """Fill a table, and claim it again and again."""
    entity_type, layout = f"of-{shards}", f"crc32/{shards}"
    await store.claim_epoch(entity_type, 1, layout)
    for first in range(0, shards, ROWS_EACH):
        numbers = range(first, min(first + ROWS_EACH, shards))
        homes = {str(n): (HOMES[n % len(HOMES)], n + 1) for n in numbers}
        await store.write_homes(entity_type, 1, homes, first + 1)
    waits, costs = list[float](), list[float]()
    for epoch in range(2, 2 + CLAIMS):
        began, cost = time.perf_counter(), time.process_time()
        table = await store.claim_epoch(entity_type, epoch, layout)
        waits.append(time.perf_counter() - began)
        costs.append(time.process_time() - cost)
        if len(table.homes) != shards:
            raise AssertionError(f"{len(table.homes)} of {shards} homes")
    for what, seconds in (("time", waits), ("processor time", costs)):
        emit(f"claim, shortest {what}", min(seconds) * 1000, "ms", store=name, shards=shards)
        median = statistics.median(seconds) * 1000
        emit(f"claim, median {what}", median, "ms", store=name, shards=shards)


async def main(sizes: list[int]) -> None:
    """Measure each store in turn."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as redis:
        for name, url in (("sqlite", f"sqlite:///{folder}/bus.db"), ("redis", redis.url())):
            store = open_store(url, cluster=CLUSTER, timeout=TIMEOUT_S)
            await store.start()
            for shards in sizes:
                await measure(name, store, shards)
            await store.close()
        replicas = Replicas(Path(folder) / "replicas", 3)
        replicas.start()
        await replicas.serving()
        async with replicas.opened(TIMEOUT_S) as replicated:
            for shards in sizes:
                await measure("cluster", replicated, shards)
        replicas.stop()


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]] or [1_000, 10_000]))
