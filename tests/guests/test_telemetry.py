"""OpenTelemetry's current span and the scopes of sentry-sdk: each message has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shardbus import Entity, EntityFailed, ShardBus, handler
from tests.guests.nodes import served

bus = ShardBus("telemetry")
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("guest")
events: list[dict[str, Any]] = []


@pytest.fixture
def sentry() -> Iterator[None]:
    """Run sentry-sdk, whose events are kept here."""
    events.clear()

    def keep(event: Any, hint: Any) -> None:
        events.append(event)

    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", before_send=keep, default_integrations=False)
    yield
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init()


@bus.entity("order", shards=8)
class Order(Entity):
    @handler
    async def price(self, name: str) -> str:
        with tracer.start_as_current_span(name) as span:
            await asyncio.sleep(0)
            current = trace.get_current_span() is span
            with tracer.start_as_current_span(f"{name} child"):
                await asyncio.gather(self.part(name), self.part(name))
            return str(current and trace.get_current_span() is span)

    async def part(self, name: str) -> None:
        with tracer.start_as_current_span(f"{name} part"):
            await asyncio.sleep(0)

    @handler
    async def leaves_attached(self) -> bool:
        """Attach a span and a baggage, and detach neither."""
        clean = not trace.get_current_span().get_span_context().is_valid
        clean = clean and baggage.get_baggage("user") is None
        context.attach(trace.set_span_in_context(tracer.start_span("left")))
        context.attach(baggage.set_baggage("user", "left"))
        await asyncio.sleep(0)
        return clean

    @handler
    def leaves_attached_at_once(self) -> bool:
        clean = baggage.get_baggage("user") is None
        context.attach(baggage.set_baggage("user", "left"))
        return clean

    @handler
    async def report(self, user: str) -> None:
        sentry_sdk.set_user({"id": user})
        sentry_sdk.set_tag("user", user)
        await asyncio.sleep(0)
        sentry_sdk.capture_message(f"hello {user}")

    @handler
    def report_at_once(self, user: str) -> None:
        sentry_sdk.set_tag("user", user)
        sentry_sdk.capture_message(f"hello {user}")

    @handler
    async def report_in_scope(self, user: str) -> None:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("user", user)
            await asyncio.sleep(0)
            sentry_sdk.capture_message(f"hello {user}")

    @handler
    async def tags(self) -> None:
        await asyncio.sleep(0)
        sentry_sdk.capture_message("plain")

    @handler
    async def fails(self, user: str) -> None:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("user", user)
            try:
                await asyncio.sleep(0)
                raise ValueError(user)
            except ValueError as error:
                sentry_sdk.capture_exception(error)
                raise


async def test_the_span_of_a_handler_is_current_while_it_runs() -> None:
    exporter.clear()
    async with served(bus) as client:
        names = [f"s{n}" for n in range(10)]
        asks = [client.ref(Order, f"o{n % 4}").price(name) for n, name in enumerate(names)]
        assert await asyncio.gather(*asks) == ["True"] * 10
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    roots = {span.name for span in spans.values() if span.parent is None}
    assert roots == set(names)
    for span in spans.values():
        if span.parent is not None:
            name, parent = span.name.split()[0], spans[span.parent.span_id]
            assert parent.name == (name if span.name.endswith("child") else f"{name} child")
    assert len(spans) == 40


async def test_what_a_handler_attaches_and_leaves_is_not_seen_by_others() -> None:
    async with served(bus) as client:
        order = client.ref(Order, "a")
        assert [await order.leaves_attached() for _ in range(5)] == [True] * 5
        assert [await order.leaves_attached_at_once() for _ in range(5)] == [True] * 5
        others = [client.ref(Order, f"o{n}") for n in range(5)]
        assert [await other.leaves_attached() for other in others] == [True] * 5


@pytest.mark.usefixtures("sentry")
async def test_a_scope_of_sentry_is_of_one_message() -> None:
    users = [f"u{n}" for n in range(10)]
    async with served(bus) as client:
        asks = [client.ref(Order, f"o{n % 3}").report_in_scope(u) for n, u in enumerate(users)]
        await asyncio.gather(*asks)
        await client.ref(Order, "o1").tags()
        with pytest.raises(EntityFailed, match="u1"):
            await client.ref(Order, "o1").fails("u1")
    seen = [(event.get("message", "failed"), event.get("tags", {}).get("user")) for event in events]
    hellos: list[tuple[str, str | None]] = [(f"hello {user}", user) for user in users]
    assert sorted(seen[:10]) == sorted(hellos)
    assert seen[10:] == [("plain", None), ("failed", "u1")]


@pytest.mark.usefixtures("sentry")
@pytest.mark.parametrize("how", ["report", "report_at_once"])
async def test_tags_that_a_message_sets_stay_in_a_scope_of_the_entity_s_own(how: str) -> None:
    """`isolation_scope` is opened by web frameworks for each request; a handler opens its own.
    Without one, sentry has one scope for the process."""
    async with served(bus) as client:
        with sentry_sdk.isolation_scope() as mine:
            mine.set_tag("user", "sender")
            await getattr(client.ref(Order, "a"), how)("entity")
            sentry_sdk.capture_message("mine")
    assert events[-1]["tags"]["user"] == "sender"
