"""Measure the cost of tracing: tells and asks with it off, on, and on for 1 % of the messages.

    python -m benchmarks.traced [WORK ...] [--pairs 20] [--ratio 0.01] [--slice 1.5]

How sides are compared is in `benchmarks.turns`; the processor time is with the thread of the SDK.
The SDK exports batches, as an application's does, to an exporter that discards them.

    off     no tracing: the ratio of both, as far as they differ
    idle    tracing on, and no message traced
    on      tracing on; `--ratio` of the messages begin a trace, as far as the limit permits
    every   the same without a limit
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.counters import bus as bus  # work of a node
from benchmarks.sides import Product
from benchmarks.turns import options_of, run


class Discard(SpanExporter):
    """Take spans, and do nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Discard the spans."""
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Discard()))
trace.set_tracer_provider(provider)


def main() -> None:
    """Compare."""
    options = options_of("Measure what tracing costs.", pairs=20, seconds=1.5, ratio=0.01)
    app, ratio = "benchmarks.traced", options.ratio
    sides = [
        Product("off", app=app),
        Product("idle", app=app, trace_ratio=0.0),
        Product("on", app=app, trace_ratio=ratio),
        Product("every", app=app, trace_ratio=ratio, trace_limit=0),
        Product("off again", app=app),
    ]
    asyncio.run(run("traced", sides, options, {}))


if __name__ == "__main__":
    main()
