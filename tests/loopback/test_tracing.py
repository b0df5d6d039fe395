"""Traces through a real cluster: from a client to an entity, with it to another node, to another
entity, to the store; and the sampling."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from shardbus import (
    AsyncClient,
    Entity,
    EntityFailed,
    EventSourced,
    Rejection,
    ShardBus,
    event,
    handler,
)
from shardbus.config.settings import TracingSettings
from shardbus.integrations.starlette import TraceContext, client_of, lifespan
from shardbus.node.node import Node
from shardbus.store.protocol import reminder_store
from tests import spans
from tests.loopback.nodes import Nodes, blocking_client
from tests.spans import Spans, id_of, parent_of
from tests.waiting import PATIENCE_S, until


class SoldOut(Rejection):
    """The stock has nothing."""


class Total(msgspec.Struct):
    n: int = 0


class Written(msgspec.Struct):
    """A line of a diary."""


def application() -> ShardBus:
    bus = ShardBus("shop")
    bus.message(Total)

    @bus.entity("stock", shards=4)
    class Stock(Entity):
        state: Total

        @handler
        async def take(self, n: int) -> int:
            self.state.n += n
            await self.save()
            return self.state.n

        @handler
        def refuse(self) -> None:
            raise SoldOut

        @handler
        def fail(self) -> None:
            raise ValueError("broken")

    @bus.entity("order", shards=1)
    class Order(Entity):
        stays = ""

        @handler
        async def place(self, item: str, n: int) -> int:
            if self.context.node == Order.stays:
                self.context.stash()
                return 0
            await self.context.ref("log", item).note.tell(n)
            taken: int = await self.context.ref("stock", item).take(n)
            return taken

        @handler
        async def wait(self, gate: str) -> str:
            await gates[gate].wait()
            return gate

        @handler
        def stay(self) -> None:
            Order.stays = self.context.node

    @bus.entity("alarm", shards=1)
    class Alarm(Entity):
        rings = 0

        @handler
        def set_once(self, delay: float, then: str) -> None:
            self.context.schedule_once(delay, then)

        @handler
        async def repeat(self) -> None:
            self.context.schedule(0.005, "ring")

        @handler
        async def ring(self) -> None:
            self.rings += 1
            await self.context.ref("log", "rings").note.tell(self.rings)

        @handler
        def ring_plainly(self) -> None:
            self.context.ref("log", "rings").note.tell_nowait(1)

        @handler
        def rung(self) -> int:
            return self.rings

    @bus.entity("diary", shards=4)
    class Diary(EventSourced):
        state: Total

        @event
        def written(self, line: Written) -> None:
            self.state.n += 1

        @handler
        async def plan(self, seconds: float) -> None:
            await self.context.remind("write", after=seconds)

        @handler
        async def write(self) -> None:
            await self.persist(Written())

        @handler
        def lines(self) -> int:
            return self.state.n

    @bus.entity("log", shards=4)
    class Log(Entity):
        @handler
        def note(self, n: int) -> None: ...

    return bus


gates: dict[str, asyncio.Event] = {}
PICTURED = Path(__file__).resolve().parents[2] / "docs/trace.jsonl"


@pytest.fixture
def kept() -> Spans:
    spans.install()
    collected = Spans()
    collected.clear()
    gates.clear()
    return collected


@pytest.fixture
def traced(nodes: Nodes) -> Nodes:
    nodes.tracing = TracingSettings(enabled=True)
    return nodes


def unsampled() -> Any:
    """A current span that its sampler has not chosen."""
    context = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(0))
    return trace.use_span(NonRecordingSpan(context))


def rows(kept: Spans, old: Node) -> Iterator[dict[str, Any]]:
    """The spans as the picture in the documentation has them."""
    places = {str(old.me): "node 1"}
    for span in kept.all:
        at = str(span.attributes.get("shardbus.process", ""))
        place = places.get(at) or ("client" if at.startswith("client") else "node 2")
        why = span.attributes.get("shardbus.why")
        about = (f" ({why})" if why else "") + (f"  {place}" if at else "")
        yield {
            "id": f"{id_of(span):x}",
            "parent": f"{parent_of(span) or 0:x}",
            "name": span.name,
            "about": about,
            "start": span.start_time,
            "end": (kept.span("ask order") if span.name == "request" else span).end_time,
        }


async def test_B151_one_trace_leads_from_the_client_over_a_move_to_the_second_entitys_save(
    traced: Nodes, kept: Spans
) -> None:
    """The order keeps the message back, so it goes on to the next home with the shard."""
    first, second = await traced.cluster(application(), 2)
    client = await traced.client(first, second, tracing=True)
    await client.call("order", "o-1", "stay")
    [old] = [n for n in (first, second) if n.regions["order"].host.entities]
    new = second if old is first else first
    with kept.root():
        placed = asyncio.ensure_future(client.call("order", "o-1", "place", "pear", 3))
        await until(lambda: kept.named("handle order.place"), "the first home to have the order")
        await traced.leave(old)
        assert await placed == 3
    await until(lambda: kept.named("handle log.note"), "the told message")

    [request] = kept.named("request")
    trace_ids = {span.get_span_context().trace_id for span in kept.all}  # type: ignore[union-attr]
    assert len(trace_ids) == 1
    ask_span = kept.span("ask order")
    assert parent_of(ask_span) == id_of(request)
    before, after = kept.named("handle order.place")
    assert [span.attributes["shardbus.process"] for span in (before, after)] == [
        str(old.me),
        str(new.me),
    ]
    assert {parent_of(before), parent_of(after)} == {id_of(ask_span)}
    relay = kept.span("relay")
    assert parent_of(relay) == id_of(ask_span)
    assert id_of(relay) in [link.context.span_id for link in after.links]
    assert not before.links
    inner = kept.span("ask stock")
    assert parent_of(inner) == id_of(after)
    taken = kept.span("handle stock.take")
    assert parent_of(taken) == id_of(inner)
    assert parent_of(kept.span("save stock")) == id_of(taken)
    assert parent_of(kept.span("tell log")) == id_of(after)
    assert parent_of(kept.span("handle log.note")) == id_of(kept.span("tell log"))
    assert taken.attributes["shardbus.entity_id"] == "pear"
    assert taken.attributes["shardbus.fence"] > 0
    if os.environ.get("WRITE_TRACE"):
        PICTURED.write_text("".join(f"{json.dumps(row)}\n" for row in rows(kept, old)))


async def test_B151_a_message_that_waits_says_why(traced: Nodes, kept: Spans) -> None:
    [node] = await traced.cluster(application(), 1)
    client = await traced.client(node, tracing=True)
    with kept.root():
        gates["open"] = asyncio.Event()
        waiting = asyncio.ensure_future(client.call("order", "o-2", "wait", "open"))
        behind = asyncio.ensure_future(client.call("order", "o-2", "stay"))
        await until(lambda: node.regions["order"].host.runner.mailbox_limits.waiting, "the mailbox")
        gates["open"].set()
        await asyncio.gather(waiting, behind)
    why = {span.attributes["shardbus.why"] for span in kept.named("buffered")}
    assert why == {"unknown_home", "mailbox"}
    stay = kept.span("handle order.stay")
    assert stay.attributes["shardbus.entity_id"] == "o-2"


async def test_B151_errors_are_on_the_spans_and_a_rejection_is_none(
    traced: Nodes, kept: Spans
) -> None:
    [node] = await traced.cluster(application(), 1)
    client = await traced.client(node, tracing=True)
    with kept.root():
        with pytest.raises(EntityFailed):
            await client.call("stock", "a", "fail")
        with pytest.raises(Rejection):
            await client.call("stock", "a", "refuse")
    failed, refused = kept.span("handle stock.fail"), kept.span("handle stock.refuse")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.events[0].name == "exception"
    assert refused.status.status_code is StatusCode.UNSET
    assert refused.attributes["shardbus.rejection"] == "SoldOut"
    asks = kept.named("ask stock")
    assert [span.status.status_code for span in asks] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_B151_the_parent_decides_and_without_one_the_ratio(
    traced: Nodes, kept: Spans
) -> None:
    [node] = await traced.cluster(application(), 1)
    client = await traced.client(node, tracing=True)
    with unsampled():
        assert await client.call("order", "o-3", "place", "fig", 1) == 1
    assert await client.call("order", "o-3", "place", "fig", 1) == 2
    assert kept.all == []
    often = await traced.client(node, tracing=True, trace_ratio=1.0)
    with unsampled():
        await often.call("order", "o-3", "place", "fig", 1)
    assert kept.all == []
    await often.call("order", "o-3", "place", "fig", 1)
    await until(lambda: kept.named("handle log.note"), "the told message")
    ask_span = kept.span("ask order")
    assert parent_of(ask_span) is None
    assert parent_of(kept.span("handle order.place")) == id_of(ask_span)


async def test_B151_a_node_without_tracing_takes_traced_messages_and_passes_the_context_on(
    nodes: Nodes, kept: Spans
) -> None:
    [node] = await nodes.cluster(application(), 1)
    assert node.tracer is None
    client = await nodes.client(node, tracing=True)
    with kept.root():
        assert await client.call("order", "o-4", "place", "fig", 1) == 1
    assert [span.name for span in kept.all if span.name != "buffered"] == ["request", "ask order"]


async def test_B151_a_client_without_tracing_sends_no_context(traced: Nodes, kept: Spans) -> None:
    [node] = await traced.cluster(application(), 1)
    client: AsyncClient = await traced.client(node)
    with kept.root():
        assert await client.call("order", "o-5", "place", "fig", 1) == 1
    assert [span.name for span in kept.all] == ["request"]


async def test_B151_the_context_of_a_web_request_is_the_parent(traced: Nodes, kept: Spans) -> None:
    [node] = await traced.cluster(application(), 1)
    client = AsyncClient(
        f"tcp://{node.me.address}",
        cluster="shop",
        tracing=True,
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )

    async def put(request: Request) -> JSONResponse:
        return JSONResponse(await client_of(request).call("order", "o-6", "place", "fig", 1))

    app = Starlette(routes=[Route("/put", put)], lifespan=lifespan(client))
    app.add_middleware(TraceContext)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://web") as web,
    ):
        assert (await web.get("/put", headers={"traceparent": parent})).json() == 1
        assert (await web.get("/put")).json() == 2
    ask_span = kept.span("ask order")
    assert parent_of(ask_span) == 0xB7AD6B7169203331
    assert ask_span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C


@pytest.mark.parametrize("then", ["ring", "ring_plainly"])
@pytest.mark.parametrize("delay", [0.0, 0.02])
async def test_B151_the_message_of_a_timer_belongs_to_the_trace_of_the_handler_that_set_it(
    traced: Nodes, kept: Spans, then: str, delay: float
) -> None:
    [node] = await traced.cluster(application(), 1)
    client = await traced.client(node, tracing=True)
    with kept.root():
        await client.call("alarm", "a", "set_once", delay, then)
    await until(lambda: kept.named("handle log.note"), "what the handler of the timer tells")
    setting, timer = kept.span("handle alarm.set_once"), kept.span("timer alarm")
    rung = kept.span(f"handle alarm.{then}")
    assert parent_of(timer) == parent_of(rung) == id_of(setting)
    assert [link.context.span_id for link in rung.links] == [id_of(timer)]
    assert timer.end_time - timer.start_time == pytest.approx(delay * 1e9, abs=1e3)
    assert timer.attributes["shardbus.entity_id"] == "a"
    assert timer.attributes["shardbus.method"] == then
    assert parent_of(kept.span("handle log.note")) == id_of(kept.span("tell log"))
    assert parent_of(kept.span("tell log")) == id_of(rung)


async def test_B151_the_timer_of_an_untraced_handler_sends_nothing_traced(
    traced: Nodes, kept: Spans
) -> None:
    [node] = await traced.cluster(application(), 1)
    client = await traced.client(node, tracing=True)
    await client.call("alarm", "a", "set_once", 0.0, "ring")
    await client.call("alarm", "a", "repeat")
    await until_rung(client, 3)
    assert kept.all == []


async def until_rung(client: AsyncClient, times: int) -> None:
    """Return when the alarm has rung that often."""

    async def enough() -> bool:
        return int(await client.call("alarm", "a", "rung")) >= times

    await until(enough, f"{times} rings")


async def test_B151_a_timer_that_repeats_begins_a_trace_each_time_by_the_ratio(
    nodes: Nodes, kept: Spans
) -> None:
    nodes.tracing = TracingSettings(enabled=True, ratio=1.0)
    [node] = await nodes.cluster(application(), 1)
    client = await nodes.client(node, tracing=True)
    with kept.root():
        await client.call("alarm", "a", "repeat")
    await until(lambda: len(kept.named("handle alarm.ring")) > 1, "the second time")
    setting = kept.span("handle alarm.repeat")
    first, second = kept.named("timer alarm")[:2]
    assert parent_of(first) is parent_of(second) is None
    ids = {span.context.trace_id for span in (setting, first, second)}
    assert len(ids) == 3
    for timer, rung in zip((first, second), kept.named("handle alarm.ring"), strict=False):
        assert [link.context.span_id for link in timer.links] == [id_of(setting)]
        assert parent_of(rung) == id_of(timer)


async def test_B151_what_a_thread_sends_by_the_blocking_client_is_traced(
    traced: Nodes, kept: Spans
) -> None:
    [node] = await traced.cluster(application(), 1)

    def send() -> None:
        with blocking_client(node, tracing=True) as client:
            client.ask("stock", "fig", "take", 1)
            client.tell("log", "before", "note", 1)
            with kept.root():
                assert client.call("stock", "fig", "take", 2) == 3
                client.tell("log", "under", "note", 1)
                assert client.ask_many("stock", [("fig", "take")])[0].definite
                with pytest.raises(EntityFailed):
                    client.call("stock", "fig", "fail")
            with unsampled():
                client.tell("log", "under one that is not sampled", "note", 1)
                client.call("stock", "fig", "take", 1)
            client.tell("log", "behind", "note", 1)
            client.flush()

    await asyncio.to_thread(send)
    await until(lambda: kept.named("handle log.note"), "the told message")
    request = kept.span("request")
    sent = [span for span in kept.all if span.name.startswith(("ask ", "tell "))]
    assert [span.name for span in sent] == ["ask stock", "tell log", "ask stock", "ask stock"]
    assert {parent_of(span) for span in sent} == {id_of(request)}
    assert [span.status.status_code for span in sent] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
    ]
    assert parent_of(kept.span("handle stock.take")) == id_of(sent[0])
    assert kept.span("handle log.note").attributes["shardbus.entity_id"] == "under"
    assert parent_of(kept.span("handle stock.fail")) == id_of(sent[3])
    assert {span.context.trace_id for span in kept.all} == {request.context.trace_id}


async def test_B151_the_ratio_begins_traces_of_the_blocking_client(
    traced: Nodes, kept: Spans
) -> None:
    [node] = await traced.cluster(application(), 1)

    def send() -> None:
        with blocking_client(node, tracing=True, trace_ratio=1.0) as client:
            with unsampled():
                client.call("stock", "fig", "take", 1)
            client.call("stock", "fig", "take", 1)

    await asyncio.to_thread(send)
    ask_span = kept.span("ask stock")
    assert parent_of(ask_span) is None
    assert parent_of(kept.span("handle stock.take")) == id_of(ask_span)


async def test_deliveries_events_and_reminders_work_and_have_spans(
    traced: Nodes, kept: Spans
) -> None:
    """A delivery has the span of its handler, an append the span of a save."""
    app = application()
    [node] = await traced.cluster(app, 1)
    client = await traced.client(node, tracing=True)
    diary = client.ref(app.types["diary"].cls, "d")
    with kept.root():
        await diary.write.deliver()
        await diary.write.ask(key="second")
        await diary.plan(0.01)
        await client.call("diary", "later", "plan", 60.0)

    async def three() -> bool:
        return bool(await diary.lines() == 3)

    await until(three, "the reminder fires, too")
    store, region = node.store, node.regions["diary"]
    reminders = reminder_store(store)
    assert reminders is not None
    shard = region.router.shard_of("later")
    [stored] = await reminders.load_reminders("diary", shard, ["later"])
    assert stored
    assert node.tracer is not None
    names, _ = await node.tracer.keeper(node.states).journals.page("diary", None, 9)
    assert "d" in [name for _, name in names], "a projection scans the journals of its shards"
    assert len(kept.named("handle diary.write")) == 2
    assert len(kept.named("save diary")) >= 3, "two appends, and reminders"
    assert not [span.name for span in kept.all if "!" in span.name]
