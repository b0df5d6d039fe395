"""Measure asks: one at a time and 256 in flight, shardbus beside raw asyncio sockets, in turn."""

from __future__ import annotations

import asyncio

from benchmarks.harness import IN_FLIGHT, RUNS, SECONDS, Side, asked, emit, median, percentile
from benchmarks.sides import Product, Raw


async def main() -> None:
    """Measure and print."""
    async with Product() as product, Raw("raw_ticked") as raw:
        for lanes in (1, IN_FLIGHT):
            await _compare(product, raw, lanes)


async def _compare(product: Product, raw: Raw, lanes: int) -> None:
    rates: dict[Side, list[float]] = {}
    p50: dict[Side, list[float]] = {}
    p99: dict[Side, list[float]] = {}
    for side in (product, raw):
        await asked(side, lanes, 0.5)
        rates[side], p50[side], p99[side] = [], [], []
    for _ in range(RUNS):
        for side in (product, raw):
            rate, taken = await asked(side, lanes, SECONDS)
            rates[side].append(rate)
            p50[side].append(percentile(taken, 0.5))
            p99[side].append(percentile(taken, 0.99))
    for side in (product, raw):
        name = f"{side.name}/ask{lanes}"
        emit(name, median(rates[side]), "req/s", runs=[round(r) for r in rates[side]], payload=64)
        emit(f"{name}_p50", median(p50[side]), "us")
        emit(f"{name}_p99", median(p99[side]), "us")
    for what, values in (("rate", rates), ("p50", p50), ("p99", p99)):
        ratios = [a / b for a, b in zip(values[product], values[raw], strict=True)]
        emit(
            f"ask{lanes}/ratio_{what}",
            median(ratios),
            "x",
            of="raw_ticked",
            pairs=[round(r, 3) for r in ratios],
        )


if __name__ == "__main__":
    asyncio.run(main())
