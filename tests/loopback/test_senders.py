"""The bound on a sender's buffer, and the reports of tells that were dropped."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from shardbus import BufferFull, Entity, ShardBus, handler
from shardbus.client.asynchronous import SEND_BUFFER_MIN, AsyncClient
from shardbus.errors import ConfigError
from shardbus.node.node import Node
from shardbus.transport import outgoing
from shardbus.transport.full_entities import RESTS_WEIGHT_MAX
from shardbus.transport.outbox import BATCH_WEIGHT_MAX
from shardbus.wire.batch import Hello
from tests.loopback.nodes import Nodes, blocking_client, http
from tests.waiting import until

MAILBOX = 10
PAYLOAD = bytes(64 * 1024)


class Application:
    """Entities that wait for a gate, and the messages that they got."""

    def __init__(self) -> None:
        bus = self.bus = ShardBus("senders")
        self.handled: list[int] = []
        self.gate = asyncio.Event()
        app = self

        @bus.entity("line", shards=4)
        class Line(Entity):
            @handler
            async def put(self, number: int, payload: bytes = b"") -> None:
                await app.gate.wait()
                app.handled.append(number)

            @handler
            def where(self) -> str:
                return self.context.node

        self.line = Line


async def closed(nodes: Nodes, app: Application, **sharding: Any) -> tuple[Node, AsyncClient]:
    """A node whose entities stand still, and a client with the smallest send buffer."""
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0, **sharding)
    client = await nodes.client(send_buffer_bytes=SEND_BUFFER_MIN)
    await client.ref(app.line, "a").where()
    return node, client


async def id_at(client: AsyncClient, app: Application, node: Node) -> str:
    """An entity that lives there."""
    for name in map(str, range(100)):
        if await client.ref(app.line, name).where() == str(node.me):
            return name
    raise AssertionError(f"nothing lives at {node.me}")


def held(client: AsyncClient) -> int:
    return sum(session.link.outstanding for session in client._endpoint.sessions()) + queued(client)


def queued(client: AsyncClient) -> int:
    """The weight of the messages that wait for entities without room."""
    return sum(
        session.outbox.held.weight for session in client._endpoint.sessions() if session.outbox.held
    )


async def test_a_sender_that_does_not_await_is_refused_and_accepted_messages_arrive(
    nodes: Nodes,
) -> None:
    app = Application()
    _, client = await closed(nodes, app)
    put = client.ref(app.line, "a").put

    async def send() -> int:
        for number in count():
            try:
                put.tell(number, PAYLOAD)
            except BufferFull:
                return number
            await asyncio.sleep(0)
        raise AssertionError

    taken = await send()
    bound = SEND_BUFFER_MIN // 2
    assert bound < queued(client) <= bound + BATCH_WEIGHT_MAX + len(PAYLOAD)
    assert client.refused_messages == {"send_buffer_full": 1}
    assert await client.ref(app.line, "b").where()
    client.ref(app.line, "b").put.tell(-1, PAYLOAD)
    app.gate.set()
    await client.flush()
    await put.tell(taken)
    await until(lambda: len(app.handled) == taken + 2, "what was taken")
    app.handled.remove(-1)
    assert app.handled == list(range(taken + 1))


async def test_tasks_that_await_their_tells_are_not_refused(nodes: Nodes) -> None:
    """A thousand tasks, each with one of several messages under way, while nothing is taken. They
    have more than the node takes at most before its word to hold them has come: its rests."""
    app, rounds = Application(), range(12)
    payload = bytes(3 * RESTS_WEIGHT_MAX // 2 // (1000 * len(rounds)))
    _, client = await closed(nodes, app)
    begun: list[int] = []

    async def send(task: int) -> None:
        for round in rounds:
            begun.append(task)
            await client.tell("line", "a", "put", round * 1000 + task, payload)

    tasks = [asyncio.ensure_future(send(task)) for task in range(1000)]
    await until(lambda: len(begun) >= 1000 and held(client) > SEND_BUFFER_MIN // 4, "a queue")
    assert len(begun) < 1000 * len(rounds)
    app.gate.set()
    await asyncio.gather(*tasks)
    await client.flush()
    await until(lambda: len(app.handled) == 1000 * len(rounds), "every message")
    for task in range(1000):
        got = [n for n in app.handled if n % 1000 == task]
        assert got == [round * 1000 + task for round in rounds]
    assert client.refused_messages == {}


async def test_a_thread_that_tells_waits_and_is_not_refused(nodes: Nodes) -> None:
    app = Application()
    node, _ = await closed(nodes, app)
    messages = SEND_BUFFER_MIN // len(PAYLOAD) * 2

    def produce() -> dict[str, int]:
        with blocking_client(node, send_buffer_bytes=SEND_BUFFER_MIN) as client:
            for number in range(messages):
                client.tell("line", "a", "put", number, PAYLOAD)
            client.flush()
            return client.refused_messages

    produced = asyncio.get_running_loop().run_in_executor(None, produce)
    await until(lambda: node.regions["line"].host.runner.mailbox_limits.pauses, "a pause")
    app.gate.set()
    assert await produced == {}
    await until(lambda: len(app.handled) == messages, "every message")
    assert app.handled == list(range(messages))


async def test_an_entity_that_tells_others_without_awaiting_is_refused_too(nodes: Nodes) -> None:
    app, nodes.node_settings = Application(), {"send_buffer_bytes": SEND_BUFFER_MIN}
    first, second = await nodes.cluster(app.bus, 2, mailbox=MAILBOX, mailbox_patience=60.0)
    client = await nodes.client()
    there = await id_at(client, app, second)
    put = first.ref(app.line, there).put
    for number in count():
        try:
            put.tell(number, PAYLOAD)
        except BufferFull:
            break
    async with http(first) as page:
        metrics = (await page.get("/metrics")).text
    assert 'dropped_total{entity_type="line",reason="send_buffer_full"} 1.0' in metrics
    app.gate.set()
    await until(lambda: len(app.handled) == number, "what was taken")


def test_the_bound_is_well_above_the_window() -> None:
    with pytest.raises(ConfigError, match="send_buffer_bytes"):
        AsyncClient("tcp://127.0.0.1:1", cluster="senders", send_buffer_bytes=SEND_BUFFER_MIN - 1)


# Messages dropped behind the acknowledgement


async def refusals(client: AsyncClient, expected: dict[str, int]) -> None:
    await until(lambda: client.refused_messages == expected, f"{expected}")


async def test_a_client_gets_reports_of_tells_that_do_not_fit(nodes: Nodes) -> None:
    app = Application()
    app.gate.set()
    await nodes.start(app.bus)
    client, other = await nodes.client(), await nodes.client()
    for number in range(10):
        await client.tell("line", str(number), "put", "no number")
        await client.tell("line", str(number), "no handler", 1)
        await client.tell("line", str(number), "put", number)
    await refusals(client, {"schema": 10, "unhandled": 10})
    await until(lambda: sorted(app.handled) == list(range(10)), "what fits")
    assert other.refused_messages == {}


async def test_drops_from_the_mailbox_of_a_busy_entity_are_reported_to_their_senders(
    nodes: Nodes,
) -> None:
    app = Application()
    await nodes.start(app.bus)
    client, other = await nodes.client(), await nodes.client()
    await other.tell("line", "a", "put", 1)
    await client.tell("line", "a", "put", 2)
    await client.tell("line", "a", "put", "no number")
    await asyncio.gather(client.flush(), other.flush())
    assert client.refused_messages == {}
    app.gate.set()
    await refusals(client, {"schema": 1})
    assert other.refused_messages == {}


async def test_messages_over_the_mailbox_of_a_stuck_entity_are_reported(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=0.2)
    client = await nodes.client()
    messages = 5000
    for number in range(messages):
        await client.tell("line", "a", "put", number)
    await client.flush()
    dropped = node.regions["line"].host.counts.dropped
    limits = node.regions["line"].host.runner.mailbox_limits
    await until(lambda: dropped and not limits.paused, "the end of patience")
    await until(lambda: client.refused_messages == dropped, "every drop")
    app.gate.set()
    await until(lambda: len(app.handled) + dropped["mailbox_full"] == messages, "the others")
    assert 0 < dropped["mailbox_full"] < messages


async def test_a_thread_gets_reports_of_drops_too(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus)
    loop = asyncio.get_running_loop()

    def produce() -> dict[str, int]:
        with blocking_client(node) as client:
            client.tell("line", "a", "put", "no number")
            client.flush()
            asyncio.run_coroutine_threadsafe(
                until(lambda: client.refused_messages, "the refusal"), loop
            ).result()
            return client.refused_messages

    assert await loop.run_in_executor(None, produce) == {"schema": 1}


async def test_a_message_that_waited_for_its_shard_is_reported_to_its_sender(
    nodes: Nodes,
) -> None:
    app = Application()
    app.gate.set()
    node = await nodes.start(app.bus)
    client = await nodes.client()
    await client.ref(app.line, "a").where()
    kind = node.regions["line"]
    kind.host.set_arrivals(kind.router.shard_of("a"), False, None)
    await client.tell("line", "a", "put", "no number")
    await client.tell("line", "a", "put", 1)
    await refusals(client, {"schema": 1})
    assert (app.handled, kind.relayed_messages) == ([1], 2)


async def test_drops_of_a_forwarded_message_are_reported_to_its_sender(nodes: Nodes) -> None:
    app = Application()
    app.gate.set()
    first, second = await nodes.cluster(app.bus, 2)
    client = await nodes.client(first)
    there = await id_at(client, app, second)
    route = (await client.router_of("line")).route_of(there)
    wrong = client._endpoint.session_to(first.me.address, first.me, probe=True)
    route.out = wrong.outbox
    await client.tell("line", there, "put", "no number")
    await refusals(client, {"schema": 1})
    assert first.records.refused.counts == {}, "the node that forwarded it passes the report on"


async def test_a_client_of_an_older_build_gets_no_reports_and_is_served(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        outgoing, "Hello", lambda *fields, secret, **_: Hello(*fields, secret=secret)
    )
    app = Application()
    app.gate.set()
    node = await nodes.start(app.bus)
    client = await nodes.client()
    await client.tell("line", "a", "put", "no number")
    await client.tell("line", "a", "put", 1)
    await client.flush()
    await until(lambda: app.handled == [1], "what fits")
    assert node.regions["line"].host.counts.dropped == {"schema": 1}
    assert node.records.drops._tallies == {}
