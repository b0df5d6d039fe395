"""Bytes of strangers at a door: sessions, parts and bytes stay bounded, whoever goes too far is
ended and counted, and who keeps the protocol loses nothing by it."""

from __future__ import annotations

import asyncio
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import msgpack
import pytest
import zmq

from shardbus.errors import RemoteProtocolError
from shardbus.ids import Address, NodeId
from shardbus.transport import incoming
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.fragments import PART_WEIGHT, FragmentAssembly
from shardbus.transport.inbox import HELD_BYTES_MAX, HELD_WEIGHT
from shardbus.transport.log_limiter import LINES, LogRateLimiter
from shardbus.transport.zmq import connection_guard, sockets
from shardbus.transport.zmq.connection_guard import ConnectionGuard
from shardbus.transport.zmq.multipart import PARTS_MAX, SKIPPED_MAX, Multipart
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.transport.zmq.pubsub import PubSubSockets
from shardbus.transport.zmq.sockets import bind_router, connect_dealer
from shardbus.transport.zmq.zap import HandshakeLimit
from shardbus.wire.batch import (
    BODY_BYTES_MAX,
    PROTOCOL_VERSION,
    FrameType,
    Hello,
    decode_batch,
    encode_body,
    pack_header,
)
from shardbus.wire.schema import decode_value
from tests.ports import free_port
from tests.strangers import Stranger, frame, message
from tests.unit.transport.session_pair import Taker, anyone, pair
from tests.waiting import PATIENCE_S, until

PATIENCE_MS = int(PATIENCE_S * 1000)
Socket = zmq.Socket[bytes]
ADD = ("counter", "add")


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    context.destroy(0)


class Door:
    """A node's endpoint, and clients of it."""

    def __init__(self) -> None:
        self.me = NodeId("127.0.0.1", free_port(), 1)
        self.taker = Taker()
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
        self.lost: list[str] = []
        self._clients: list[Endpoint] = []

    @property
    def guard(self) -> ConnectionGuard:
        return self.node.incoming.listener.guard  # type: ignore[union-attr,no-any-return]

    def client(self, uid: int = 9) -> Endpoint:
        end = Endpoint(
            "shop",
            f"client#{uid}",
            uid,
            Taker(),
            authorize=anyone,
            network=ZmqNetwork(),
            events=EndpointEvents(lost=lambda session, unsent: self.lost.append(session.name)),
        )
        end.start()
        self._clients.append(end)
        return end

    async def ask(self, client: Endpoint, payload: bytes) -> object:
        waits: asyncio.Future[object] = client.loop.create_future()
        session = client.session_to(Address("127.0.0.1", self.me.port), probe=True)
        session.outbox.ask(ADD, "x", payload, PATIENCE_MS, waits, decode_value)
        return await waits

    def hello(self, name: str, *, node: NodeId | None = None, session: int = 1) -> list[bytes]:
        head = pack_header(PROTOCOL_VERSION, FrameType.HELLO, self.node.tag, 5, 0, 0, 0)
        return [head, encode_body(Hello("shop", name, node, session))]

    def close(self) -> None:
        for end in self._clients:
            end.close()
        self.node.close()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    yield door
    door.close()


# Sessions


async def test_a_connection_has_one_session_whatever_it_calls_itself(
    door: Door, context: zmq.Context[Socket]
) -> None:
    stranger = connect_dealer(context, "127.0.0.1", door.me.port)
    for n in range(1000):
        node = NodeId("10.0.0.1", 7355, n) if n % 2 else None
        stranger.send_multipart(door.hello(f"n{n}", node=node))
    await until(lambda: "n999" in door.node.incoming.by_name, "the last one")
    assert list(door.node.incoming.by_name) == ["n999"]
    assert len(door.node.sessions()) == 1


