"""Measure first asks of stored entities, each of which loads its state, beside bare reads of the
same store, in turn.

One node that has just started, one producer, 10,000 stored carts with states of 100 B, asked once
each with 256 asks in flight. Then the node is killed, and they are asked again at a new one. The
bare client of Redis reads the field that holds the state, in pipelines of waiting reads; it
raises no fence. SQLite has no bare side.

    python -m benchmarks.loads                          Redis, appendfsync everysec
    python -m benchmarks.loads sqlite
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import RUNS, emit, median
from benchmarks.saves import FIRST_LANES, BareRedis, rate_of, saving
from benchmarks.sides import Product
from tests.redis_server import RedisServer

SIZE = 100


class BareReads(BareRedis):
    """Run redis-py alone: waiting reads go in one pipeline."""

    def _fill(self, pipeline: Any, keys: list[str]) -> None:
        for key in keys:
            pipeline.hget(key, "data")


async def loaded(product: Product, *, kill: bool) -> float:
    """Ask all entities at a node that has just started; return asks a second."""
    async with product:
        rate = await rate_of(product.ask)
        if kill:
            product.host.process.kill()
        return rate


async def compare(where: str, url: str, reads: BareReads | None) -> None:
    """Measure one store."""
    product = saving(url)
    product.message = bytes(SIZE)
    async with product:
        await rate_of(product.ask)  # stores all of them
    if reads is not None:
        async with BareRedis(url) as writes:
            writes.message = bytes(SIZE)
            await rate_of(writes.ask)
    product = saving(url, "size")
    stopped, killed, bare = list[float](), list[float](), list[float]()
    for _ in range(RUNS):
        stopped.append(await loaded(product, kill=True))
        killed.append(await loaded(product, kill=False))
        if reads is not None:
            bare.append(await rate_of(reads.ask))
    name = f"loads/{where}/{SIZE}/{FIRST_LANES}"
    for what, rates in (("after_stop", stopped), ("after_kill", killed), ("bare", bare)):
        if rates:
            emit(f"{name}/{what}", median(rates), "loads/s", runs=[round(rate) for rate in rates])
    if bare:
        pairs = [a / b for a, b in zip(stopped, bare, strict=True)]
        shown = [round(pair, 3) for pair in pairs]
        emit(f"{name}/ratio_rate", median(pairs), "x", of="bare", pairs=shown)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        for where in sys.argv[1:] or ["everysec"]:
            if where == "sqlite":
                await compare(where, f"sqlite:///{folder}/loads.db", None)
                continue
            with RedisServer(Path(folder) / where, "--appendfsync", where) as server:
                url = f"redis://127.0.0.1:{server.port}/0"
                async with BareReads(url) as reads:
                    await compare(where, url, reads)


if __name__ == "__main__":
    asyncio.run(main())
