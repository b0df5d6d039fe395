"""The network over ZeroMQ: a listener is a ROUTER, a connection a DEALER with its monitor.

With a keyring every connection is encrypted and authenticated (`curve`, `zap`). A connection whose
handshake fails is made anew, with the next keys: ZeroMQ gives up for good after some failures, and
a socket cannot change its keys.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.transport.destination import Destination
from shardbus.transport.log_limiter import log
from shardbus.transport.name_resolver import NameResolver
from shardbus.transport.network import (
    Connection,
    Listener,
    OnCut,
    OnDenied,
    OnFrame,
    SendResult,
)
from shardbus.transport.tcp_probe import LOOKUP_WITHIN_S, open_probe
from shardbus.transport.who_listens import ROUTER, XPUB, who_listens
from shardbus.transport.zmq import curve, sockets
from shardbus.transport.zmq.connection_guard import ConnectionGuard, connections_for
from shardbus.transport.zmq.given_up import GivenUp
from shardbus.transport.zmq.listening import KeyedListener
from shardbus.transport.zmq.multipart import Multipart
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.zap import HandshakeLimit, ZapHandler

REOPEN_S = 0.5
CLOSE_MS = 200
"""How long ZeroMQ's own thread may send the messages that a closed socket still holds."""
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers, and parts sent one by one: `send_multipart` takes three times as long."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
"""A connection, or an attempt to connect, has ended."""
_BROKEN = _ENDED | zmq.EVENT_CONNECT_RETRIED
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_TRIES = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED
_EVENTS = _BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED | _TRIES
DESCRIPTORS = 2
"""The share of the process's descriptors that a listener may use is one in this number."""
KINDS = {"messages": ROUTER, "gossip": XPUB}
HELD_MAX = 16
"""Frames that a connection holds until the first address of its host is known."""


class ZmqNetwork:
    """`Network` over ZeroMQ. Without a keyring nothing is encrypted.

    Raises:
        ConfigError: the libzmq of this process is too old.
    """

    def __init__(
        self, keyring: curve.Keyring | None = None, resolver: NameResolver | None = None
    ) -> None:
        sockets.require_libzmq(zmq.zmq_version_info())
        self.resolver = resolver or NameResolver()
        self.context: zmq.Context[zmq.Socket[bytes]]
        self.keyring = keyring
        self.missed_edges = 0
        self._routers: list[_Router] = []
        self.loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver frames on this loop. From here on, until the end, ZeroMQ has threads."""
        self.context = sockets.context_for_links()
        self.loop = loop
        self.resolver.open(loop)

    def on_missed(self) -> None:
        """Count messages that only a watchdog found."""
        self.missed_edges += 1

    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Bind a ROUTER."""
        router = _Router(self, host, port, name, on_frame, on_cut)
        self._routers.append(router)
        return router

    def rekey(self) -> None:
        """Listen under the keys that are the newest now, and end every connection that was accepted
        before."""
        for router in self._routers:
            router.rekey()

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied = lambda reason: None,
    ) -> Connection:
        """Connect a DEALER."""
        return _Dealer(self, address, on_frame, on_up, on_down, on_denied)

    async def probe(self, address: Address) -> bool:
        """Open a TCP connection and close it."""
        host = await self.resolver.resolve(address.host, LOOKUP_WITHIN_S)
        try:
            connection = await open_probe(host, address.port)
        except ConnectionRefusedError:
            return False
        connection.close()
        return True

    async def who_listens(self, address: Address, channel: str) -> str:
        """Speak to the process there as ZeroMQ does."""
        host = await self.resolver.resolve(address.host, LOOKUP_WITHIN_S)
        return await who_listens(host, address.port, KINDS[channel])

    def close(self) -> None:
        """Close every socket."""
        self.resolver.close()
        sockets.end_context(self.context, CLOSE_MS)


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
        self._keyring = keyring = network.keyring
        self._limit = HandshakeLimit() if keyring is not None else None
        self._zap: ZapHandler | None = None
        self._keyed: KeyedListener | None = None
        if keyring is not None and self._limit is not None:
            self._zap = ZapHandler(network.context, keyring, self._limit, on_denied=cut)
        try:
            binds = self._bind if keyring is not None else None
            self._socket = sockets.bind_router(
                network.context, host, port, name.encode(), self._watch, binds
            )
        except ConfigError:
            if self._zap is not None:
                self._zap.stop()
            raise
        self._send = sender(self._socket)
        overhead = curve.MESSAGE_OVERHEAD if keyring is not None else 0
        multipart = Multipart(self._socket, self.guard, overhead)
        self.user, self.dismiss = multipart.user, multipart.dismiss
        self._reader = Reader(loop, self._socket, on_frame, network.on_missed, multipart.receive)
        self.guard.start(sockets.port_of(self._socket))
        self._reader.start()

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        most = connections_for(DESCRIPTORS)
        self.guard = ConnectionGuard(
            socket, connections_max=most, limit=self._limit, on_cut=self._on_cut
        )

    def _bind(self, socket: zmq.Socket[bytes], host: str, port: int) -> None:
        assert self._keyring is not None
        sockets.allow_overhead(socket)
        self._keyed = KeyedListener(socket, host, port, self._keyring)

    def rekey(self) -> None:
        if self._keyed is not None:
            self._keyed.rekey()
            self._reader.used()

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

    @property
    def full(self) -> bool:
        return self.guard.full

    def end_turn(self) -> None:
        self._reader.end_turn()

    def close(self) -> None:
        self._reader.close()
        self.guard.stop()
        if self._zap is not None:
            self._zap.stop()
        if self._keyed is not None:
            self._keyed.close()
        self._socket.close(CLOSE_MS)