async def test_sessions_are_bounded_and_a_late_peer_gets_one_when_there_is_room(
    door: Door, context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "CLIENTS_MAX", 3)
    strangers = [connect_dealer(context, "127.0.0.1", door.me.port) for _ in range(3)]
    for n, stranger in enumerate(strangers):
        stranger.send_multipart(door.hello(f"n{n}"))
    await until(lambda: len(door.node.sessions()) == 3, "three sessions")
    late = asyncio.ensure_future(door.ask(door.client(), b"\x07"))
    await until(lambda: door.node.dropped_frames.get("too_many_sessions"), "the refusal")
    assert len(door.node.sessions()) == 3
    door.node.incoming.forget(door.node.incoming.by_name["n0"], RemoteProtocolError("gone"))
    assert await late == 7
    assert door.lost == []


# Parts


async def test_a_message_of_too_many_parts_is_skipped_whole_and_the_next_is_read(
    context: zmq.Context[Socket],
) -> None:
    port = free_port()
    router = bind_router(context, "127.0.0.1", port, b"n1")
    dealer = connect_dealer(context, "127.0.0.1", port)
    reader, got = Multipart(router), list[list[bytes] | None]()
    dealer.send_multipart([b"x"] * (10 * SKIPPED_MAX))
    dealer.send_multipart([b"y"] * (PARTS_MAX - 1))
    while not got or not got[-1]:
        assert router.poll(PATIENCE_MS)
        got.append(reader.receive())
    *before, last = got
    assert before[0] == []
    assert set(map(bool, before)) == {False}
    assert len(before) == 10  # none of them keeps the loop for longer than a bounded number
    assert last is not None
    assert last[1:] == [b"y"] * (PARTS_MAX - 1)
    with pytest.raises(zmq.Again):
        reader.receive()


async def test_only_the_connection_that_sends_too_many_parts_is_ended(door: Door) -> None:
    client = door.client()
    assert await door.ask(client, b"\x01") == 1
    with Stranger(door.me.port) as stranger:
        assert stranger.send(message(*[bytes(900)] * 50))
        assert await asyncio.to_thread(stranger.ended)
    await until(lambda: door.node.dropped_frames, "the count")
    assert door.node.dropped_frames == {"too_many_parts": 1}
    assert await door.ask(client, b"\x02") == 2
    assert door.lost == []


# Bytes that nobody can read


