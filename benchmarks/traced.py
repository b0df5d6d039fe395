"""Measure what tracing costs: tells and asks with it off, on, and on for 1 % of the messages.

    python -m benchmarks.traced [WORK ...] [--pairs 20] [--ratio 0.01] [--slice 0.5]

Each side is a node and a client of its own, all the time; one of them is at work, in turn, and
which begins changes with every round. Two sides have no tracing, because two of the same code
differ. Each value is the median of the ratios to the mean of both in the same round: of the rates,
and of the processor time that client and node take for a message, the thread of the SDK included.
The SDK exports batches, as an application's does, to an exporter that discards them.

    off     no tracing: the ratio of both, as far as they differ
    idle    tracing on, and no message traced
    on      tracing on; `--ratio` of the messages begin a trace, as far as the limit permits
    every   the same without a limit
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.counters import bus as bus  # what a node serves
from benchmarks.harness import ENTITIES, asked, emit, median, told, warmed
from benchmarks.sides import Product

WORKS = ("tell", "ask256", "ask1")


class Discard(SpanExporter):
    """Take spans, and do nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Discard the spans."""
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Discard()))
trace.set_tracer_provider(provider)


async def slice_of(side: Product, work: str, amount: float) -> dict[str, float]:
    """Do one slice of work. Return its rate, and nanoseconds of processor time for a message."""
    before, mine = (await side.host.ask("cpu"))["cpu"], time.process_time_ns()
    if work == "tell":
        n = int(amount) * ENTITIES
        rate = await told(side, int(amount))
    else:
        rate, taken = await asked(side, int(work[3:]), amount)
        n = len(taken)
    client = time.process_time_ns() - mine
    node = (await side.host.ask("cpu"))["cpu"] - before
    return {"rate": rate, "node": node / n, "client": client / n}


async def compare(sides: list[Product], work: str, pairs: int, seconds: float) -> None:
    """Run rounds of one kind of work, and print a line for each figure."""
    amount = seconds
    if work == "tell":
        amount = max([await warmed(side, seconds) for side in sides])
    else:
        for side in sides:
            await asked(side, int(work[3:]), seconds)
    ratios: dict[str, list[float]] = {}
    base: dict[str, list[float]] = {}
    for number in range(pairs):
        at = number % len(sides)
        found = {side: await slice_of(side, work, amount) for side in sides[at:] + sides[:at]}
        for what in ("rate", "node", "client"):
            first, *others, last = (found[side][what] for side in sides)
            of = (first + last) / 2
            base.setdefault(what, []).append(of)
            ratios.setdefault(f"off/{work}_{what}", []).append(last / first)
            for side, value in zip(sides[1:-1], others, strict=True):
                ratios.setdefault(f"{side.name}/{work}_{what}", []).append(value / of)
    for what, values in base.items():
        unit = "msg/s" if what == "rate" else "ns"
        emit(f"traced/off/{work}_{what}_base", median(values), unit)
    for name, values in ratios.items():
        quartiles = [round(q, 3) for q in statistics.quantiles(values, n=4)]
        emit(f"traced/{name}", median(values), "x", pairs=pairs, quartiles=quartiles)


async def run(works: list[str], pairs: int, ratio: float, seconds: float) -> None:
    """Start the sides, and compare them in each kind of work."""
    app = "benchmarks.traced"
    sides = [
        Product("off", app=app),
        Product("idle", app=app, trace_ratio=0.0),
        Product("on", app=app, trace_ratio=ratio),
        Product("every", app=app, trace_ratio=ratio, trace_limit=0),
        Product("off again", app=app),
    ]
    async with AsyncExitStack() as stack:
        for side in sides:
            await stack.enter_async_context(side)
        for work in works:
            await compare(sides, work, pairs, seconds)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description="Measure what tracing costs.")
    parser.add_argument("works", nargs="*", metavar="WORK", default=[])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--slice", type=float, default=0.5, dest="seconds")
    options = parser.parse_args()
    works = options.works or list(WORKS)
    if unknown := set(works) - set(WORKS):
        parser.error(f"there is no work {', '.join(sorted(unknown))}: {', '.join(WORKS)}")
    asyncio.run(run(works, options.pairs, options.ratio, options.seconds))


if __name__ == "__main__":
    main()
