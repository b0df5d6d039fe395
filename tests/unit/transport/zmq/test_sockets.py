"""Real sockets have the options that the tables name; endpoints greet, refuse and survive noise."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
import zmq

from shardbus.errors import ConfigError, EntityFailed, NodeLost
from shardbus.ids import Address, NodeId
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.network import Connection
from shardbus.transport.zmq import sockets
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.transport.zmq.sockets import (
    DEALER,
    ROUTER,
    SocketContext,
    bind_router,
    connect_dealer,
    context_for_links,
    end_context,
    endpoint_of,
    port_of,
    require_libzmq,
    without_zone,
)
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    FrameType,
    Hello,
    TellRun,
    cluster_tag,
    encode_batch,
    encode_body,
    pack_header,
    read_header,
)
from shardbus.wire.schema import decode_value
from tests.ports import free_port
from tests.unit.transport.session_pair import Taker, anyone
from tests.waiting import PATIENCE_S, until

ADD = ("counter", "add")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


def settings(sock: zmq.Socket[bytes], options: Mapping[int, object]) -> dict[int, object]:
    return {o: sock.getsockopt(o) for o in options if o != zmq.ROUTER_MANDATORY}


def readable(options: Mapping[int, object]) -> dict[int, object]:
    """ROUTER_MANDATORY can be set and not read."""
    return {o: v for o, v in options.items() if o != zmq.ROUTER_MANDATORY}


def test_a_router_has_every_option_of_its_table(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    router = bind_router(context, "127.0.0.1", free_port(), b"n1")
    assert settings(router, ROUTER) == readable(ROUTER)
    assert router.getsockopt(zmq.ROUTING_ID) == b"n1"
    with pytest.raises(zmq.ZMQError) as refused:
        router.send_multipart((b"nobody", b""), zmq.NOBLOCK)
    assert refused.value.errno == zmq.EHOSTUNREACH


def test_a_dealer_has_every_option_of_its_table(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    dealer = connect_dealer(context, "127.0.0.1", free_port())
    assert settings(dealer, DEALER) == readable(DEALER)
    assert dealer.getsockopt(zmq.ROUTING_ID) == b""  # the ROUTER draws one for each connection


HTTP_POST = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 12\r\n\r\n\x01\x00\x02\x01a\x02\x00b"
)
ZMTP_1 = b"\x01\x00" + b"\x02\x01a" + b"\x02\x00b"
ZMTP_2 = b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x00" + b"\x01\x01a" + b"\x00\x01b"


REFUSED_WITHIN_S = 30.0
"""Ten times the pause after which libzmq ends a connection without a handshake."""


@pytest.mark.parametrize("data", [HTTP_POST, ZMTP_1, ZMTP_2], ids=["http", "zmtp 1", "zmtp 2"])
def test_a_peer_without_a_handshake_gets_no_frame_through(
    context: zmq.Context[zmq.Socket[bytes]], data: bytes
) -> None:
    router = bind_router(context, "127.0.0.1", 0, b"n1")
    port = port_of(router)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(REFUSED_WITHIN_S)
        stranger.sendall(data)
        received = b"-"
        while received:
            try:
                received = stranger.recv(4096)
            except ConnectionError:
                break
        dealer = connect_dealer(context, "127.0.0.1", port)
        dealer.send(b"a peer with a handshake")
        assert router.poll(1000 * PATIENCE_S)
        assert router.recv_multipart()[1:] == [b"a peer with a handshake"]


def test_the_limit_of_descriptors_bounds_the_links_and_not_that_of_a_context() -> None:
    context = context_for_links()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert context.max_sockets == max(1023, min(soft, 65_535))
    context.destroy(0)


LINKS = 500
DESCRIPTORS = 8 * LINKS
"""Three for each link, one at the listener, and some."""


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], DESCRIPTORS), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_one_process_has_room_for_500_links(descriptors: None) -> None:
    """libzmq's default of 1,023 sockets would end at some 340."""
    there, here = ZmqNetwork(), ZmqNetwork()
    for net in (there, here):
        net.open(asyncio.get_running_loop())
    port, answers = free_port(), list[int]()

    def answer(parts: list[bytes]) -> None:
        door.send(*parts)

    door = there.listen("127.0.0.1", port, "n1", answer, lambda reason: None)
    links = [
        here.connect(
            Address("127.0.0.1", port),
            lambda parts: answers.append(int(parts[0])),
            lambda: None,
            lambda: None,
        )
        for _ in range(LINKS)
    ]
    for n, link in enumerate(links):
        assert link.send(b"%d" % n, b"")
    await until(lambda: len(answers) == LINKS, "every answer")
    assert sorted(answers) == list(range(LINKS))
    for link in links:
        link.close()
    door.close()
    for net in (there, here):
        net.close()


