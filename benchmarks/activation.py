"""Measure first messages to 100,000 new entities: the rate, and the memory of each."""

from __future__ import annotations

import asyncio

from benchmarks.harness import FRESH, RUNS, emit, median
from benchmarks.sides import Product, Raw


async def main() -> None:
    """Measure and print, with a fresh host for each run."""
    rates: dict[str, list[float]] = {"shardbus": [], "raw_batched": []}
    sizes: dict[str, list[float]] = {"shardbus": [], "raw_batched": []}
    for _ in range(RUNS):
        for side in (Product(), Raw("raw_batched")):
            async with side:
                rate, size = await _fresh(side)
                rates[side.name].append(rate)
                sizes[side.name].append(size)
    for name in rates:
        emit(
            f"{name}/activation",
            median(rates[name]),
            "entities/s",
            n=FRESH,
            runs=[round(r) for r in rates[name]],
        )
        emit(f"{name}/memory", median(sizes[name]), "bytes/entity", n=FRESH)
    ratios = [a / b for a, b in zip(rates["shardbus"], rates["raw_batched"], strict=True)]
    emit(
        "activation/ratio",
        median(ratios),
        "x",
        of="raw_batched",
        pairs=[round(r, 3) for r in ratios],
    )


async def _fresh(side: Product | Raw) -> tuple[float, float]:
    warm = [f"warm-{i}" for i in range(1000)]
    await side.host.ask(f"expect {len(warm)}")
    await side.tell(warm)
    await side.host.finished(len(warm))
    before = (await side.host.ask("rss"))["rss"]
    ids = [f"entity-{i}" for i in range(FRESH)]
    await side.host.ask(f"expect {FRESH}")
    await side.tell(ids)
    seconds = await side.host.finished(FRESH)
    after = (await side.host.ask("rss"))["rss"]
    return (FRESH - 1) / seconds, (after - before) / FRESH


if __name__ == "__main__":
    asyncio.run(main())