async def test_a_message_without_end_is_ended(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.guard._unread_max = 1 << 20
    client = door.client()
    assert await door.ask(client, b"\x01") == 1
    with Stranger(door.me.port) as stranger:
        stranger.send(frame(bytes(600_000), more=True))
        assert await door.ask(client, b"\x02") == 2
        assert door.node.dropped_frames == {}
        stranger.send(frame(bytes(600_000), more=True))
        assert await asyncio.to_thread(stranger.ended)
    await until(lambda: door.node.dropped_frames, "the count")
    assert door.node.dropped_frames == {"too_much_unread": 1}
    assert await door.ask(client, b"\x03") == 3


async def test_a_connection_that_is_read_may_send_any_number_of_bytes(door: Door) -> None:
    """Unread messages count; and those whose connection is ended send it again."""
    door.guard._unread_max = 1 << 20
    client = door.client()
    session = client.session_to(Address("127.0.0.1", door.me.port), probe=True)
    for n in range(400):
        session.outbox.tell(ADD, str(n), bytes(64 * 1024))
        await session.outbox.room()
    await session.drained()
    assert [row[1] for row in door.taker.got] == [str(n) for n in range(400)]
    assert door.lost == []


async def test_a_mistake_of_the_guard_costs_a_moment_and_no_message(door: Door) -> None:
    client = door.client()
    session = client.session_to(Address("127.0.0.1", door.me.port), probe=True)
    assert await door.ask(client, b"\x01") == 1
    for n in range(5):
        await until(lambda: door.guard.connections == 1, "the connection")
        for fd in list(door.guard._connections):
            door.guard.refuse(fd, "too_much_unread")
        for at in range(200):
            session.outbox.tell(ADD, f"{n}-{at}", b"\x00")
        await until(lambda: door.node.dropped_frames.get("too_much_unread") == n + 1, "the end")  # noqa: B023
        assert await door.ask(client, b"\x02") == 2
    tells = [row[1] for row in door.taker.got if row[0] == "tell"]
    assert tells == [f"{n}-{at}" for n in range(5) for at in range(200)]
    assert door.lost == []


# Connections


async def test_of_too_many_connections_a_silent_one_goes_first(door: Door) -> None:
    client = door.client()
    assert await door.ask(client, b"\x01") == 1
    door.guard.connections_max = 8
    silent = [Stranger(door.me.port) for _ in range(40)]
    others = [door.client(uid) for uid in range(20, 24)]
    assert await asyncio.gather(*(door.ask(end, b"\x02") for end in others)) == [2] * 4
    assert await door.ask(client, b"\x03") == 3
    counts = door.node.dropped_frames
    await until(lambda: counts.get("too_many_connections", 0) >= 40 + 5 - 8, "the count")
    assert door.guard.connections <= 8
    assert await door.ask(client, b"\x04") == 4
    assert door.lost == []
    for stranger in silent:
        stranger.socket.close()


class Room:
    """Whether a listener is full, as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        monkeypatch.setattr(ConnectionGuard, "full", property(lambda guard: self.full))


async def test_a_full_listener_refuses_new_clients_with_the_reason_and_keeps_the_others(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, first, second = Room(monkeypatch), door.client(10), door.client(11)
    assert await door.ask(first, b"\x01") == 1
    room.full = True
    session = second.session_to(Address("127.0.0.1", door.me.port), probe=True)
    await until(lambda: session.lost is not None, "the refusal")
    assert f"{door.me} has no file descriptor left for another client" in str(session.lost)
    assert not session.peer_ended
    assert second.dropped_frames["no_room_there"]
    for fd in list(door.guard._connections):
        door.guard.refuse(fd, "too_much_unread")  # a client that has a session may come back
    await until(lambda: door.node.dropped_frames.get("too_much_unread"), "the end of a connection")
    assert await door.ask(first, b"\x02") == 2
    assert door.node.dropped_frames["no_room"]
    room.full = False
    assert await door.ask(second, b"\x03") == 3
    assert door.lost == [session.name]


async def test_a_full_listener_lets_nodes_in(
    door: Door, context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    Room(monkeypatch).full = True
    node = NodeId("10.0.0.1", 7355, 5)
    with connect_dealer(context, "127.0.0.1", door.me.port) as dealer:
        dealer.send_multipart(door.hello(str(node), node=node))
        await until(lambda: str(node) in door.node.incoming.by_name, "its session")


async def test_a_refused_client_that_stays_is_ended(
    door: Door, context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_guard, "DISMISSED_S", 0.1)
    Room(monkeypatch).full = True
    with connect_dealer(context, "127.0.0.1", door.me.port) as dealer:
        dealer.send_multipart(door.hello("client#5"))
        await until(lambda: door.node.dropped_frames.get("no_room", 0) > 1, "its end")


async def test_a_listener_is_full_before_its_last_connections_or_descriptors(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, used = door.guard, [100]
    monkeypatch.setattr(connection_guard, "descriptors_limit", lambda: 256)
    monkeypatch.setattr(connection_guard, "in_use", lambda: used[0])
    guard.connections_max = 128
    for at, full in ((100, False), (240, False), (241, True), (100, False)):
        used[0] = at
        guard._count_descriptors(0.0)
        assert guard.full is full
    for spoken, full in ((112, False), (113, True)):
        monkeypatch.setattr(guard, "_spoken", spoken)
        assert guard.full is full


async def test_a_silent_connection_is_ended(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    client = door.client()
    assert await door.ask(client, b"\x01") == 1
    monkeypatch.setattr(connection_guard, "SILENT_S", 0.5)
    with Stranger(door.me.port) as stranger:
        assert await asyncio.to_thread(stranger.ended)
    await until(lambda: door.node.dropped_frames, "the count")
    assert door.node.dropped_frames == {"silent": 1}
    assert await door.ask(client, b"\x02") == 2
    assert door.lost == []


async def test_a_reused_descriptor_is_left_alone(door: Door) -> None:
    """ZeroMQ's are closed without asking, and their numbers come back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await _echo_port())
    fd = writer.get_extra_info("socket").fileno()
    door.guard._opened(fd, 0.0)
    door.guard._cut(fd, "too_much_unread")
    writer.write(b"still here\n")
    assert await reader.readline() == b"still here\n"
    assert door.node.dropped_frames == {}
    writer.close()


async def _echo_port() -> int:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


# The bound of a session


async def test_parts_of_no_bytes_have_an_end() -> None:
    assembly, most = FragmentAssembly(), 2 * BODY_BYTES_MAX // PART_WEIGHT

    def add_many() -> None:
        for _ in range(most):
            assembly.add(b"")

    with pytest.raises(RemoteProtocolError, match="parts of more than"):
        add_many()
    assert assembly.take() == b""


async def test_batches_of_no_bytes_are_not_held_without_end() -> None:
    _, b = pair()
    b.session.pause()
    held = b.session.inbox._held
    most = HELD_BYTES_MAX // HELD_WEIGHT
    for seq in range(1, most + 100):
        b.session.on_frame(FrameType.PART, seq, 0, b"")
        b.session.link.assembly.take()
    assert len(held) <= most


@pytest.mark.parametrize(
    "run",
    [
        [0, "", "", [], []],
        [0, "t", "m", ["ab"] * 200, [b""] * 200],
        [1, "t", "m", 1, ["ab"] * 200, [b"ab"] * 200, [70_000] * 200],
        [2, [70_000] * 200, [b"ab"] * 200],
        [1, "t", "m", 1, ["a"], [b""], [1], [["t", "ab", 70_000]] * 32],
    ],
    ids=["runs", "ids", "asks", "replies", "chains"],
)
def test_a_hostile_batch_costs_a_small_multiple_of_its_size(run: list[object]) -> None:
    frame = msgpack.packb(run)
    count = (1 << 20) // len(frame)
    body = b"\xdd" + count.to_bytes(4, "big") + frame * count
    tracemalloc.start()
    try:
        decode_batch(body)
    except RemoteProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= 32 * len(body) + (1 << 20)


def test_log_lines_that_strangers_cause_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    log, times = logging.getLogger("test.sparing"), LogRateLimiter()
    log.addFilter(times)
    with caplog.at_level(logging.INFO, "test.sparing"):
        for n in range(1000):
            log.info("dropped a frame: %s", n)
        log.info("something else")
        assert [r.getMessage() for r in caplog.records] == [
            *(f"dropped a frame: {n}" for n in range(LINES)),
            "something else",
        ]
        began, lines = times._lines["dropped a frame: %s"]
        times._lines["dropped a frame: %s"] = (began - 60, lines)
        log.info("dropped a frame: %s", "later")
    left_out = 1000 - LINES
    assert caplog.messages[-1] == f"dropped a frame: later ({left_out} lines like it were left out)"
    log.removeFilter(times)


# Every socket that there is

TCP = (zmq.ROUTER, zmq.DEALER, zmq.XPUB, zmq.SUB)
AT_MOST = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: BODY_BYTES_MAX,
    zmq.SNDHWM: 2000,
    zmq.RCVHWM: 2000,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.HEARTBEAT_TTL: 3000,
}
CONNECTING = {zmq.CONNECT_TIMEOUT: 2000, zmq.RECONNECT_IVL: 100, zmq.RECONNECT_IVL_MAX: 2000}
LATER = {zmq.SUBSCRIBE}
"""The options that may be set at any time."""


