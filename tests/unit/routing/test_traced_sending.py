"""Senders of a process with tracing: traced messages, under which context, in which chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.routing.instance_sender import sender_of
from shardbus.routing.refs import Ref
from shardbus.routing.router import Router
from shardbus.sharding import events
from shardbus.sharding.messages import Home, ShardHomes
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock

A = NodeId("10.0.0.1", 7355, 1)
CHAIN = (("page", "a", 7),)
bus = ShardBus("shop")


@bus.entity("page", shards=1)
class Page(Entity):
    @handler
    def add(self, amount: int) -> int:
        return amount


@bus.entity("quote", shards=1, instances=2)
class Quote(Entity):
    @handler
    def add(self, amount: int) -> int:
        return amount


class Span:
    def end(self) -> None: ...


class Tracer:
    """Traces every message that is sent under a context other than the plain one."""

    plain = ""

    def __init__(self) -> None:
        self.countdown, self.here = 1000, ""
        self.sent: list[tuple[str, str, str]] = []

    def current(self) -> str:
        return self.here

    def parent(self) -> str | None:
        return self.here or None

    def send(self, what: str, kind: str, entity_id: str, method: str, context: str) -> Span:
        self.sent.append((what, entity_id, context))
        return Span()

    def text(self, span: Span) -> str:
        return "00-trace"

    def end_with(self, span: Span, answer: object) -> None: ...

    def under(self, context: str, call: Callable[[], Any]) -> Any:
        before, self.here = self.here, context
        try:
            return call()
        finally:
            self.here = before


class Out:
    """A session that counts its messages."""

    writable = True

    def __init__(self) -> None:
        self.plain = self.spans = 0

    def admit(self, *args: object) -> None: ...
    def flush(self) -> None: ...
    def leave(self, *args: object) -> None: ...

    def tell(self, *args: object) -> None:
        self.plain += 1

    def traced(self, *args: object) -> None:
        self.spans += 1


class Owner:
    def __init__(self) -> None:
        self.out = Out()

    def out_for(self, node: NodeId) -> Any:
        return self.out

    def is_here(self, node: NodeId) -> bool:
        return False

    def send_to_leaving(self, pending: Any) -> None: ...

    def ask_failed(self, entity_type: str, waited_s: float) -> None: ...

    def why_away(self) -> str:
        return ""

    def perform(self, effect: object) -> None: ...


class Run:
    """A handler that asks."""

    chain = CHAIN

    def __init__(self) -> None:
        self.asks: list[Any] = []

    def call_chain_now(self) -> Run:
        return self

    def note_ask(self, target: Any, answer: Any) -> None:
        self.asks.append(target)


class Process:
    """A router with a tracer, whose caller is a handler."""

    def __init__(self, kind: Any = Page) -> None:
        interface = kind.__shardbus_interface__
        self.tracer, self.owner, self.run = Tracer(), Owner(), Run()
        region = ShardRegion(interface.name, None, interface.layout, ShardingSettings())
        owner, tracer, loop = self.owner, self.tracer, asyncio.get_running_loop()
        self.router = Router(
            interface,
            region,
            owner,  # type: ignore[arg-type]
            loop,
            CoarseClock(),
            tracer=tracer,  # type: ignore[arg-type]
            caller=lambda: self.run,
        )
        self.ref: Any = Ref(sender_of(self.router), "x", 5000)
        self.router.handle(events.CoordinatorAt(A))

    def home(self, *shards: str) -> None:
        homes = ShardHomes(1, tuple(Home(shard, A, 1) for shard in shards))
        self.router.handle(events.MessageReceived(A, homes))


@pytest.mark.parametrize("context", ["", "span"])
async def test_an_ask_of_a_handler_carries_its_chain_traced_or_not(context: str) -> None:
    process = Process()
    process.tracer.here = context
    answer = process.ref.add(1)
    [pending] = process.router._buffered()
    assert (pending.chain, bool(pending.trace)) == (CHAIN, bool(context))
    assert process.run.asks == [("page", "x")]
    answer.cancel()
    process.router.close()


@pytest.mark.parametrize("kind", [Page, Quote])
async def test_tells_of_a_reference_are_traced_under_a_span_only(kind: Any) -> None:
    process = Process(kind)
    process.home("0", "0~1", "0~2")
    process.ref.add.tell(1)
    assert (process.owner.out.plain, process.owner.out.spans) == (1, 0)
    process.tracer.here = "span"
    process.ref.add.tell(1)
    assert (process.owner.out.plain, process.owner.out.spans) == (1, 1)
    process.router.close()


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "waits"])
async def test_each_message_counts_once_towards_the_next_trace(is_known: bool) -> None:
    process = Process()
    if is_known:
        process.home("0")
    process.ref.add.tell(1)
    assert process.tracer.countdown == 999
    process.tracer.here = "span"
    process.ref.add.tell(1)
    assert process.tracer.countdown == 998
    process.ref.add(1).cancel()
    assert process.tracer.countdown == 997
    process.router.close()


async def test_a_tell_of_all_keeps_its_context_while_the_number_is_not_known() -> None:
    process = Process(Quote)
    process.home("0~1", "0~2")
    assert process.router.rows is not None
    process.tracer.here = "span"
    process.ref.to("all").add.tell(1)
    process.tracer.here = ""
    process.router.rows.set_count(2)
    assert process.tracer.sent == [("tell", "x~1", "span"), ("tell", "x~2", "span")]
    process.router.close()
