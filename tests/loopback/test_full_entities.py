"""Entities without room: the messages for them wait, and no others; whoever sends, wherever they
live, and while their shard moves."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from typing import Any

import pytest

from shardbus import AskTimeout, BufferFull, Entity, MailboxFull, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.blocking import Client
from shardbus.node.node import Node
from shardbus.shells.message_account import account_of
from tests.loopback.nodes import Nodes, blocking_client
from tests.waiting import PATIENCE_S, until

MAILBOX = 50
LANE = 1_000_000


class Application:
    """Slow entities, which wait for a gate, and their messages by sender."""

    def __init__(self, **slow: Any) -> None:
        bus = self.bus = ShardBus("full")
        self.handled: dict[str, list[int]] = defaultdict(list)
        self.gate = asyncio.Event()
        self.nodes: dict[str, str] = {}
        app = self

        @bus.entity("slow", shards=8, **slow)
        class Slow(Entity):
            @handler
            async def put(self, number: int, payload: bytes = b"") -> None:
                await app.gate.wait()
                app.handled[self.context.entity_id].append(number)

            @handler
            async def ping(self) -> int:
                await app.gate.wait()
                return len(app.handled[self.context.entity_id])

            @handler
            def where(self) -> str:
                return self.context.node

            @handler
            async def tell_another(self, other: str, lane: int, begin: int, count: int) -> None:
                put = self.context.ref("slow", other).put
                for number in range(begin, begin + count):
                    put.tell(lane * LANE + number)
                    if number % 20 == 0:
                        await asyncio.sleep(0)

        @bus.entity("fast", shards=8)
        class Fast(Entity):
            @handler
            def hello(self) -> str:
                return self.context.entity_id

            @handler
            async def ask_another(self, other: str) -> str:
                return await self.context.ref("fast", other).hello()

        self.slow, self.fast = Slow, Fast

    def lane(self, entity_id: str, lane: int) -> list[int]:
        return [n % LANE for n in self.handled[entity_id] if n // LANE == lane]


async def home(client: AsyncClient, app: Application, node: Node) -> str:
    """A slow entity that lives on this node."""
    for name in map(str, range(100)):
        if await client.ref(app.slow, name).where() == str(node.me):
            return name
    raise AssertionError(f"nothing lives at {node.me}")


def mailbox(node: Node, entity_id: str) -> int:
    region = node.regions["slow"]
    activation = region.host.find(entity_id, region.router.shard_of(entity_id))
    return 0 if activation is None else len(activation.mailbox or ())


def dropped(*nodes: Node) -> dict[str, int]:
    by_reason: dict[str, int] = {}
    for node in nodes:
        for reason, count in node.regions["slow"].host.counts.dropped.items():
            by_reason[reason] = by_reason.get(reason, 0) + count
    return by_reason


async def test_other_types_and_other_entities_of_a_node_are_served(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0)
    client = await nodes.client()
    slow = [f"slow-{n}" for n in range(5)]

    async def flood(entity_id: str) -> None:
        for number in range(100 * MAILBOX):
            await client.ref(app.slow, entity_id).put.tell(number)
            if number % 20 == 0:
                await asyncio.sleep(0)

    floods = [asyncio.ensure_future(flood(entity_id)) for entity_id in slow]
    await until(lambda: all(mailbox(node, slow_id) > MAILBOX for slow_id in slow), "full mailboxes")
    for number in range(50):
        assert await client.ref(app.fast, f"f-{number}").hello() == f"f-{number}"
        assert await client.ref(app.slow, f"other-{number}").where()
    assert not any(flood.done() for flood in floods)
    app.gate.set()
    await asyncio.gather(*floods)
    await until(lambda: sum(map(len, app.handled.values())) == 500 * MAILBOX, "every message")
    assert all(app.handled[entity_id] == list(range(100 * MAILBOX)) for entity_id in slow)
    assert dropped(node) == {}
    assert account_of(node.regions["slow"]).missing == 0


async def test_a_thread_that_tells_a_full_entity_waits_and_other_threads_go_on(
    nodes: Nodes,
) -> None:
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0)
    loop, count, tells = asyncio.get_running_loop(), 100 * MAILBOX, list[int]()

    def flood(client: Client) -> None:
        ref = client.ref(app.slow, "a")
        for number in range(count):
            ref.put.tell(number, bytes(1000))
            tells.append(number)

    def ask(client: Client) -> list[str]:
        for number in range(20):
            client.tell("slow", f"s-{number}", "put", number)
        return [client.ref(app.fast, f"f-{n}").hello() for n in range(20)]

    client = await loop.run_in_executor(None, blocking_client(node).__enter__)
    try:
        await loop.run_in_executor(None, client.ref(app.slow, "a").where)
        flooded = loop.run_in_executor(None, flood, client)
        await until(lambda: client._bridge._full, "a thread that waits")
        assert await loop.run_in_executor(None, ask, client) == [f"f-{n}" for n in range(20)]
        assert len(tells) < count
        with pytest.raises(BufferFull):
            client.ref(app.slow, "a").put.tell_nowait(0)
        app.gate.set()
        await flooded
        await loop.run_in_executor(None, client.flush)
        await until(lambda: len(app.handled["a"]) == count, "every message")
    finally:
        app.gate.set()
        await loop.run_in_executor(None, client.close)
    assert app.handled["a"] == list(range(count))
    assert dropped(node) == {}


async def test_a_flood_of_asks_is_refused_and_holds_up_nothing(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0)
    client = await nodes.client()
    await client.ref(app.slow, "a").where()
    asks = [asyncio.ensure_future(client.ref(app.slow, "a").ping()) for _ in range(10 * MAILBOX)]
    await until(lambda: dropped(node), "a refusal")
    assert await client.ref(app.fast, "f").hello() == "f"
    app.gate.set()
    outcomes = await asyncio.gather(*asks, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, MailboxFull)]
    assert len(refused) == 9 * MAILBOX - 1
    assert all(outcome.definite for outcome in refused)


async def test_an_ask_behind_tells_ends_at_its_deadline(nodes: Nodes) -> None:
    app = Application()
    await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0)
    client = await nodes.client()
    await client.ref(app.slow, "a").where()
    for number in range(10 * MAILBOX):
        client.ref(app.slow, "a").put.tell(number)
    await until(lambda: any(s.outbox.held for s in client._endpoint.sessions()), "no room")
    with pytest.raises(AskTimeout):
        await client.ref(app.slow, "a").within(0.3).ping()
    last = asyncio.ensure_future(client.ref(app.slow, "a").within(PATIENCE_S).ping())
    app.gate.set()
    assert await last == 10 * MAILBOX


async def test_entities_tell_and_ask_past_a_full_one(nodes: Nodes) -> None:
    app = Application()
    first, second = await nodes.cluster(
        app.bus, 2, mailbox=MAILBOX, mailbox_patience=60.0, handoff_timeout=60.0
    )
    client = await nodes.client()
    here, there = await home(client, app, first), await home(client, app, second)
    teller = client.ref(app.slow, here).within(PATIENCE_S)
    count = 20 * MAILBOX
    for target in (there, f"{here}-neighbour"):  # by a link, and within the node
        await teller.tell_another(target, 1, 0, count)
    await until(lambda: mailbox(second, there) > MAILBOX, "a full mailbox")
    for number in range(30):
        ref = client.ref(app.fast, f"f-{number}")
        assert await ref.ask_another(f"g-{number}") == f"g-{number}"
    fast = first.ref(app.fast, "h")
    assert await fast.hello() == "h"
    app.gate.set()
    await until(lambda: sum(map(len, app.handled.values())) == 2 * count, "every message")
    for target in (there, f"{here}-neighbour"):
        assert app.lane(target, 1) == list(range(count))
    assert dropped(first, second) == {}


@pytest.mark.parametrize("handoff", ["buffer", "ordered"])
@pytest.mark.parametrize("cut_off", [False, True], ids=["handled", "cut-off"])
async def test_order_and_messages_are_kept_while_the_shard_of_a_full_entity_moves(
    nodes: Nodes, handoff: str, cut_off: bool
) -> None:
    """Senders of three kinds have sent it more than it has room for, and go on."""
    app = Application(handoff=handoff)
    timeout = 6.0 if cut_off else 60.0
    limits = {"mailbox": MAILBOX, "mailbox_patience": 60.0, "handoff_timeout": timeout}
    first, second = await nodes.cluster(app.bus, 2, **limits)
    client = await nodes.client(first)
    there = await home(client, app, second)
    teller, count = await home(client, app, first), 12 * MAILBOX

    async def send(lane: int, begin: int, put: Any) -> None:
        for number in range(begin, begin + count):
            put.tell(lane * LANE + number)
            if number % 20 == 0:
                await asyncio.sleep(0)

    async def part(begin: int) -> None:
        tells = client.ref(app.slow, teller).within(PATIENCE_S).tell_another
        await asyncio.gather(
            send(0, begin, client.ref(app.slow, there).put),
            send(1, begin, first.ref(app.slow, there).put),
            tells(there, 2, begin, count),
        )

    await part(0)
    await until(lambda: mailbox(second, there) > MAILBOX, "a full mailbox")
    leaving = asyncio.ensure_future(nodes.leave(second))
    region = first.regions["slow"]
    shard = region.router.shard_of(there)
    old_home = second.regions["slow"].host.shards
    await until(lambda: shard not in old_home or old_home[shard].stopping, "the move")
    if cut_off:
        await until(lambda: shard in region.host.shards, "the new home")
    app.gate.set()
    await part(count)
    await leaving
    lanes = range(3)
    expected = 6 * count - (1 if cut_off else 0)
    await until(lambda: len(app.handled[there]) >= expected, "every message")
    for lane in lanes:
        got = app.lane(there, lane)
        assert got == sorted(set(got))
    assert sum(len(app.lane(there, lane)) for lane in lanes) >= expected
    assert "mailbox_full" not in dropped(first, second)


async def test_one_entity_with_large_messages_does_not_take_the_room_of_the_others(
    nodes: Nodes,
) -> None:
    app = Application()
    node = await nodes.start(
        app.bus, mailbox=10_000, mailbox_patience=60.0, mailbox_bytes=8_000_000
    )
    client = await nodes.client()
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for number in range(400):
            await client.ref(app.slow, "large").put.tell(number, bytes(100_000))
            sent = number + 1

    task = asyncio.ensure_future(flood())
    await until(lambda: any(s.outbox.held for s in client._endpoint.sessions()), "no room")
    waiting = [
        asyncio.ensure_future(client.ref(app.slow, f"s-{n}").within(PATIENCE_S).ping())
        for n in range(20)
        for _ in range(5)
    ]
    for number in range(20):
        await client.ref(app.slow, f"s-{number}").put.tell(number, bytes(1000))
    await until(lambda: mailbox(node, "s-19") == 5, "the messages of the others")
    assert not any(task.done() for task in waiting)
    assert mailbox(node, "large") * 100_000 < 8_000_000
    app.gate.set()
    await asyncio.gather(*waiting)
    await task
    await until(lambda: len(app.handled["large"]) == 400, "every message")
    assert app.handled["large"] == list(range(400))
    assert dropped(node) == {}


async def test_a_node_without_consent_holds_back_nothing_but_full_entities(nodes: Nodes) -> None:
    """While its entities are suspended, messages wait in mailboxes; the link stays open."""
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=0.2)
    client = await nodes.client()
    await client.ref(app.slow, "a").where()
    await client.ref(app.fast, "f").hello()
    app.gate.set()
    node.gate.clock = lambda: math.inf
    for number in range(5 * MAILBOX):
        client.ref(app.slow, "a").put.tell(number)
    await until(lambda: mailbox(node, "a") > MAILBOX, "a full mailbox")
    hello = asyncio.ensure_future(client.ref(app.fast, "f").within(PATIENCE_S).hello())
    fast = node.regions["fast"].host
    await until(lambda: fast.waiting == 1, "a message of another type")
    node.gate.clock = time.monotonic
    node.gate.poll()
    assert await hello == "f"
    await until(lambda: len(app.handled["a"]) == 5 * MAILBOX, "every message")
    assert app.handled["a"] == list(range(5 * MAILBOX))
    assert dropped(node) == {}


async def test_a_killed_sender_leaves_nothing_behind(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus, mailbox=MAILBOX, mailbox_patience=60.0)
    client = await nodes.client()
    await client.ref(app.slow, "a").where()
    for number in range(10 * MAILBOX):
        client.ref(app.slow, "a").put.tell(number)
    await until(lambda: any(s.outbox.held for s in client._endpoint.sessions()), "no room")
    limits = node.regions["slow"].host.runner.mailbox_limits
    for inbound in list(node.endpoint.incoming.by_name.values()):
        node.endpoint.incoming.forget(inbound, ConnectionError("killed"))  # type: ignore[arg-type]
    await until(lambda: limits.paused == 0, "no session waits")
    app.gate.set()
    await until(lambda: not mailbox(node, "a"), "an empty mailbox")
    assert account_of(node.regions["slow"]).missing == 0
