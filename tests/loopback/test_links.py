"""Links over a TCP proxy that breaks them: messages arrive once, in order, under every fault."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from shardbus.errors import NodeLost
from shardbus.ids import Address, NodeId
from shardbus.transport.asks import Unsent
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.session import Session
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.schema import decode_value
from tests.markers import long_only
from tests.ports import free_port
from tests.proxy import Proxy
from tests.unit.transport.session_pair import anyone
from tests.waiting import until

KEY = ("page", "hit")


class Taker:
    """Writes down tells and answers asks with their own payload."""

    def __init__(self) -> None:
        self.tells: list[bytes] = []
        self.asks: list[bytes] = []

    def on_tells(self, session: Session, run: TellRun) -> None:
        self.tells += run.payloads

    def on_asks(self, session: Session, run: AskRun) -> None:
        self.asks += run.payloads
        for corr, payload in zip(run.corrs, run.payloads, strict=True):
            session.outbox.reply(corr, payload)

    def on_relayed(self, session: Session, message: Relayed) -> None: ...
    def on_control(self, session: Session, control: Control) -> None: ...
    def on_flush(self, session: Session, flush: Flush) -> None: ...


class World:
    """A node behind a proxy, and a client of it."""

    async def start(self) -> None:
        self.taker = Taker()
        self.me = NodeId("127.0.0.1", free_port(), 1)
        self.node = Endpoint(
            "shop",
            str(self.me),
            1,
            self.taker,
            authorize=anyone,
            network=ZmqNetwork(),
            node=self.me,
        )
        self.node.start("127.0.0.1", self.me.port)
        self.proxy = Proxy(self.me.port)
        await self.proxy.start()
        self.lost: list[str] = []
        self.unsent: list[Unsent] = []
        self.asked_to_part: list[Session] = []
        self.client = self.another_client(9)
        self.session = self.client.session_to(Address("127.0.0.1", self.proxy.port), probe=True)

    def another_client(self, number: int) -> Endpoint:
        client = Endpoint(
            "shop",
            f"client#{number}",
            number,
            Taker(),
            authorize=anyone,
            network=ZmqNetwork(),
            events=EndpointEvents(lost=self.on_lost, leaving=self.asked_to_part.append),
        )
        client.start()
        return client

    def on_lost(self, session: Session, unsent: list[Unsent]) -> None:
        self.lost.append(session.name)
        self.unsent += unsent

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
    world.session.outbox.ask(KEY, "x", payload, 60_000, answer, decode_value)
    return await answer


async def test_a_broken_connection_loses_repeats_and_reorders_nothing(world: World) -> None:
    sent = [b"%d" % n for n in range(20_000)]
    for n, payload in enumerate(sent):
        world.session.outbox.tell(KEY, "x", payload)
        if not world.session.outbox.writable:
            await world.session.outbox.room()
        if n % 50 == 0:
            await asyncio.sleep(0)
        if n % 1000 == 999:
            cuts = n // 1000
            await until(lambda: world.proxy.connections > cuts, "a new connection")  # noqa: B023
            world.proxy.cut()
    await world.session.drained()
    assert world.taker.tells == sent
    assert world.proxy.connections > 15
    assert world.lost == []


async def test_a_connection_that_is_closed_keeps_no_socket() -> None:
    network = ZmqNetwork()
    network.open(asyncio.get_running_loop())
    address = Address("127.0.0.1", free_port())
    connection = network.connect(address, lambda parts: None, lambda: None, lambda: None)
    sockets = list(network.context._sockets)  # type: ignore[attr-defined]
    connection.close()
    assert [socket.closed for socket in sockets] == [True, True]
    network.close()


async def test_asks_survive_a_broken_connection(world: World) -> None:
    dice = random.Random(8)

    async def loop(lane: int) -> None:
        for n in range(200):
            assert await ask(world, b"\x92" + bytes([lane, n % 128])) == [lane, n % 128]
            if dice.random() < 0.01:
                world.proxy.cut()

    await asyncio.gather(*(loop(lane) for lane in range(8)))
    assert len(world.taker.asks) == 8 * 200
    assert world.proxy.connections > 3


async def test_a_peer_that_did_not_notice_the_break_accepts_the_new_connection(
    world: World,
) -> None:
    assert await ask(world, b"\x01") == 1
    world.proxy.half()
    assert await ask(world, b"\x02") == 2
    assert world.proxy.connections >= 2
    assert world.lost == []


async def test_a_leaving_node_asks_every_client_to_close_also_late_ones(
    world: World,
) -> None:
    world.node.announce_leaving()
    assert world.node.clients == 0
    await world.session.link.opening()
    await until(lambda: world.asked_to_part, "the wish to part")
    world.proxy.cut()  # and again after a break, which may have lost it
    await until(lambda: len(world.asked_to_part) == 2, "the same wish")
    assert world.asked_to_part == [world.session] * 2


async def test_a_leaving_node_opens_no_session_to_a_client_that_has_messages_for_it(
    world: World,
) -> None:
    """It may no longer receive their new homes; the client sends them elsewhere."""
    assert await ask(world, b"\x01") == 1
    world.node.announce_leaving()
    late = world.another_client(8)
    session = late.session_to(world.me.address, world.me, probe=True)
    session.outbox.tell(KEY, "x", b"2")
    await until(lambda: world.lost or session.link.open, "the end of the session")
    late.close()
    assert [message.payload for message in world.unsent] == [b"2"]
    assert session.peer_ended
    assert session.closed_idle, "no notice makes others wait for the end of the node"
    assert list(world.node.incoming.by_name) == ["client#9"]
    assert await ask(world, b"\x02") == 2, "a session that was open before goes on"
    anew = world.client.session_to(world.me.address, world.me)
    await anew.link.opening()
    assert anew.link.open, "and may be begun anew"


async def test_a_session_that_was_forgotten_is_not_resumed(world: World) -> None:
    assert await ask(world, b"\x01") == 1
    [inbound] = world.node.incoming.by_name.values()
    world.node.incoming.forget(inbound, NodeLost("silent"))
    world.proxy.cut()
    await until(lambda: world.lost, "the loss")
    assert not world.session.peer_ended


# Every fault of the proxy, with tells and asks under way


class Traffic:
    """Numbers its tells, and requests an echo of its asks; each has one outcome."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent_tells: list[bytes] = []
        self.outcomes: list[object] = []
        self.sent_asks = 0

    async def tell(self, count: int, size: int = 8) -> None:
        session = self.world.session
        for _ in range(count):
            payload = len(self.sent_tells).to_bytes(size, "big")
            self.sent_tells.append(payload)
            session.outbox.tell(KEY, "x", payload)
            if not session.outbox.writable:
                await session.outbox.room()
            if len(self.sent_tells) % 100 == 0:
                await asyncio.sleep(0)

    async def ask(self, count: int) -> None:
        for _ in range(count):
            n = self.sent_asks = self.sent_asks + 1
            self.outcomes.append(await ask(self.world, b"\xcd" + n.to_bytes(2, "big")) == n)

    async def arrived(self) -> None:
        """Everything has arrived once, in order, and every ask was answered."""
        await self.world.session.drained()
        assert self.world.taker.tells == self.sent_tells
        assert self.outcomes == [True] * self.sent_asks
        assert len(self.world.taker.asks) == self.sent_asks
        assert self.world.session.waiting_asks == 0
        assert self.world.lost == []


