"""Connections that ZeroMQ gives up without a word are made anew, and find the peer that comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from shardbus.ids import Address, NodeId
from shardbus.membership.member import Member
from shardbus.transport.zmq import given_up
from shardbus.transport.zmq.given_up import GIVEN_UP_S, GivenUp
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.transport.zmq.pubsub import PubSubSockets, topic_of
from shardbus.transport.zmq.sockets import bind
from tests.ports import free_port
from tests.virtual_time import virtual
from tests.waiting import until

ME, PEER = NodeId("127.0.0.1", 7355, 1), NodeId("127.0.0.1", 7357, 2)


class Ears:
    """Writes down received PUB/SUB messages."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def on_frames(self, sender: bytes, payload: bytes) -> None:
        self.heard.append(payload)

    def on_listening(self, uid: int) -> None: ...
    def on_disconnected(self, node: NodeId) -> None: ...


class Port:
    """A port at which one kind of socket follows another."""

    def __init__(self) -> None:
        self.number = free_port()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket: zmq.Socket[bytes] | None = None

    def become(self, kind: zmq.SocketType) -> zmq.Socket[bytes]:
        self.end()
        self.socket = self._context.socket(kind)
        self.socket.linger = 0
        bind(self.socket, "127.0.0.1", self.number)
        return self.socket

    def end(self) -> None:
        if self.socket is not None:
            self.socket.close(0)

    def close(self) -> None:
        self._context.destroy(0)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setattr(given_up, "GIVEN_UP_S", 0.2)
    made = Port()
    yield made
    made.close()


async def test_a_connection_to_a_port_that_was_a_socket_of_another_kind_is_made_anew(
    port: Port,
) -> None:
    port.become(zmq.XPUB)
    network = ZmqNetwork()
    network.open(asyncio.get_running_loop())
    up: list[bool] = []
    connection = network.connect(
        Address("127.0.0.1", port.number), lambda _: None, lambda: up.append(True), lambda: None
    )
    await asyncio.sleep(0.1)  # it has connected, and is turned away
    assert up == []
    port.become(zmq.ROUTER)
    await until(lambda: up, "the connection")
    connection.close()
    network.close()


async def test_gossip_from_a_port_that_was_a_socket_of_another_kind_is_heard(port: Port) -> None:
    port.become(zmq.ROUTER)
    ears = Ears()
    sockets = PubSubSockets(ME, ears)
    sockets.open("127.0.0.1", 0, asyncio.get_running_loop())
    sockets.subscribe(Member(PEER, port.number))
    await asyncio.sleep(0.1)
    publisher = port.become(zmq.XPUB)

    def heard() -> bool:
        publisher.send_multipart([topic_of(ME.uid), str(PEER).encode(), b"news"])
        return bool(ears.heard)

    await until(heard, "the news")
    sockets.close()


@virtual
async def test_a_silence_is_noticed_once_and_every_report_ends_it() -> None:
    loop = asyncio.get_running_loop()
    noticed: list[float] = []
    watch = GivenUp(loop, lambda: noticed.append(loop.time() - began))
    began = loop.time()
    watch.on_event()
    await asyncio.sleep(GIVEN_UP_S - 1)
    watch.on_event()
    await asyncio.sleep(2 * GIVEN_UP_S)
    assert noticed == [pytest.approx(2 * GIVEN_UP_S - 1, abs=0.01)]
    watch.on_event()
    watch.stop()
    await asyncio.sleep(2 * GIVEN_UP_S)
    assert len(noticed) == 1
