"""The order of a sender's messages from its first one on, by name and by reference, and its bound
with tracing."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from opentelemetry import trace

from shardbus import AsyncClient, BufferFull, Entity, ShardBus, handler
from shardbus.client.asynchronous import SEND_BUFFER_MIN
from shardbus.config.settings import TracingSettings
from shardbus.routing.region import Envelope
from shardbus.transport.outbox import BATCH_WEIGHT_MAX
from tests import spans
from tests.loopback.nodes import Nodes, blocking_client
from tests.loopback.test_senders import held
from tests.waiting import PATIENCE_S

MESSAGES = 300


class Application:
    """Types whose entities note their messages; the numbers are handlers, too, for texts."""

    def __init__(self) -> None:
        self.bus, self.gate = ShardBus("shop"), asyncio.Event()
        app = self

        class Noting(Entity):
            def __init__(self) -> None:
                self.got: list[int] = []

            @handler
            def mark(self, i: int) -> None:
                self.got.append(i)

            @handler
            async def hold(self, payload: bytes) -> None:
                await app.gate.wait()

            @handler
            def read(self) -> list[int]:
                return self.got

        def receive(self: Any, i: object) -> None:
            if not isinstance(i, dict):
                self.got.append(int(str(i)))

        def kind(name: str, **options: Any) -> Any:
            body = {"receive": receive}
            cls = types.new_class(name.title(), (Noting,), {}, lambda ns: ns.update(body))
            return self.bus.entity(name, shards=4, **options)(cls)

        self.log = kind("log")
        self.quote = kind("quote", instances=2)


VERBS: dict[str, Callable[[AsyncClient, str, int], Any]] = {
    "tell": lambda client, entity, i: client.tell("log", entity, "mark", i),
    "tell to receive": lambda client, entity, i: client.tell("log", entity, i),
    "ask": lambda client, entity, i: client.ask("log", entity, "mark", i),
    "ask a text": lambda client, entity, i: client.ask("log", entity, str(i)),
    "call": lambda client, entity, i: client.call("log", entity, "mark", i),
    "cast": lambda client, entity, i: client.cast("log", entity, "mark", i),
    "tell_many": lambda client, entity, i: client.tell_many("log", [(entity, i)]),
    "ask_many": lambda client, entity, i: client.ask_many("log", [(entity, i)]),
}


async def in_tasks(send: Callable[[int], Awaitable[object]]) -> None:
    """Send from tasks that are started one after the other."""

    async def one(i: int) -> None:
        await send(i)

    tasks = []
    for i in range(MESSAGES):
        tasks.append(asyncio.create_task(one(i)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)


@contextmanager
def a_trace() -> Iterator[None]:
    spans.install()
    with trace.get_tracer("test").start_as_current_span("work"):
        yield


@pytest.mark.parametrize("tracing", [False, True], ids=["", "with tracing"])
async def test_a_fresh_client_sends_in_order_by_every_verb(nodes: Nodes, tracing: bool) -> None:
    app = Application()
    await nodes.start(app.bus)
    with a_trace():
        for name, verb in VERBS.items():
            client = await nodes.client(tracing=tracing)
            await in_tasks(lambda i, v=verb, c=client, n=name: v(c, n, i))
            await client.flush()
            assert await client.call("log", name, "read") == list(range(MESSAGES)), name


async def test_a_fresh_client_sends_in_order_by_all_verbs_and_by_reference(nodes: Nodes) -> None:
    app = Application()
    await nodes.start(app.bus)
    ways = [*VERBS.values(), lambda client, entity, i: client.ref(app.log, entity).mark.tell(i)]
    for first in range(len(ways)):
        client, entity = await nodes.client(), str(first)
        await in_tasks(lambda i, c=client, n=entity, f=first: ways[(f + i) % len(ways)](c, n, i))
        await client.flush()
        assert await client.call("log", entity, "read") == list(range(MESSAGES))


async def test_a_class_of_another_program_is_used_in_order(nodes: Nodes) -> None:
    """Another module has a class of the same type, with some of the handlers."""
    app, other = Application(), ShardBus("shop")

    @other.entity("log", shards=4)
    class Log(Entity):
        @handler
        def mark(self, i: int) -> None: ...

    await nodes.start(app.bus)
    client = await nodes.client()
    for i in range(0, MESSAGES, 3):
        client.cast("log", "a", "mark", i)
        client.ref(Log, "a").mark.tell(i + 1)
        client.cast(Log, "a", "mark", i + 2)
    both: Any = client.ref(app.log, "a")
    assert await both.read() == list(range(MESSAGES))
    assert client.ref(Log, "a") == both
    assert not hasattr(client.ref(Log, "a"), "read")  # each has the handlers of its class


async def test_a_choice_made_by_name_knows_the_class_that_is_used_later(nodes: Nodes) -> None:
    app = Application()
    await nodes.start(app.bus)
    client = await nodes.client()
    await client.to("all").cast("quote", "a", "mark", 1)
    ref: Any = client.ref(app.quote, "a")
    assert [1] in (await ref.to("all").read()).values()


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("own_garbage")
async def test_what_no_caller_awaits_is_sent_in_order(nodes: Nodes) -> None:
    app = Application()
    await nodes.start(app.bus)
    for name, verb in VERBS.items():
        client = await nodes.client()
        for i in range(10):
            verb(client, name, i)
        await client.flush()
        assert await client.call("log", name, "read") == list(range(10)), name
        gc.collect()


@pytest.mark.parametrize("policy", ["nearest", "hash", "all"])
async def test_a_fresh_client_sends_to_an_instance_in_order(nodes: Nodes, policy: str) -> None:
    app = Application()
    await nodes.cluster(app.bus, 2)
    client = await nodes.client()
    to = client.to(policy)
    ways: list[Callable[[int], Any]] = [
        lambda i: to.cast("quote", "a", "mark", i),
        lambda i: to.call("quote", "a", "mark", i),
        lambda i: to.tell("quote", "a", i),
        lambda i: to.ask_many("quote", [("a", i)]),
        lambda i: to.tell_many("quote", [("a", i)]),
    ]
    await in_tasks(lambda i: ways[i % len(ways)](i))
    await client.flush()
    answers = await client.to("all").call("quote", "a", "read")
    for got in answers.values():
        assert got == sorted(got)
    assert sum(map(len, answers.values())) == MESSAGES * (2 if policy == "all" else 1)


async def test_code_inside_a_node_sends_in_order_from_its_first_message(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus)
    ref, region = node.ref(app.log, "a"), app.bus.region("log")
    app.bus._node = node
    try:
        for i in range(0, MESSAGES, 4):
            ref.mark.tell(i)
            node.ref("log", "a").mark(i + 1)
            region.tell(Envelope("a", i + 2))
            node.ref("log", "a").tell(i + 3)
        assert await ref.read() == list(range(MESSAGES))
    finally:
        app.bus._node = None


async def test_threads_send_in_order_from_their_first_message(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus)

    def run() -> None:
        with blocking_client(node) as client:
            ways: list[Callable[[str, int], Any]] = [
                lambda entity, i: client.tell("log", entity, "mark", i),
                lambda entity, i: client.cast("log", entity, "mark", i),
                lambda entity, i: client.call("log", entity, "mark", i),
                lambda entity, i: client.ref(app.log, entity).mark.tell(i),
                lambda entity, i: client.tell_many("log", [(entity, i)]),
                lambda entity, i: client.ask("log", entity, str(i)),
            ]

            def send(entity: str, first: int) -> None:
                for i in range(60):
                    ways[(first + i) % len(ways)](entity, i)

            threads = [threading.Thread(target=send, args=(f"t{n}", n)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            for n in range(6):
                assert client.call("log", f"t{n}", "read") == list(range(60))

    await asyncio.to_thread(run)


async def test_tells_to_an_instance_by_a_reference_are_traced(nodes: Nodes) -> None:
    app, kept = Application(), spans.Spans()
    await nodes.start(app.bus)
    client = await nodes.client(tracing=True)
    ref: Any = client.ref(app.quote, "a")
    await ref.read()  # the reference has picked an instance with a home
    kept.clear()
    with a_trace():
        await ref.mark.tell(1)
    assert len(kept.named("tell quote")) == 1


async def test_a_message_that_waited_for_its_type_belongs_to_the_span_of_its_sender(
    nodes: Nodes,
) -> None:
    app, kept = Application(), spans.Spans()
    await nodes.start(app.bus)
    client = await nodes.client(tracing=True)
    kept.clear()
    with a_trace():
        client.cast("log", "a", "mark", 1)
        mark = client.call("log", "a", "mark", 2)
    client.cast("log", "a", "mark", 3)  # under no span
    await mark
    await client.flush()
    [work], [tell_span], [call] = (kept.named(name) for name in ("work", "tell log", "ask log"))
    assert spans.parent_of(tell_span) == spans.parent_of(call) == spans.id_of(work)


HELD: dict[str, Callable[[AsyncClient, Application, bytes], Any]] = {
    "a tell": lambda client, app, payload: client.ref(app.log, "a").hold.tell(payload),
    "a tell by name": lambda client, app, payload: client.cast("log", "a", "hold", payload),
    "an ask": lambda client, app, payload: client.ref(app.log, "a").hold(payload),
    "an ask by name": lambda client, app, payload: client.call("log", "a", "hold", payload),
    "an instance": lambda client, app, payload: client.ref(app.quote, "a").hold.tell(payload),
    "all": lambda client, app, payload: client.ref(app.quote, "a").to("all").hold.tell(payload),
    "receive": lambda client, app, payload: client.ref(app.log, "a").tell({"is": payload}),
}


@pytest.mark.parametrize("verb", HELD.values(), ids=HELD)
@pytest.mark.parametrize("tracing", [False, True], ids=["", "with tracing"])
async def test_the_send_buffer_holds_however_a_message_is_sent(
    nodes: Nodes, tracing: bool, verb: Callable[[AsyncClient, Application, bytes], Any]
) -> None:
    app, payload = Application(), bytes(64 * 1024)
    nodes.tracing = TracingSettings(enabled=tracing)
    await nodes.start(app.bus, mailbox=10, mailbox_patience=0.0)
    client = await nodes.client(send_buffer_bytes=SEND_BUFFER_MIN, tracing=tracing)
    await client.call("log", "a", "read")
    await client.to("all").call("quote", "a", "read")
    [session] = client._endpoint.sessions()
    with a_trace():
        for sent in count(1):  # in one turn of the loop, so that nothing is acknowledged
            try:
                outcome = verb(client, app, payload)
            except BufferFull:
                break
            if isinstance(outcome, asyncio.Future) and outcome.done() and outcome.exception():
                break
            if client.refused_messages:
                break
            assert sent * len(payload) < 2 * SEND_BUFFER_MIN, "nothing was refused"
    most = SEND_BUFFER_MIN + BATCH_WEIGHT_MAX + 3 * len(payload)
    assert SEND_BUFFER_MIN < held(client) + session.outbox._weight <= most
    assert client.refused_messages["send_buffer_full"] >= 1
    app.gate.set()
