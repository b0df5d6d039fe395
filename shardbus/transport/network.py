"""What frames travel by: the wiring under an endpoint and its links.

    Wiring.listen    one door: frames of everybody who connects, each with the id of its connection
    Wiring.connect   one connection: frames of one peer, and word of its coming and breaking
    Wiring.knock     does anybody listen there?

Endpoints and links know frames and no sockets, so the same ones run over ZeroMQ, here, and over the
wires of the simulator. No wiring promises delivery: what it has taken may be lost with the
connection, and the session sends it again.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.ids import Address
from shardbus.transport.zmq.connection_guard import ConnectionGuard, connections_for
from shardbus.transport.zmq.multipart import Multipart
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.sockets import bind_router, connect_dealer, port_of, require_libzmq

CLOSE_MS = 200
"""So long ZeroMQ's own thread may send what a closed socket still holds."""
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""As plain numbers, and the parts one by one: `send_multipart` takes three times as long."""
_BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_EVENTS = _BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED

DESCRIPTORS = 2
"""A door may use one of so many parts of the process's descriptors."""

OnFrame = Callable[[list[bytes]], None]
"""Takes the parts of a frame: at a door connection id, head and body; on a connection the last
two."""


OnCut = Callable[[str], None]
"""Told when a door has ended a connection, with the reason."""


class SendResult(Enum):
    """What became of a frame that was to leave by a door."""

    TAKEN = "taken"
    NO_ROOM = "no room"
    NO_WAY = "no way"
    """Nobody is connected under that id now."""


class Listener(Protocol):
    """Where others connect to."""

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """To one peer, made again for as long as it is not closed."""

    def send(self, head: bytes, body: bytes) -> bool:
        """Whether there was room for it."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """See the module. Belongs to one event loop, from `open` on."""

    missed_edges: int
    """How often only a watchdog found that something had come."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Listen there.

        Raises:
            ConfigError: the port is taken or the host is not ours.
        """
        ...

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> Connection: ...

    async def knock(self, address: Address) -> bool:
        """False if a fresh connection is refused, so that the process has ended. Anything else
        proves nothing.

        Raises:
            OSError: another failure to connect.
        """
        ...

    def close(self) -> None: ...


class ZmqNetwork:
    """Over ZeroMQ: a door is a ROUTER, a connection a DEALER with its monitor."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.missed_edges = 0
        self.loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop on which frames arrive."""
        require_libzmq(zmq.zmq_version_info())
        self.loop = loop

    def missed(self) -> None:
        """Messages were there, and no edge had told."""
        self.missed_edges += 1

    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Bind a ROUTER."""
        return _Router(self, host, port, name, on_frame, on_cut)

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> Connection:
        """Connect a DEALER."""
        return _Dealer(self, address, on_frame, on_up, on_down)

    async def knock(self, address: Address) -> bool:
        """Open a connection and close it."""
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    def close(self) -> None:
        """Let go of every socket."""
        self.context.destroy(CLOSE_MS)


def sender(socket: zmq.Socket[bytes]) -> Callable[[bytes, int], object]:
    """Sends one part: the compiled method beneath pyzmq's own, which first looks for options that
    only other kinds of socket have."""
    return super(zmq.Socket, socket).send


class _Router:
    def __init__(
        self,
        network: ZmqNetwork,
        host: str,
        port: int,
        name: str,
        on_frame: OnFrame,
        on_cut: OnCut,
    ) -> None:
        loop = network.loop

        def cut(reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_cut, reason)

        self.keeper: ConnectionGuard
        self._on_cut = cut
        self._socket = bind_router(network.context, host, port, name.encode(), self._watch)
        self._send = sender(self._socket)
        multipart = Multipart(self._socket, self.keeper)
        self._reader = Reader(loop, self._socket, on_frame, network.missed, multipart)
        self.keeper.start(port_of(self._socket))
        self._reader.start()

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        most = connections_for(DESCRIPTORS)
        self.keeper = ConnectionGuard(socket, connections_max=most, on_cut=self._on_cut)

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult:
        try:
            self._send(to, MORE)
            self._send(head, MORE)
            self._send(body, NOBLOCK)
        except zmq.Again:
            return SendResult.NO_ROOM
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:
                raise
            return SendResult.NO_WAY
        self._reader.sent()
        return SendResult.TAKEN

    def close(self) -> None:
        self._reader.close()
        self.keeper.stop()
        self._socket.close(CLOSE_MS)


class _Dealer:
    def __init__(
        self,
        network: ZmqNetwork,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self._on_up, self._on_down = on_up, on_down
        self._socket = connect_dealer(network.context, address.host, address.port)
        self._send = sender(self._socket)
        self._reader = Reader(network.loop, self._socket, on_frame, network.missed)
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        self._events = Reader(network.loop, self._monitor, self._on_event)
        self._reader.start()
        self._events.start()

    def send(self, head: bytes, body: bytes) -> bool:
        try:
            self._send(head, MORE)
            self._send(body, NOBLOCK)
        except zmq.Again:
            return False
        self._reader.sent()
        return True

    def close(self) -> None:
        self._reader.close()
        self._events.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(CLOSE_MS)

    def _on_event(self, parts: list[bytes]) -> None:
        event = parse_monitor_message(parts)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._on_up()
        elif event & _BROKEN:
            self._on_down()