def used_descriptors() -> int:
    """Return a number below which every descriptor is in use: with it as the limit none is free."""
    os.close(free := os.dup(0))
    return min(free, 16)


async def test_without_a_descriptor_a_link_waits_and_the_others_live_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = ZmqNetwork()
    net.open(asyncio.get_running_loop())
    port, answers = free_port(), list[bytes]()
    door = net.listen("127.0.0.1", port, "n1", lambda p: door.send(*p) and None, lambda r: None)

    def connect() -> Connection:
        address = Address("127.0.0.1", port)
        return net.connect(
            address, lambda parts: answers.append(parts[0]), lambda: None, lambda: None
        )

    first = connect()
    assert first.send(b"1", b"")
    await until(lambda: b"1" in answers, "the first answer")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used_descriptors(), before[1]))
    try:
        second = connect()
        await until(lambda: "raise the limit of" in caplog.text, "the line in the log")
        assert second.send(b"2", b"")
        assert first.send(b"3", b"")
        await until(lambda: b"3" in answers, "an answer on the link that stands")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    await until(lambda: second.send(b"2", b"") and b"2" in answers, "an answer on the late link")
    for link in (first, second):
        link.close()
    door.close()
    net.close()


@pytest.mark.parametrize("options", [ROUTER, DEALER])
def test_the_tables_leave_no_dangerous_default(options: Mapping[int, object]) -> None:
    bounds = {zmq.LINGER, zmq.MAXMSGSIZE, zmq.HANDSHAKE_IVL, zmq.SNDHWM, zmq.RCVHWM}
    beats = {zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.HEARTBEAT_TTL}
    assert bounds | beats <= options.keys()
    assert zmq.ROUTER_HANDOVER not in options


def test_a_taken_port_says_what_to_do(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen for messages on 127.0.0.1:{port}.*--port"
        ):
            bind_router(context, "127.0.0.1", port, b"n1")