class _Dealer:
    """A connection to one peer. Each of its sockets has one numeric address and one set of keys.

    When a connection breaks, or an attempt fails, the name of the host is looked up again, and
    ZeroMQ's own reconnect goes on meanwhile. For another address or other keys, and when ZeroMQ has
    given up, the connection gets another socket. Frames that a former socket still held are lost,
    as on any broken connection.
    """

    def __init__(
        self,
        network: ZmqNetwork,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied,
    ) -> None:
        self._network, self._port = network, address.port
        self._on_frame, self._on_up, self._on_down = on_frame, on_up, on_down
        self._on_denied = on_denied
        self._fallback = curve.KeyFallback(network.keyring)
        self._denied = self._closed = False
        self._why = 0
        """The value of the last event that says why a handshake failed."""
        self._again: asyncio.TimerHandle | None = None
        self._socket: zmq.Socket[bytes] | None = None
        """None before the first address is known, and in a pause between two sets of keys."""
        self._held: list[tuple[bytes, bytes]] | None = []
        """Frames that wait for the first address; None once it was known."""
        self._to = Destination()
        self._given_up = GivenUp(network.loop, self._on_given_up)
        self._name = network.resolver.watch(address.host, self._on_looked_up)
        self._on_looked_up()
        self._name.renew(new_process=True)

    def _on_looked_up(self) -> None:
        if self._to.learn(self._name.known_name.addresses):
            self._move()

    def _move(self) -> None:
        """Connect to the address that the destination names now."""
        self._disconnect()
        self._open()

    def _on_given_up(self) -> None:
        """ZeroMQ tries no longer: connect anew, to the next address."""
        self._name.renew()
        self._to.on_broken()
        self._move()

    def _open(self) -> None:
        """Make a socket and connect it; try again later if this process has no descriptor left."""
        self._again = None
        try:
            self._open_socket()
        except zmq.ZMQError as e:
            log.error("no socket for port %d: %s: raise the limit of `ulimit -n`", self._port, e)
            self._again = self._network.loop.call_later(REOPEN_S, self._open)
            return
        held, self._held = self._held or (), None
        for head, body in held:
            self.send(head, body)

    def _open_socket(self) -> None:
        network, host = self._network, self._to.at
        assert host is not None
        monitors: list[zmq.Socket[bytes]] = []

        def watch(socket: zmq.Socket[bytes]) -> None:
            """Make the monitor before the socket connects: a handshake that fails at once is
            reported once, and after some failures ZeroMQ never connects again."""
            monitors.append(socket.get_monitor_socket(_EVENTS))

        made = sockets.connect_dealer(
            network.context, host, self._port, self._fallback.current, watch
        )
        [monitor] = monitors
        self._socket, self._send, self._monitor = made, sender(made), monitor
        self._reader = Reader(network.loop, made, self._on_frame, network.on_missed)
        self._events = Reader(network.loop, monitor, self._on_event)
        self._reader.start()
        self._events.start()
        self._given_up.on_event()

    def send(self, head: bytes, body: bytes) -> bool:
        if self._socket is None:
            return self._hold(head, body)
        try:
            self._send(head, MORE)
            self._send(body, NOBLOCK)
        except zmq.Again:
            return False
        self._reader.used()
        return True

    def _hold(self, head: bytes, body: bytes) -> bool:
        """Keep a frame until the first address is known. Later ones are lost between two sockets,
        as on any broken connection. Returns False if there is no room."""
        if self._held is None:
            return True
        if len(self._held) >= HELD_MAX:
            return False
        self._held.append((head, body))
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._name.close()
            self._disconnect()

    def _disconnect(self) -> None:
        self._given_up.stop()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._socket is not None:
            self._reader.close()
            self._events.close()
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(CLOSE_MS)
            self._socket = None

    def _on_event(self, parts: list[bytes]) -> None:
        report = parse_monitor_message(parts)
        event = report["event"]
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._given_up.on_event()
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._given_up.stop()
            self._fallback.succeeded()
            self._denied, self._why = False, 0
            self._to.on_up()
            self._name.settle()
            self._on_up()
        elif event & _FAILED:
            self._connect_anew(report["value"])
        elif event & _BROKEN:
            if event & _ENDED:
                self._name.renew()
                if self._to.on_broken():
                    self._move()
            self._on_down()

    def _connect_anew(self, value: int) -> None:
        """The handshake failed: connect with the next keys, to the next address. Report it once if
        all keys have failed several times."""
        self._disconnect()
        self._name.renew()
        self._to.on_broken()
        self._why = value if value in curve.EXPLAINED else self._why
        pause = self._fallback.failed(value)
        self._again = self._network.loop.call_later(pause, self._open)
        self._on_down()
        if self._fallback.hopeless(self._why) and not self._denied and not self._closed:
            self._denied = True
            self._on_denied(curve.reason_for(self._why, keyed=self._network.keyring is not None))