class SpySocket(Socket):
    """Notes in which order it is set up."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        object.__setattr__(self, "steps", [])

    def setsockopt(self, option: int, value: object, *more: object) -> None:
        self.steps.append(("set", option))  # type: ignore[attr-defined]
        super().setsockopt(option, value)  # type: ignore[arg-type]

    def bind(self, address: str) -> object:  # type: ignore[override]
        self.steps.append(("open", address))  # type: ignore[attr-defined]
        return super().bind(address)

    def connect(self, address: str) -> object:  # type: ignore[override]
        self.steps.append(("open", address))  # type: ignore[attr-defined]
        return super().connect(address)


class SpyContext(zmq.Context[SpySocket]):
    """Makes those, and keeps them."""

    _socket_class = SpySocket
    made: list[SpySocket]

    def socket(self, *args: object, **more: object) -> SpySocket:  # type: ignore[override]
        made = super().socket(*args, **more)  # type: ignore[arg-type]
        SpyContext.made.append(made)
        return made


class Deaf:
    """Hears nothing."""

    def on_frames(self, sender: bytes, payload: bytes) -> None: ...
    def on_listening(self, uid: int) -> None: ...
    def on_disconnected(self, node: NodeId) -> None: ...


async def test_every_socket_is_bounded_before_it_is_opened_and_has_one_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    SpyContext.made = []
    monkeypatch.setattr(sockets, "SocketContext", SpyContext)
    door = Door()
    assert await door.ask(door.client(), b"\x01") == 1
    gossip = PubSubSockets(door.me, Deaf())
    gossip.open("127.0.0.1", 0, asyncio.get_running_loop())
    try:
        kinds = {int(made.getsockopt(zmq.TYPE)) for made in SpyContext.made}
        assert kinds == {*map(int, TCP), int(zmq.PAIR)}
        for made in SpyContext.made:
            check(made)
        xpub = next(m for m in SpyContext.made if m.getsockopt(zmq.TYPE) == zmq.XPUB)
        assert xpub.getsockopt(zmq.MAXMSGSIZE) == 1024
    finally:
        gossip.close()
        door.close()


def check(made: SpySocket) -> None:
    """One socket."""
    kind, steps = made.getsockopt(zmq.TYPE), made.steps  # type: ignore[attr-defined]
    opened = [n for n, (what, _) in enumerate(steps) if what == "open"]
    late = [steps[n][1] for n in range(opened[0] if opened else 0, len(steps))]
    assert [o for o in late if isinstance(o, int) and opened and o not in LATER] == []
    addresses = [steps[n][1] for n in opened]
    assert len(addresses) <= 1
    if kind == zmq.PAIR:
        assert all(address.startswith("inproc://") for address in addresses)
        return
    at_most = AT_MOST | (CONNECTING if kind in (zmq.DEALER, zmq.SUB) else {})
    for option, most in at_most.items():
        assert 0 <= made.getsockopt(option) <= most, (kind, option)
        assert ("set", option) in steps
    assert made.getsockopt(zmq.MAXMSGSIZE) > 0
    assert made.getsockopt(zmq.RCVHWM) > 0
    assert made.getsockopt(zmq.SNDHWM) > 0
    if kind in (zmq.ROUTER, zmq.XPUB):
        assert made.getsockopt(zmq.BACKLOG) >= 512
        assert made.getsockopt(zmq.ZAP_DOMAIN) == b"shardbus"


def test_a_descriptor_that_belongs_to_another_socket_by_now_is_no_connection(
    context: zmq.Context[Socket],
) -> None:
    """A connection ends before the guard reads that it began, and its number is used again."""
    listener = context.socket(zmq.ROUTER)
    guard = ConnectionGuard(
        listener, connections_max=10, on_cut=lambda reason: None, limit=HandshakeLimit()
    )
    first, other = socket.socketpair()
    with first, other:
        guard._opened(first.fileno(), 0.0)
    assert guard.connections == 0
    guard.stop()
    listener.close(0)
