"""Receivers that are slower than their senders: senders wait, memory is bounded, nothing is lost;
and who stands still keeps nobody waiting for good."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import BufferFull, Entity, MailboxFull, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.entities.mailboxes import MailboxLimits
from shardbus.node.node import Node
from shardbus.store.group_commit import AT_ONCE
from shardbus.transport import outgoing
from shardbus.transport.outbox import BATCH_WEIGHT_MAX, ENVELOPE_WEIGHT
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S, until

MAILBOX = 200
BATCH = BATCH_WEIGHT_MAX // ENVELOPE_WEIGHT + 1
"""Small messages in a batch, at most."""


class Application:
    """Entities that wait for a gate, and the messages that they got."""

    def __init__(self) -> None:
        bus = self.bus = ShardBus("slow")
        self.handled: dict[str, list[int]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        app = self

        @bus.entity("line", shards=8)
        class Line(Entity):
            @handler
            async def put(self, number: int, payload: bytes = b"") -> None:
                await app.gate.wait()
                await asyncio.sleep(0)
                app.handled.setdefault(self.context.entity_id, []).append(number)

            @handler
            async def ping(self) -> str:
                await app.gate.wait()
                return self.context.node

            @handler
            def hello(self) -> str:
                return self.context.entity_id

            @handler
            async def chat(self, other: str, count: int) -> int:
                """Tell another one more than it has room for, and it tells us."""
                for number in range(count):
                    await self.context.ref("line", other).put.tell(number, bytes(1000))
                return count

        self.line = Line


async def started(nodes: Nodes, app: Application, **sharding: Any) -> tuple[Node, AsyncClient]:
    node = await nodes.start(app.bus, mailbox=MAILBOX, **sharding)
    client = await nodes.client()
    await client.ref(app.line, "a").ping()
    return node, client


def mailbox_limits(node: Node) -> MailboxLimits:
    return node.regions["line"].host.runner.mailbox_limits


def queued(client: AsyncClient) -> int:
    """Messages that wait at the client for entities without room."""
    held = [
        session.outbox.held
        for session in client._endpoint.sessions()
        if session.outbox.held is not None
    ]
    return sum(len(run.ids) for ask_run in held for run in ask_run.runs)


def mailbox(node: Node, entity_id: str) -> int:
    activation = node.regions["line"].host.active[entity_id]
    return len(activation.mailbox or ())


def dropped(node: Node) -> dict[str, int]:
    return node.regions["line"].host.counts.dropped


async def test_a_slow_entity_slows_its_sender_and_loses_nothing(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app)
    ref, longest = client.ref(app.line, "a"), 0
    for number in range(100 * MAILBOX):
        await ref.put.tell(number)
        if number % 50 == 0:
            await asyncio.sleep(0)
            longest = max(longest, mailbox(node, "a"))
    await client.flush()
    await until(lambda: len(app.handled["a"]) == 100 * MAILBOX, "every message")
    assert app.handled["a"] == list(range(100 * MAILBOX))
    assert dropped(node) == {}
    assert mailbox_limits(node).pauses > 10
    assert MAILBOX < longest <= MAILBOX + BATCH


async def test_two_senders_of_one_slow_entity_both_come_through(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app)
    clients = [client, await nodes.client(), await nodes.client()]

    async def send(lane: int, client: AsyncClient) -> None:
        for number in range(20 * MAILBOX):
            await client.tell("line", "a", "put", number * 10 + lane)
            if number % 50 == 0:
                await asyncio.sleep(0)
        await client.flush()

    await asyncio.gather(*(send(lane, client) for lane, client in enumerate(clients)))
    await until(lambda: len(app.handled["a"]) == 60 * MAILBOX, "every message")
    for lane in range(3):
        mine = [n // 10 for n in app.handled["a"] if n % 10 == lane]
        assert mine == list(range(20 * MAILBOX))
    assert dropped(node) == {}


async def test_while_an_entity_stands_still_its_sender_waits_and_others_are_served(
    nodes: Nodes,
) -> None:
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=60.0)
    app.gate.clear()
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await client.ref(app.line, "a").put.tell(sent, bytes(1000))
            sent += 1
            if sent % 50 == 0:
                await asyncio.sleep(0)

    sender = asyncio.ensure_future(send())
    await until(lambda: queued(client) == 1, "one message waits")
    at_rest = sent
    for number in range(20):
        assert await client.ref(app.line, f"other-{number}").hello() == f"other-{number}"
        await client.ref(app.line, f"other-{number}").put.tell(number)
    assert (sent, queued(client)) == (at_rest, 1)
    assert mailbox(node, "a") <= MAILBOX + BATCH
    assert dropped(node) == {}
    with pytest.raises(BufferFull):
        client.ref(app.line, "a").put.tell_nowait(0)
    client.ref(app.line, "b").put.tell_nowait(0)
    app.gate.set()
    await until(lambda: sent > at_rest, "room again")
    sender.cancel()
    await client.flush()
    await until(lambda: len(app.handled["a"]) >= sent, "what was sent")
    assert app.handled["a"] == list(range(len(app.handled["a"])))
    assert dropped(node) == {}


async def test_an_ask_waits_behind_the_tells_of_its_sender(nodes: Nodes) -> None:
    app = Application()
    _, client = await started(nodes, app, mailbox_patience=60.0)
    app.gate.clear()
    ref = client.ref(app.line, "a").within(PATIENCE_S)
    for number in range(3 * MAILBOX):
        ref.put.tell(number)
    answer = asyncio.ensure_future(ref.ping())
    await until(lambda: any(s.outbox.held for s in client._endpoint.sessions()), "no room")
    for number in range(3 * MAILBOX, 4 * MAILBOX):
        ref.put.tell(number)
    again = asyncio.ensure_future(ref.ping())
    app.gate.set()
    await answer
    assert app.handled["a"][: 3 * MAILBOX] == list(range(3 * MAILBOX))
    await again
    assert app.handled["a"] == list(range(4 * MAILBOX))


async def test_a_sender_that_flushes_and_leaves_loses_nothing(nodes: Nodes) -> None:
    """Acknowledged messages are behind the mailbox when the client ends."""
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=60.0)
    app.gate.clear()
    other = await nodes.client()
    for number in range(5 * MAILBOX):
        other.ref(app.line, "a").put.tell(number)
    await until(
        lambda: not any(s.link.outstanding for s in other._endpoint.sessions()), "the arrival"
    )
    assert mailbox(node, "a") <= MAILBOX + BATCH
    app.gate.set()
    await other.__aexit__(None, None, None)
    await until(lambda: len(app.handled.get("a", ())) == 5 * MAILBOX, "every message")
    assert app.handled["a"] == list(range(5 * MAILBOX))
    assert dropped(node) == {}
    assert client.refused_messages == {}


async def test_a_peer_without_holds_is_paused_as_a_whole(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "SESSION_FEATURES", ("drop_reports",))
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=60.0)
    app.gate.clear()
    for number in range(4 * MAILBOX):
        client.ref(app.line, "a").put.tell(number)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: mailbox_limits(node).pauses, "a pause")
    hello = asyncio.ensure_future(client.ref(app.line, "b").within(PATIENCE_S).hello())
    for session in node.endpoint.sessions():
        session.keep_alive()
    await until(lambda: any(s.link.held_reports for s in client._endpoint.sessions()), "HELD")
    assert not hello.done()
    app.gate.set()
    assert await hello == "b"
    await until(lambda: len(app.handled["a"]) == 4 * MAILBOX, "every message")
    assert app.handled["a"] == list(range(4 * MAILBOX))


async def test_an_ask_to_a_full_mailbox_is_refused_at_once(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=60.0)
    app.gate.clear()
    asks = [asyncio.ensure_future(client.ref(app.line, "a").ping()) for _ in range(MAILBOX + 6)]
    done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), MailboxFull)
    await until(lambda: dropped(node) == {"mailbox_full": 5}, "the refusals")
    app.gate.set()
    answers = await asyncio.gather(*asks, return_exceptions=True)
    assert sum(isinstance(answer, MailboxFull) for answer in answers) == 5
    assert sum(isinstance(answer, str) for answer in answers) == MAILBOX + 1


async def test_a_stalled_entity_does_not_hold_other_senders(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=0.2)
    app.gate.clear()
    for number in range(10 * MAILBOX):
        await client.ref(app.line, "a").put.tell(number)
    await client.flush()
    await until(lambda: dropped(node) and not mailbox_limits(node).paused, "the end of patience")
    lost = dropped(node)["mailbox_full"]
    kept = 10 * MAILBOX - lost
    assert MAILBOX <= kept <= MAILBOX + 1 + 2 * BATCH
    app.gate.set()
    await until(lambda: len(app.handled.get("a", ())) == kept, "what was kept")
    assert app.handled["a"] == list(range(kept))
    await client.ref(app.line, "a").ping()
    await until(lambda: not mailbox_limits(node)._stuck, "room")
    assert dropped(node) == {"mailbox_full": lost}


async def test_without_patience_a_full_mailbox_drops_at_once(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=0.0)
    app.gate.clear()
    for number in range(3 * MAILBOX):
        await client.ref(app.line, "a").put.tell(number)
    await client.flush()
    assert dropped(node) == {"mailbox_full": 2 * MAILBOX - 1}
    assert mailbox_limits(node).pauses == 0
    app.gate.set()


async def test_all_mailboxes_together_have_a_bound_in_bytes(nodes: Nodes) -> None:
    """A thousand entities with a little each."""
    app = Application()
    size, bound = 2000, 2_000_000
    node, client = await started(nodes, app, mailbox_patience=60.0, mailbox_bytes=bound)
    refs = [client.ref(app.line, f"e{n}") for n in range(500)]
    await asyncio.gather(*(ref.ping() for ref in refs))
    app.gate.clear()

    async def send() -> None:
        for number in range(10):
            for ref in refs:
                await ref.put.tell(number, bytes(size))

    sender = asyncio.ensure_future(send())
    await until(lambda: mailbox_limits(node).pauses, "a pause")
    await until(lambda: queued(client), "a message that waits")
    waiting = sum(mailbox(node, f"e{n}") for n in range(500))
    assert waiting * size < bound + 2 * BATCH_WEIGHT_MAX
    with pytest.raises(MailboxFull):
        await (await nodes.client()).ref(app.line, "e1").ping()
    app.gate.set()
    await sender
    await client.flush()
    await until(lambda: sum(map(len, app.handled.values())) == 5000, "every message")
    assert all(numbers == list(range(10)) for numbers in app.handled.values())
    assert set(dropped(node)) == {"mailbox_full"}
    assert dropped(node)["mailbox_full"] == 1  # the ask


async def test_entities_that_wait_for_room_at_each_other_come_apart(nodes: Nodes) -> None:
    """On two nodes, each tells the other more than it has room for, and handles nothing meanwhile:
    a circle of waiting. After the patience messages are dropped and counted, and both go on."""
    app = Application()
    small = {"mailbox": MAILBOX, "mailbox_patience": 0.3}
    first, second = await nodes.cluster(app.bus, 2, **small)
    client = await nodes.client()
    homes: dict[str, str] = {}
    for name in map(str, range(20)):
        homes.setdefault(await client.ref(app.line, name).ping(), name)
    assert len(homes) == 2
    a, b = homes.values()
    count = 20_000  # 20 MB: more than mailboxes and windows hold
    asks = [
        client.ref(app.line, page).within(PATIENCE_S).chat(other, count)
        for page, other in ((a, b), (b, a))
    ]
    assert await asyncio.gather(*asks) == [count, count]

    def lost() -> int:
        return sum(dropped(node).get("mailbox_full", 0) for node in (first, second))

    await until(
        lambda: len(app.handled[a]) + len(app.handled[b]) + lost() == 2 * count, "every outcome"
    )
    assert lost() > 0
    for numbers in (app.handled[a], app.handled[b]):
        assert numbers == sorted(set(numbers))


async def test_an_entity_that_tells_itself_more_than_it_has_room_for_goes_on(nodes: Nodes) -> None:
    app = Application()
    node, client = await started(nodes, app, mailbox_patience=0.2)
    count = 10_000
    assert await client.ref(app.line, "a").within(PATIENCE_S).chat("a", count) == count
    lost = dropped(node)["mailbox_full"]
    await until(lambda: len(app.handled["a"]) == count - lost, "what was not dropped")
    assert app.handled["a"] == sorted(set(app.handled["a"]))


@dataclass
class Total:
    count: int = 0


async def test_the_store_answers_before_further_messages_once_many_saves_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = ShardBus("slow")

    @bus.entity("total", shards=8)
    class Counted(Entity):
        state: Total

        @handler
        async def add(self, save: bool) -> None:
            self.state.count += 1
            if save:
                await self.save()

    async with Nodes() as nodes:
        node = await nodes.start(bus)
        client = await nodes.client()
        refs = [client.ref(Counted, str(n)) for n in range(2 * AT_ONCE)]
        ends: list[None] = []
        monkeypatch.setattr(node.endpoint.incoming.listener, "end_turn", lambda: ends.append(None))
        await asyncio.gather(*(ref.add(False) for ref in refs))
        assert not ends
        await asyncio.gather(*(ref.add(True) for ref in refs))
        assert ends
