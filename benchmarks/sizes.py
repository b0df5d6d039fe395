"""Tells and asks by the size of their payload, shardbus beside raw sockets, in turn.

The baselines come from `benchmarks.tell` and `benchmarks.ask`; batches of large payloads are
shorter there.

    python -m benchmarks.sizes [BYTES ...]       16 64 1024 16384 65536 by default
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.harness import (
    IDS,
    IN_FLIGHT,
    RUNS,
    SECONDS,
    Side,
    asked,
    emit,
    median,
    told,
    warmed,
)
from benchmarks.sides import Product, Raw

SIZES = (16, 64, 1_024, 16_384, 65_536)
KNOWN = 500
"""Entities that get an ask first, so that every shard has a home: buffers are bounded."""


async def measure(size: int) -> None:
    """Measure one size."""
    payload = bytes(i % 251 for i in range(size))
    async with (
        Product(message=payload) as product,
        Raw("raw_batched", payload) as batched,
        Raw("raw_ticked", payload) as ticked,
    ):
        for entity_id in IDS[:KNOWN]:
            await product.ask(entity_id)
        seconds = SECONDS / 2
        rounds: dict[Side, int] = {s: await warmed(s, seconds) for s in (product, batched)}
        tells: dict[Side, list[float]] = {product: [], batched: []}
        asks: dict[Side, list[float]] = {product: [], ticked: []}
        for _ in range(RUNS):
            for side in tells:
                tells[side].append(await told(side, rounds[side]))
            for side in asks:
                asks[side].append((await asked(side, IN_FLIGHT, seconds))[0])
    for what, unit, rates in (("tell", "msg/s", tells), ("ask256", "req/s", asks)):
        for side, values in rates.items():
            megabytes = round(median(values) * size / 1e6, 1)
            emit(f"sizes/{side.name}/{what}", median(values), unit, payload=size, MB_s=megabytes)
        baseline = next(side for side in rates if side is not product)
        pairs = [a / b for a, b in zip(rates[product], rates[baseline], strict=True)]
        emit(f"sizes/{what}_ratio", median(pairs), "x", payload=size, of=baseline.name)


async def main() -> None:
    """Measure and print, a fresh pair of hosts for each size."""
    for size in map(int, sys.argv[1:] or SIZES):
        await measure(size)


if __name__ == "__main__":
    asyncio.run(main())
