"""Measure tells a second beside raw batched sockets, in turn, and the ratio of each pair."""

from __future__ import annotations

import asyncio

from benchmarks.harness import ENTITIES, RUNS, Side, emit, median, told, warmed
from benchmarks.sides import Product, Raw


async def main() -> None:
    """Measure and print."""
    async with Product() as product, Raw("raw_batched") as raw:
        sides = (product, raw)
        rounds = {side: await warmed(side) for side in sides}
        rates: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(RUNS):
            for side in sides:
                rates[side].append(await told(side, rounds[side]))
        for side in sides:
            runs = [round(r) for r in rates[side]]
            emit(
                f"{side.name}/tell",
                median(rates[side]),
                "msg/s",
                runs=runs,
                payload=64,
                entities=ENTITIES,
            )
        ratios = [a / b for a, b in zip(rates[product], rates[raw], strict=True)]
        emit(
            "tell/ratio", median(ratios), "x", of="raw_batched", pairs=[round(r, 3) for r in ratios]
        )


if __name__ == "__main__":
    asyncio.run(main())
