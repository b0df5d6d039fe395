"""Links over a TCP proxy that breaks them: what was sent arrives once, in order, whatever the
connection does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from shardbus.errors import NodeLost
from shardbus.ids import Address, NodeId
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.schema import decode_value
from tests.ports import free_port
from tests.waiting import until

KEY = ("page", "hit")


class Proxy:
    """Passes bytes on to one port. `cut` closes connections; `half` closes only the client's side,
    so that the server does not notice."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self.connections = 0
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._held: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._pairs.append((writer, far_writer))
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        if sink not in self._held:
            sink.close()

    def cut(self) -> None:
        """Break every connection, with what is under way on it."""
        for near, far in self._pairs:
            near.transport.abort()
            far.transport.abort()
        self._pairs.clear()

    def half(self) -> None:
        """Break the client's side only."""
        for near, far in self._pairs:
            self._held.append(far)
            near.transport.abort()
        self._pairs.clear()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for far in self._held:
            far.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Taker:
    """Writes down what it is told and answers what it is asked with its own payload."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.asked: list[bytes] = []

    def on_tells(self, session: Session, run: TellRun) -> None:
        self.told += run.payloads

    def on_asks(self, session: Session, run: AskRun) -> None:
        self.asked += run.payloads
        for corr, payload in zip(run.corrs, run.payloads, strict=True):
            session.reply(corr, payload)

    def on_relayed(self, session: Session, message: Relayed) -> None: ...
    def on_control(self, session: Session, control: Control) -> None: ...
    def on_flush(self, session: Session, flush: Flush) -> None: ...


class World:
    """A node behind a proxy, and a client of it."""

    async def start(self) -> None:
        self.taker = Taker()
        self.me = NodeId("127.0.0.1", free_port(), 1)
        self.node = Endpoint("shop", str(self.me), 1, self.taker, node=self.me)
        self.node.start("127.0.0.1", self.me.port)
        self.proxy = Proxy(self.me.port)
        await self.proxy.start()
        self.lost: list[str] = []
        self.client = Endpoint(
            "shop", "client#9", 9, Taker(), on_lost=lambda s, unsent: self.lost.append(s.name)
        )
        self.client.start()
        self.session = self.client.session_to(Address("127.0.0.1", self.proxy.port), probe=True)

    async def close(self) -> None:
        self.client.close()
        self.node.close()
        await self.proxy.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    await world.close()


async def ask(world: World, payload: bytes) -> object:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    world.session.ask(KEY, "x", payload, 60_000, answer, decode_value)
    return await answer


async def test_a_broken_connection_loses_repeats_and_reorders_nothing(world: World) -> None:
    sent = [b"%d" % n for n in range(20_000)]
    for n, payload in enumerate(sent):
        world.session.tell(KEY, "x", payload)
        if not world.session.writable:
            await world.session.room()
        if n % 50 == 0:
            await asyncio.sleep(0)
        if n % 1000 == 999:
            cuts = n // 1000
            await until(lambda: world.proxy.connections > cuts, "a new connection")  # noqa: B023
            world.proxy.cut()
    await world.session.drained()
    assert world.taker.told == sent
    assert world.proxy.connections > 15
    assert world.lost == []


async def test_asks_survive_a_broken_connection(world: World) -> None:
    dice = random.Random(8)

    async def loop(lane: int) -> None:
        for n in range(200):
            assert await ask(world, b"\x92" + bytes([lane, n % 128])) == [lane, n % 128]
            if dice.random() < 0.01:
                world.proxy.cut()

    await asyncio.gather(*(loop(lane) for lane in range(8)))
    assert len(world.taker.asked) == 8 * 200
    assert world.proxy.connections > 3


async def test_a_peer_that_did_not_notice_the_break_still_hears_the_new_connection(
    world: World,
) -> None:
    assert await ask(world, b"\x01") == 1
    world.proxy.half()
    assert await ask(world, b"\x02") == 2
    assert world.proxy.connections >= 2
    assert world.lost == []


async def test_a_session_that_was_forgotten_is_not_resumed(world: World) -> None:
    assert await ask(world, b"\x01") == 1
    [inbound] = world.node._inbound.values()
    world.node._forget(inbound, NodeLost("silent"))
    world.proxy.cut()
    await until(lambda: world.lost, "the loss")
    assert not world.session.gone
