"""Measure typed messages: the cost of a dataclass beyond its bytes, in turn.

`one_field` is the payload in a dataclass; `four_fields` is a text, a time, a number and the
payload. `more` is how much more time a message takes than bytes do, 0.35 being 35 %; `host_cpu` is
the processor time of a tell at the host, and `host_cpu_more` the same of that.

    python -m benchmarks.typed
"""

from __future__ import annotations

import asyncio

from benchmarks.counters import Hit, Reading
from benchmarks.harness import (
    IN_FLIGHT,
    PAYLOAD,
    RUNS,
    SECONDS,
    Cost,
    asked,
    costed,
    emit,
    median,
    warmed,
)
from benchmarks.sides import Product


async def main() -> None:
    """Measure and print."""
    async with (
        Product("bytes") as plain,
        Product("one_field", "take", Hit(PAYLOAD)) as first,
        Product("four_fields", "note", Reading("sensor-7", 1.5, 42, PAYLOAD)) as four,
    ):
        sides = (plain, first, four)
        rounds = {side: await warmed(side) for side in sides}
        costs: dict[Product, list[Cost]] = {side: [] for side in sides}
        asks: dict[Product, list[float]] = {side: [] for side in sides}
        for _ in range(RUNS):
            for side in sides:
                costs[side].append(await costed(side, rounds[side]))
            for side in sides:
                asks[side].append((await asked(side, IN_FLIGHT, SECONDS))[0])
        tells = {side: [cost.rate for cost in costs[side]] for side in sides}
        for what, unit, rates in (("tell", "msg/s", tells), ("ask256", "req/s", asks)):
            for side in sides:
                runs = [round(rate) for rate in rates[side]]
                emit(f"typed/{what}_{side.name}", median(rates[side]), unit, runs=runs)
            for side in (first, four):
                more = [a / b - 1 for a, b in zip(rates[plain], rates[side], strict=True)]
                pairs = [round(value, 3) for value in more]
                emit(f"typed/{what}_{side.name}_more", median(more), "x", of="bytes", pairs=pairs)
        for side in sides:
            emit(f"typed/host_cpu_{side.name}", median(c.host for c in costs[side]), "us")
        for side in (first, four):
            more = [a.host / b.host - 1 for a, b in zip(costs[side], costs[plain], strict=True)]
            emit(f"typed/host_cpu_{side.name}_more", median(more), "x", of="bytes")


if __name__ == "__main__":
    asyncio.run(main())
