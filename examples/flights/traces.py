"""Traces of the example: its processes export spans by OTLP where the environment turns them on.

The SDK reads the rest from the environment, too: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME.
"""

from __future__ import annotations

import os

RATIO = 0.01
"""The part of the producer's messages that begin a trace."""


def export() -> bool:
    """Give this process an SDK that exports, if `SHARDBUS_TRACING__ENABLED` is true. Returns
    whether it traces."""
    if os.environ.get("SHARDBUS_TRACING__ENABLED") != "true":
        return False
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True
