"""Send storms of first messages: no message may be lost, whatever the number of new entities.

    tells    one to each of 100,000 new entities, all sent at the same moment
    asks     one to each of 20,000 new entities, 4,096 in flight

A fresh host for each run. `lost` are messages that the host never handled, `failed` asks with an
error.

    python -m benchmarks.storm
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally

from benchmarks.counters import Counter
from benchmarks.harness import PAYLOAD, RUNS, emit, median, percentile
from benchmarks.sides import Product
from shardbus import RequestError

TOLD, ASKED, LANES = 100_000, 20_000, 4_096


async def tells() -> tuple[int, float]:
    """Return the lost messages, and entities a second at the host."""
    async with Product() as side:
        await side.host.ask(f"expect {TOLD}")
        refs = [side.client.ref(Counter, f"told-{i}") for i in range(TOLD)]
        await asyncio.gather(*(ref.hit.tell(PAYLOAD) for ref in refs))
        try:
            seconds = await side.host.finished(TOLD)
        except RuntimeError:
            return TOLD - (await side.host.ask("seen"))["n"], 0.0
        return 0, (TOLD - 1) / seconds


async def asks() -> tuple[Tally[str], float, list[float]]:
    """Return errors by name, entities a second, and latencies in milliseconds."""
    async with Product() as side:
        refs = iter([side.client.ref(Counter, f"asked-{i}") for i in range(ASKED)])
        failed: Tally[str] = Tally()
        taken: list[float] = []
        began = time.monotonic()

        async def lane() -> None:
            for ref in refs:
                at = time.monotonic()
                try:
                    await ref.hit(PAYLOAD)
                except RequestError as error:
                    failed[type(error).__name__] += 1
                taken.append(1000 * (time.monotonic() - at))

        await asyncio.gather(*(lane() for _ in range(LANES)))
        return failed, ASKED / (time.monotonic() - began), sorted(taken)


async def main() -> None:
    """Measure and print."""
    lost, rates = zip(*[await tells() for _ in range(RUNS)], strict=True)
    emit("storm/tell_lost", sum(lost), "messages", of=TOLD * RUNS)
    emit("storm/tell", median(rates), "entities/s", n=TOLD, runs=[round(r) for r in rates])
    storms = [await asks() for _ in range(RUNS)]
    failed = sum((failed for failed, _, _ in storms), Tally[str]())
    emit("storm/ask_failed", failed.total(), "asks", of=ASKED * RUNS, errors=dict(failed))
    rates = tuple(rate for _, rate, _ in storms)
    emit("storm/ask", median(rates), "entities/s", n=ASKED, in_flight=LANES)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        emit(f"storm/ask_{name}", median(percentile(t, q) for _, _, t in storms), "ms")


if __name__ == "__main__":
    asyncio.run(main())