def reset_both(proxy: Proxy) -> None:
    proxy.cut()


def reset_near(proxy: Proxy) -> None:
    proxy.half()


def reset_far(proxy: Proxy) -> None:
    proxy.half(far=True)


def cut_a_frame(proxy: Proxy) -> None:
    proxy.truncate(proxy.dice.randrange(1, 5000))


def cut_an_answer(proxy: Proxy) -> None:
    proxy.truncate(proxy.dice.randrange(1, 100), outward=True)


@pytest.mark.parametrize(
    ("fault", "times"),
    [(reset_both, 20), (reset_near, 20), (reset_far, 1), (cut_a_frame, 20), (cut_an_answer, 20)],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_fault_of_the_connection_loses_repeats_and_reorders_nothing(
    world: World, fault: Callable[[Proxy], None], times: int
) -> None:
    """Heartbeats reveal, later, an end that the other end of a connection did not receive."""
    traffic = Traffic(world)
    for _ in range(times):
        seen = world.proxy.connections
        both = asyncio.gather(traffic.tell(1000), traffic.ask(20))
        await asyncio.sleep(0)
        fault(world.proxy)
        await both
        await until(lambda: world.proxy.connections > seen, "another connection")  # noqa: B023
    await traffic.arrived()


async def test_a_gateway_that_forgot_the_connection_is_found_out(world: World) -> None:
    """Nothing comes back, not even a reset: ZeroMQ's heartbeats notice."""
    traffic = Traffic(world)
    await traffic.ask(1)
    world.proxy.mute()
    both = asyncio.gather(traffic.tell(2000), traffic.ask(5))
    await until(lambda: world.proxy.connections > 1, "another connection")
    await both
    await traffic.arrived()


async def test_a_slow_and_narrow_way_only_takes_longer(world: World) -> None:
    world.proxy.delay, world.proxy.rate = 0.05, 400_000.0
    traffic = Traffic(world)
    await asyncio.gather(traffic.tell(3000, size=64), traffic.ask(5))
    await traffic.arrived()
    assert world.proxy.connections == 1


async def test_a_slow_accept_and_a_refusal_for_a_while_delay_and_lose_nothing(world: World) -> None:
    traffic = Traffic(world)
    await traffic.ask(1)
    world.proxy.slow_accept = 0.3
    for _ in range(2):
        world.proxy.refuse()
        both = asyncio.gather(traffic.tell(1000), traffic.ask(3))
        await until(lambda: not world.session.link.open, "the break")
        await world.proxy.listen()
        await both
    await traffic.arrived()


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize("seed", [1, *long_only(0, 2, 3)])
async def test_a_spoiled_byte_crashes_and_blocks_no_process(
    world: World, seed: int, outward: bool
) -> None:
    """ZMTP has no checksum, and neither have frames: a byte that TCP lets through may cost a batch,
    or be read as another value. The next message arrives."""
    world.proxy.dice.seed(seed)
    traffic = Traffic(world)
    await traffic.ask(1)
    world.proxy.corrupt(world.proxy.dice.randrange(300), outward=outward)
    asks = [asyncio.ensure_future(ask(world, b"\x05")) for _ in range(3)]
    await until(lambda: world.proxy.corrupted, "the fault")
    await traffic.tell(200)
    done = {len(world.taker.tells)}
    world.proxy.cut()
    for waiting in asks:
        waiting.cancel()
    address = Address("127.0.0.1", world.proxy.port)
    world.session = world.client.session_to(address, probe=True)
    assert await ask(world, b"\x07") == 7
    assert done
