"""Measure what tracing costs: tells and asks with it off, on, and on for 1 % of the messages.

    python -m benchmarks.traced [WORK ...] [--pairs 20] [--ratio 0.01] [--slice 1.5]

How sides are compared is in `benchmarks.turns`; the processor time is with the thread of the SDK.
The SDK exports batches, as an application's does, to an exporter that discards them.

    off     no tracing: the ratio of both, as far as they differ
    idle    tracing on, and no message traced
    on      tracing on; `--ratio` of the messages begin a trace, as far as the limit permits
    every   the same without a limit
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.counters import bus as bus  # what a node serves
from benchmarks.sides import Product
from benchmarks.turns import WORKS, compare


class Discard(SpanExporter):
    """Take spans, and do nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Discard the spans."""
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Discard()))
trace.set_tracer_provider(provider)


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
            await compare("traced", sides, work, pairs, seconds, {})


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description="Measure what tracing costs.")
    parser.add_argument("works", nargs="*", metavar="WORK", default=[])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--slice", type=float, default=1.5, dest="seconds")
    options = parser.parse_args()
    works = options.works or list(WORKS)
    if unknown := set(works) - set(WORKS):
        parser.error(f"there is no work {', '.join(sorted(unknown))}: {', '.join(WORKS)}")
    asyncio.run(run(works, options.pairs, options.ratio, options.seconds))


if __name__ == "__main__":
    main()
