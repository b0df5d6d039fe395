"""The network over ZeroMQ: a listener is a ROUTER, a connection a DEALER with its monitor.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.ids import Address
from shardbus.transport.network import Connection, Listener, OnCut, OnFrame, SendResult
from shardbus.transport.tcp_probe import open_probe
from shardbus.transport.zmq.connection_guard import ConnectionGuard, connections_for
from shardbus.transport.zmq.multipart import Multipart
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.sockets import (
    bind_router,
    connect_dealer,
    context_for_links,
    port_of,
    require_libzmq,
)

CLOSE_MS = 200
"""How long ZeroMQ's own thread may send what a closed socket still holds."""
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers, and parts sent one by one: `send_multipart` takes three times as long."""
_BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_EVENTS = _BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED
DESCRIPTORS = 2
"""The share of the process's descriptors that a listener may use is one in this number."""


class ZmqNetwork:
    """`Network` over ZeroMQ."""

    def __init__(self) -> None:
        self.context = context_for_links()
        self.missed_edges = 0
        self.loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver frames on this loop."""
        require_libzmq(zmq.zmq_version_info())
        self.loop = loop

    def on_missed(self) -> None:
        """Count messages that only a watchdog found."""
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

    async def probe(self, address: Address) -> bool:
        """Open a TCP connection and close it."""
        try:
            connection = await open_probe(address)
        except ConnectionRefusedError:
            return False
        connection.close()
        return True

    def close(self) -> None:
        """Close every socket."""
        self.context.destroy(CLOSE_MS)


def sender(socket: zmq.Socket[bytes]) -> Callable[[bytes, int], object]:
    """Return the compiled method that sends one part. pyzmq's own method first checks for options
    that only other kinds of socket have."""
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

        self.guard: ConnectionGuard
        self._on_cut = cut
        self._socket = bind_router(network.context, host, port, name.encode(), self._watch)
        self._send = sender(self._socket)
        multipart = Multipart(self._socket, self.guard)
        self._reader = Reader(loop, self._socket, on_frame, network.on_missed, multipart.receive)
        self.guard.start(port_of(self._socket))
        self._reader.start()

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        most = connections_for(DESCRIPTORS)
        self.guard = ConnectionGuard(socket, connections_max=most, on_cut=self._on_cut)

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
            return SendResult.UNROUTABLE
        self._reader.used()
        return SendResult.TAKEN

    def close(self) -> None:
        self._reader.close()
        self.guard.stop()
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
        self._reader = Reader(network.loop, self._socket, on_frame, network.on_missed)
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
        self._reader.used()
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
