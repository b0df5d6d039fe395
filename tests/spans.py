"""Finished spans, kept in memory: the SDK that an application would configure, once per process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

_provider = TracerProvider(sampler=ParentBased(ALWAYS_ON))
_kept = InMemorySpanExporter()


def install() -> TracerProvider:
    """Install the provider in this process, for good."""
    if trace.get_tracer_provider() is not _provider:
        trace.set_tracer_provider(_provider)
        assert trace.get_tracer_provider() is _provider, "another test has set a provider"
        _provider.add_span_processor(SimpleSpanProcessor(_kept))
    return _provider


def export_to(exporter: SpanExporter) -> None:
    """Pass each span that ends to this exporter, too."""
    install().add_span_processor(SimpleSpanProcessor(exporter))


class Spans:
    """The spans that have ended since the test began."""

    def clear(self) -> None:
        _kept.clear()

    @property
    def all(self) -> list[ReadableSpan]:
        return sorted(_kept.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @contextmanager
    def root(self, name: str = "request") -> Iterator[None]:
        """Run the block under a sampled span, as a web server does."""
        with trace.get_tracer("tests").start_as_current_span(name):
            yield


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return int(context.span_id)