def test_an_ipv6_address_that_is_taken_has_brackets(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    def taken(*_: object) -> None:
        raise zmq.ZMQError(zmq.EADDRINUSE)

    with pytest.raises(ConfigError, match=r"on \[::1\]:7355: it is taken"):
        bind_router(context, "::1", 7355, b"n1", binds=taken)


def test_a_library_with_known_holes_is_refused() -> None:
    require_libzmq((4, 3, 5))
    require_libzmq((5, 0, 0))
    with pytest.raises(ConfigError, match=r"libzmq 4\.3\.4 is too old: 4\.3\.5 is needed"):
        require_libzmq((4, 3, 4))


def test_an_address_of_version_6(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    dealer = connect_dealer(context, "::1", free_port())
    assert dealer.getsockopt(zmq.IPV6) == 1
    assert endpoint_of("0:0::1", 7) == "tcp://[::1]:7"


def test_an_address_of_version_4_is_reported_as_it_is(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """With IPv6 on, ZeroMQ reports reconnects of 127.0.0.1 under `[::ffff:127.0.0.1]`."""
    assert connect_dealer(context, "127.0.0.1", free_port()).getsockopt(zmq.IPV6) == 0
    assert endpoint_of("127.0.0.1", 7) == "tcp://127.0.0.1:7"


def test_zones_are_left_out_of_a_comparison() -> None:
    assert without_zone("tcp://[fe80::1%eth0]:7") == without_zone("tcp://[fe80::1%2]:7")
    assert without_zone("tcp://[fe80::1]:7") == "tcp://[fe80::1]:7"


def test_zeromq_gets_no_names(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with pytest.raises(AssertionError, match="node1 needs a look-up"):
        connect_dealer(context, "node1", 7)


def test_a_context_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(zmq.Context[zmq.Socket[bytes]]):
        released = threading.Event()

        def destroy(self, linger: int | None = None) -> None:
            self.released.wait()
            super().destroy(linger)

    monkeypatch.setattr(sockets, "END_WITHIN_S", 0.01)
    stuck = Stuck()
    assert not end_context(stuck, 0)
    stuck.released.set()
    monkeypatch.setattr(sockets, "END_WITHIN_S", PATIENCE_S)
    assert end_context(zmq.Context(), 0)


def test_a_context_ends_where_no_thread_starts_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    context = zmq.Context()
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert end_context(context, 0)
    assert context.closed


def test_the_garbage_collector_ends_a_context_after_its_sockets() -> None:
    """A context that ends first waits for its sockets without a limit."""
    ended: list[str] = []

    class NotedSocket(zmq.Socket[bytes]):
        def close(self, linger: int | None = None) -> None:
            ended.append("socket")
            super().close(linger)

    class NotedContext(SocketContext):
        _socket_class = NotedSocket

        def term(self) -> None:
            ended.append("context")
            if "socket" in ended:
                super().term()

    def drop() -> None:
        context = NotedContext()
        cycle: list[object] = [context, connect_dealer(context, "127.0.0.1", free_port(), None)]
        cycle.append(cycle)

    drop()
    gc.collect()
    assert ended[0] == "socket"
    assert ended[-1] == "context"


# Endpoints


class Ends:
    """Endpoints of one test, closed at its end."""

    def __init__(self) -> None:
        self.all: list[Endpoint] = []
        self.takers: list[Taker] = []
        self.refusals: list[str] = []
        self.lost: list[str] = []

    def node(self, cluster: str = "shop", port: int = 0, uid: int = 1) -> Endpoint:
        me = NodeId("127.0.0.1", port or free_port(), uid)
        taker = Taker()
        end = Endpoint(
            cluster,
            str(me),
            uid,
            taker,
            authorize=anyone,
            network=ZmqNetwork(),
            node=me,
            events=EndpointEvents(membership=lambda node, body: None),
        )
        end.start("127.0.0.1", me.port)
        self.all.append(end)
        self.takers.append(taker)
        return end

    def kill(self, end: Endpoint) -> None:
        """The end of a killed process: its sockets go, and it says nothing."""
        self.all.remove(end)
        assert end._timer is not None
        assert isinstance(end.network, ZmqNetwork)
        end._timer.cancel()
        if end.incoming.listener is not None:
            end.incoming.listener.close()
        end.network.context.destroy(0)

    def client(self, cluster: str = "shop", uid: int = 99) -> Endpoint:
        end = Endpoint(
            cluster,
            f"client#{uid:x}",
            uid,
            Taker(),
            authorize=anyone,
            network=ZmqNetwork(),
            events=EndpointEvents(
                refused=lambda reason, address: self.refusals.append(reason),
                lost=lambda session, unsent: self.lost.append(session.name),
            ),
        )
        end.start()
        self.all.append(end)
        return end


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    yield ends
    for end in ends.all:
        end.close()


def address(end: Endpoint) -> Address:
    assert end.node is not None
    return end.node.address


async def ask(end: Endpoint, to: Endpoint, payload: bytes) -> object:
    waits: asyncio.Future[object] = end.loop.create_future()
    session = end.session_to(address(to), probe=True)
    session.outbox.ask(ADD, "x", payload, int(PATIENCE_S * 1000), waits, decode_value)
    return await waits


async def test_a_client_asks_a_node(ends: Ends) -> None:
    node, client = ends.node(), ends.client()
    assert await ask(client, node, b"\x07") == 7
    assert client.session_to(address(node)).tag == node.node
    assert node.clients == 1
    client.session_to(address(node)).finish()
    await until(lambda: node.clients == 0, "the goodbye")


async def test_two_nodes_talk_both_ways(ends: Ends) -> None:
    a, b = ends.node(), ends.node(uid=2)
    assert await asyncio.gather(ask(a, b, b"\x01"), ask(b, a, b"\x02")) == [1, 2]
    assert a.clients == b.clients == 0


async def test_another_cluster_is_refused(ends: Ends) -> None:
    node, stranger = ends.node(), ends.client("shed")
    session = stranger.session_to(address(node), probe=True)
    await until(lambda: session.lost, "the refusal")
    assert ends.refusals == ["this is cluster 'shop', not 'shed'"]


async def test_only_the_incarnation_that_was_meant_will_do(ends: Ends) -> None:
    old, client = ends.node(), ends.client()
    meant = old.node
    await ask(client, old, b"\x01")
    old.close()
    ends.all.remove(old)
    port = address(old).port
    new = await until(lambda: _started(ends, port), "the port")
    session = client.session_to(address(new), meant)
    await until(lambda: session.lost, "the loss of the old incarnation")
    assert isinstance(session.lost, NodeLost)
    assert await ask(client, new, b"\x02") == 2


def _started(ends: Ends, port: int) -> Endpoint | None:
    try:
        return ends.node(port=port, uid=2)
    except ConfigError:
        return None


async def test_a_process_that_ended_is_found_by_its_clients(ends: Ends) -> None:
    node, client = ends.node(), ends.client()
    await ask(client, node, b"\x01")
    session = client.session_to(address(node))
    ends.takers[0].answers = False
    waits = asyncio.ensure_future(ask(client, node, b"\x02"))
    await until(lambda: len(ends.takers[0].got) == 2, "the second ask")
    ends.kill(node)
    with pytest.raises(NodeLost):
        await waits
    assert session.lost is not None
    assert len(ends.lost) == 1


async def test_a_node_that_is_dropped_ends_its_sessions(ends: Ends) -> None:
    a, b = ends.node(), ends.node(uid=2)
    await ask(a, b, b"\x01")
    await ask(b, a, b"\x01")
    assert b.node is not None
    mine = a.session_to(address(b))
    a.remove(b.node, NodeLost("b is gone"))
    assert mine.lost is not None
    assert a.sessions() == []
    assert await ask(a, b, b"\x02") == 2  # the process lives, and a new session may be opened


def header(
    end: Endpoint, kind: int, *, cluster: str = "shop", version: int = PROTOCOL_VERSION
) -> bytes:
    return pack_header(version, kind, cluster_tag(cluster), 5, end.uid, 1, 0)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b""], "malformed"),
        ([b"", b"", b""], "malformed"),
        ([b"noise", b""], "malformed"),
        (["version", b""], "malformed"),
        (["hello", b"\xc1"], "malformed"),
        (["hello", b"\x94\xa4shop\xa1\xff\xc0\x01"], "malformed"),
        (["data", b""], "no_session"),
        (["membership", b"\xc1"], "no_session"),
    ],
    ids=range(8),
)
async def test_noise_is_counted_and_disturbs_no_session(
    ends: Ends, context: zmq.Context[zmq.Socket[bytes]], parts: list[bytes | str], reason: str
) -> None:
    node, client = ends.node(), ends.client()
    heads = {
        "version": header(node, FrameType.HELLO, version=9),
        "hello": header(node, FrameType.HELLO),
        "data": header(node, FrameType.DATA),
        "membership": header(node, FrameType.MEMBERSHIP),
    }
    stranger = connect_dealer(context, "127.0.0.1", address(node).port)
    stranger.send_multipart([heads[part] if isinstance(part, str) else part for part in parts])
    await until(lambda: node.dropped_frames, "the count")
    assert node.dropped_frames == {reason: 1}
    assert await ask(client, node, b"\x07") == 7
    stranger.close(0)


