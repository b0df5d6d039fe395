"""Connections to named hosts over real sockets: no name reaches ZeroMQ, every address is tried, and
a name that has moved is followed."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.member import Member
from shardbus.shells.prober import Prober
from shardbus.transport.name_resolver import NameResolver
from shardbus.transport.network import Connection
from shardbus.transport.zmq.network import HELD_MAX, ZmqNetwork
from shardbus.transport.zmq.pubsub import PubSubSockets
from tests.ports import free_port
from tests.waiting import until

HERE, THERE = "127.0.0.2", "127.0.0.3"
HANGS_S = 30.0
"""Ends a wait without a deadline; a probe has one second."""


class Names:
    """A name server of one test. A name without an answer hangs until the test ends."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ...]] = {}
        self.look_ups: deque[str] = deque()
        self._ended = threading.Event()

    def look_up(self, name: str) -> tuple[str, ...]:
        self.look_ups.append(name)
        if name not in self.answers:
            self._ended.wait()
        return self.answers.get(name, ())

    def resolver(self) -> NameResolver:
        return NameResolver(self.look_up)

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.end()


class Door:
    """A ROUTER that writes down arriving frames."""

    def __init__(self, host: str, port: int) -> None:
        self.received: list[bytes] = []
        self._network = ZmqNetwork()
        self._network.open(asyncio.get_running_loop())
        self._listener = self._network.listen(host, port, "door", self._on_frame, lambda _: None)

    def _on_frame(self, parts: list[bytes]) -> None:
        self.received.append(parts[1])

    def close(self) -> None:
        self._listener.close()
        self._network.close()


class Dialler:
    """A process that connects to named hosts."""

    def __init__(self, names: Names) -> None:
        self.network = ZmqNetwork(resolver=names.resolver())
        self.network.open(asyncio.get_running_loop())
        self.up: list[str] = []
        self._open: list[Connection] = []

    def connect(self, host: str, port: int) -> Connection:
        connection = self.network.connect(
            Address(host, port), lambda _: None, lambda: self.up.append(host), lambda: None
        )
        self._open.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self.network.close()


@pytest.fixture
async def dialler(names: Names) -> AsyncIterator[Dialler]:
    made = Dialler(names)
    yield made
    made.close()


async def arrives(connection: Connection, door: Door, frame: bytes) -> None:
    """Send until the frame arrives: frames of a broken connection are lost."""

    def sent() -> bool:
        connection.send(frame, b"")
        return frame in door.received

    await until(sent, f"{frame!r}")


async def test_frames_sent_before_the_first_answer_arrive_in_order(
    dialler: Dialler, names: Names
) -> None:
    names.answers["n1"] = ("127.0.0.1",)
    port = free_port()
    door = Door("127.0.0.1", port)
    connection = dialler.connect("n1", port)
    frames = [b"%d" % n for n in range(HELD_MAX)]
    assert all(connection.send(frame, b"") for frame in frames)
    assert not connection.send(b"one more than it holds", b"")
    await until(lambda: door.received == frames, "the frames")
    door.close()


async def test_every_address_of_a_host_is_tried(dialler: Dialler, names: Names) -> None:
    port = free_port()
    names.answers["n1"] = ("::1", HERE, THERE)
    door = Door(THERE, port)
    await arrives(dialler.connect("n1", port), door, b"found")
    door.close()


async def test_a_connection_follows_its_name_to_another_address(
    dialler: Dialler, names: Names
) -> None:
    port = free_port()
    names.answers["n1"] = (HERE,)
    door = Door(HERE, port)
    connection = dialler.connect("n1", port)
    await arrives(connection, door, b"here")
    door.close()
    names.answers["n1"] = (THERE,)
    moved = Door(THERE, port)
    await arrives(connection, moved, b"there")
    again = Door(HERE, port)
    for n in range(20):
        await arrives(connection, moved, b"%d" % n)
    assert again.received == []
    for socket in (moved, again):
        socket.close()


async def test_a_connection_comes_back_while_its_name_server_is_silent(
    dialler: Dialler, names: Names
) -> None:
    port = free_port()
    names.answers["n1"] = (HERE,)
    door = Door(HERE, port)
    connection = dialler.connect("n1", port)
    await arrives(connection, door, b"before")
    del names.answers["n1"]
    door.close()
    back = Door(HERE, port)
    await arrives(connection, back, b"after")
    back.close()


async def test_names_without_an_answer_hold_up_no_other_connection_and_no_end(
    dialler: Dialler, names: Names
) -> None:
    port = free_port()
    door = Door("127.0.0.1", port)
    good = dialler.connect("127.0.0.1", port)
    for n in range(100):
        dialler.connect(f"silent-{n}", port).send(b"hello", b"")
    for n in range(100):
        await arrives(good, door, b"%d" % n)
    assert dialler.up == ["127.0.0.1"]
    door.close()


async def test_a_probe_of_a_silent_name_uses_the_address_of_the_connection(
    dialler: Dialler, names: Names
) -> None:
    """A refusal proves the end of the process only where that process was."""
    port = free_port()
    names.answers["n1"] = (HERE,)
    door = Door(HERE, port)
    await arrives(dialler.connect("n1", port), door, b"here")
    assert await dialler.network.probe(Address("n1", port))
    door.close()
    del names.answers["n1"]
    assert not await dialler.network.probe(Address("n1", port))
    dialler.connect("n1", port)  # to the next process under this name, wherever that is
    with pytest.raises(OSError, match="another process"):
        await dialler.network.probe(Address("n1", port))


async def test_a_probe_of_membership_looks_the_name_up_within_a_bound(names: Names) -> None:
    resolver = names.resolver()
    resolver.open(asyncio.get_running_loop())
    prober, node = Prober("test", 9, resolver), NodeId("n1", free_port(), 7)
    assert await prober.probe(node) is ProbeOutcome.UNKNOWN
    names.answers["n2"] = (HERE, THERE)
    assert await prober.probe(NodeId("n2", free_port(), 7)) is ProbeOutcome.REFUSED
    prober.close()
    resolver.close()


async def test_a_probe_of_an_address_that_swallows_everything_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()

    async def swallow(*args: object) -> None:
        await loop.create_future()

    monkeypatch.setattr(loop, "sock_connect", swallow)
    resolver = NameResolver()
    resolver.open(loop)
    prober = Prober("test", 9, resolver)
    async with asyncio.timeout(HANGS_S):
        assert await prober.probe(NodeId(HERE, 1, 7)) is ProbeOutcome.UNKNOWN
    prober.close()


# Gossip


class Gossip:
    """The sockets of one node's membership."""

    def __init__(self, uid: int, host: str, port: int, names: Names) -> None:
        self.node = NodeId("n", 1 + uid, uid)
        self.received: list[bytes] = []
        self.listening: set[int] = set()
        self.lost: list[NodeId] = []
        self.sockets = PubSubSockets(self.node, self, resolver=names.resolver())
        self.sockets.open(host, port, asyncio.get_running_loop())

    def on_frames(self, sender: bytes, payload: bytes) -> None:
        self.received.append(payload)

    def on_listening(self, uid: int) -> None:
        self.listening.add(uid)

    def on_disconnected(self, node: NodeId) -> None:
        self.lost.append(node)

    def member(self, host: str) -> Member:
        return Member(NodeId(host, 1, self.node.uid), self.sockets.port)

    async def hears(self, other: Gossip) -> None:
        await until(lambda: self.node.uid in other.listening, "the subscription")
        before = len(self.received)

        def got() -> bool:
            other.sockets.publish(self.node, b"news")
            return len(self.received) > before

        await until(got, "the news")


@pytest.fixture
async def gossips() -> AsyncIterator[list[Gossip]]:
    made: list[Gossip] = []
    yield made
    for socket in made:
        socket.sockets.close()


async def test_gossip_follows_a_name_to_another_address(
    names: Names, gossips: list[Gossip]
) -> None:
    def start(uid: int, host: str, port: int) -> Gossip:
        gossips.append(Gossip(uid, host, port, names))
        return gossips[-1]

    port = free_port()
    names.answers["n1"] = (HERE,)
    reader, first = start(9, "127.0.0.1", 0), start(1, HERE, port)
    member = first.member("n1")
    reader.sockets.subscribe(member)
    await reader.hears(first)
    names.answers["n1"] = (THERE,)
    first.sockets.close()
    await until(lambda: member.node in reader.lost, "the report of the loss")
    second = start(2, THERE, port)
    await reader.hears(second)


@pytest.mark.parametrize("host", ["127.0.0.1", "n1"])
async def test_every_loss_of_a_publisher_is_reported(
    host: str, names: Names, gossips: list[Gossip]
) -> None:
    """The second and the third, too: ZeroMQ then names the endpoint as it found it."""
    port = free_port()
    names.answers["n1"] = ("127.0.0.1",)
    gossips.append(Gossip(9, "127.0.0.1", 0, names))
    reader = gossips[0]
    for round_ in range(3):
        publisher = Gossip(1, "127.0.0.1", port, names)
        if not round_:
            reader.sockets.subscribe(publisher.member(host))
        await reader.hears(publisher)
        reader.lost.clear()
        publisher.sockets.close()
        await until(lambda: reader.lost, "the report of the loss")


async def test_silent_names_hold_up_no_gossip_and_no_end(
    names: Names, gossips: list[Gossip]
) -> None:
    gossips += [Gossip(uid, "127.0.0.1", 0, names) for uid in (1, 2)]
    reader, publisher = gossips
    for n in range(100):
        reader.sockets.subscribe(Member(NodeId(f"silent-{n}", 1, 100 + n), 1 + n))
    reader.sockets.subscribe(publisher.member("127.0.0.1"))
    await reader.hears(publisher)
    for n in range(100):
        reader.sockets.unsubscribe(NodeId(f"silent-{n}", 1, 100 + n))
    await reader.hears(publisher)