async def test_an_answer_over_the_limit_does_not_break_the_link(ends: Ends) -> None:
    node, client = ends.node(), ends.client()
    taker = ends.takers[0]
    taker.answers = False
    big = asyncio.ensure_future(ask(client, node, b"\x01"))
    await until(lambda: taker.got, "the ask")
    [session] = node.sessions()
    session.outbox.reply(1, bytes(20 * 1024 * 1024))
    with pytest.raises(EntityFailed, match="at most"):
        await big
    taker.answers = True
    assert await ask(client, node, b"\x02") == 2


# Incarnations


async def test_frames_for_an_earlier_incarnation_are_dropped(
    ends: Ends, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Not even over a connection that has said who it is; it hears that the one it means is
    gone."""
    node = ends.node(uid=2)
    stranger = connect_dealer(context, "127.0.0.1", address(node).port)
    hello = encode_body(Hello("shop", "client#5", None, 1))
    stranger.send_multipart(
        [pack_header(PROTOCOL_VERSION, FrameType.HELLO, node.tag, 5, 0, 0, 0), hello]
    )
    await until(lambda: node.clients == 1, "the session")
    tell = encode_batch([TellRun("counter", "add", ["x"], [b""])])
    for meant in (1, 2):
        head = pack_header(PROTOCOL_VERSION, FrameType.DATA, node.tag, 5, meant, 1, 0)
        stranger.send_multipart([head, tell])
    await until(lambda: ends.takers[0].got, "what was for this one")
    assert ends.takers[0].got == [("tell", "x", b"")]
    assert node.dropped_frames == {"no_session": 1}
    kinds = [read_header(stranger.recv_multipart()[0]).kind for _ in range(2)]
    assert kinds == [FrameType.WELCOME, FrameType.REFUSED]
    stranger.close(0)


async def test_a_hello_of_an_earlier_session_is_late(
    ends: Ends, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    node = ends.node()
    stranger = connect_dealer(context, "127.0.0.1", address(node).port)
    for session in (2, 1):
        hello = encode_body(Hello("shop", "client#5", None, session))
        head = pack_header(PROTOCOL_VERSION, FrameType.HELLO, node.tag, 5, 0, 0, 0)
        stranger.send_multipart([head, hello])
    await until(lambda: node.dropped_frames, "the second hello")
    assert node.dropped_frames == {"late_hello": 1}
    assert node.clients == 1
    kinds = [read_header(stranger.recv_multipart()[0]).kind for _ in range(2)]
    assert kinds == [FrameType.WELCOME, FrameType.REFUSED]  # its sender looks again
    stranger.close(0)


@pytest.mark.long
async def test_a_process_that_returns_to_its_port_reconnects_every_time(ends: Ends) -> None:
    port, client = free_port(), ends.client()
    for uid in range(2, 22):
        node = await until(lambda: _again(ends, port, uid), "the port")  # noqa: B023
        assert await ask(client, node, b"\x07") == 7
        ends.kill(node)
        await until(lambda: len(ends.lost) == uid - 1, "the loss")  # noqa: B023


def _again(ends: Ends, port: int, uid: int) -> Endpoint | None:
    try:
        return ends.node(port=port, uid=uid)
    except ConfigError:
        return None
