"""The sockets of membership: one XPUB that everybody hears, one SUB that hears everybody.

    frames    topic: the receiver's uid, 16 hexadecimal digits, or `*` for all | sender | payload

XPUB is a PUB that also reports subscriptions, from which this node learns that a peer can hear it:
what is published before that is lost. The SUB's monitor reports connections that drop.

Descriptors of ZeroMQ sockets are edge-triggered: an edge says «something changed», and reading or
sending may eat the next one. So every wake-up drains all sockets until they are empty, with a bound
per turn; a publication is followed by another look; and the owner calls `drain` once a second in
case an edge was missed, which is counted.

A network that heals is noticed at the next attempt to connect, so the pause between attempts grows
to a heartbeat's interval and no further.

All sockets are used in one thread only. Every option that bounds time or memory is set here, none
is left to a default.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.errors import ConfigError
from shardbus.ids import Address, NodeId
from shardbus.membership.member import Member
from shardbus.transport.zmq.connection_guard import SUBSCRIBED_MAX, ConnectionGuard, connections_for
from shardbus.transport.zmq.multipart import Multipart, source
from shardbus.transport.zmq.sockets import bind, port_of

TOPIC_ALL = b"*"
FRAMES = 3
DESCRIPTORS = 4
"""Subscribers may use one of so many parts of the process's descriptors."""
SUBSCRIPTION_BYTES_MAX = 1024
"""A subscription has a few bytes, and so has what precedes it when a connection is opened."""
TURN_MAX = 200
"""Messages per socket and turn; the rest waits for the next turn of the loop."""

OPTIONS: Mapping[zmq.SocketOption, int] = {
    zmq.LINGER: 0,
    zmq.SNDHWM: 1000,
    zmq.RCVHWM: 1000,
    zmq.MAXMSGSIZE: 8 << 20,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.HEARTBEAT_TTL: 3000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.CONNECT_TIMEOUT: 2000,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.BACKLOG: 512,
    zmq.IPV6: 1,
}

XPUB: Mapping[zmq.SocketOption, int] = {
    **OPTIONS,
    zmq.MAXMSGSIZE: SUBSCRIPTION_BYTES_MAX,  # ZeroMQ keeps every topic, many times its size
}
SUB = OPTIONS

FAREWELL_LINGER_MS = 200
"""How long the last words may take when the sockets close."""

Lost = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class PubSubReceiver(Protocol):
    """Who is told what the sockets hear."""

    def on_frames(self, sender: bytes, payload: bytes) -> None:
        """A message for this node."""

    def on_listening(self, uid: int) -> None:
        """A peer can hear this node from now on."""

    def on_disconnected(self, node: NodeId) -> None:
        """A connection dropped, or could not be made."""


def topic_of(uid: int) -> bytes:
    """The topic that reaches the node with this uid alone."""
    return b"%016x" % uid


def endpoint_of(host: str, port: int) -> str:
    """The endpoint to connect to."""
    return f"tcp://{Address(host, port)}"


class PubSubSockets:
    """Opens, reads and closes the sockets. `missed_edges` counts messages that only the watchdog
    found."""

    def __init__(self, me: NodeId, listener: PubSubReceiver) -> None:
        self.me = me
        self.port = 0
        self.dropped: Counter[str] = Counter()
        self.missed_edges = 0
        self._listener = listener
        self._sender = str(me).encode()
        self._peers: dict[str, list[NodeId]] = {}
        self._again: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def open(self, bind_host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
        """Bind and begin to listen; `port` 0 takes any free one, then found in `self.port`.

        Raises:
            ConfigError: the address cannot be bound. Nothing stays open.
        """
        self._loop = loop
        self._context = zmq.Context(io_threads=1)
        self._context.max_sockets = 64
        self._pub = self._socket(zmq.XPUB, XPUB)
        self._sub = self._socket(zmq.SUB, SUB)
        self._keeper = ConnectionGuard(
            self._pub,
            unread_max=SUBSCRIBED_MAX,
            connections_max=connections_for(DESCRIPTORS),
            may_be_silent=True,  # ZeroMQ tells of a topic's first subscriber only
            on_cut=self._on_cut,
        )
        self._messages = Multipart(self._sub)
        self._monitor = self._sub.get_monitor_socket(Lost)
        try:
            found = socket.getaddrinfo(bind_host, port, type=socket.SOCK_STREAM)
            host = str(found[0][4][0])
            bind(self._pub, host, port)
        except (zmq.ZMQError, OSError) as error:
            self._keeper.stop()
            self._context.destroy(linger=0)
            self._context = None
            raise ConfigError(
                f"cannot bind the gossip port {port} on {bind_host}: {error}",
                hint="is another node running there? choose another with node.gossip_port",
            ) from None
        self.port = port_of(self._pub)
        self._keeper.start(self.port)
        for topic in (topic_of(self.me.uid), TOPIC_ALL):
            self._sub.setsockopt(zmq.SUBSCRIBE, topic)
        for each in (self._pub, self._sub, self._monitor):
            loop.add_reader(int(each.getsockopt(zmq.FD)), self.drain)
        self.drain()

    def close(self) -> None:
        """Close everything; what was just published has a moment to leave."""
        if self._context is None or self._loop is None:
            return
        if self._again:
            self._again.cancel()
        for each in (self._pub, self._sub, self._monitor):
            self._loop.remove_reader(int(each.getsockopt(zmq.FD)))
        self._sub.disable_monitor()
        self._keeper.stop()
        self._context.destroy(linger=FAREWELL_LINGER_MS)
        self._context = None

    def publish(self, to: NodeId, payload: bytes) -> None:
        """Send to one node. What it cannot take is dropped, and counted."""
        try:
            self._pub.send_multipart([topic_of(to.uid), self._sender, payload], zmq.NOBLOCK)
        except zmq.Again:
            self.dropped["not sent"] += 1
        self._look_again()

    def subscribe(self, member: Member) -> None:
        """Hear this member. If a former incarnation was at that endpoint, the connection is made
        anew."""
        endpoint = endpoint_of(member.node.host, member.gossip_port)
        nodes = self._peers.setdefault(endpoint, [])
        if nodes:
            self._disconnect(endpoint)
        nodes.append(member.node)
        try:
            self._sub.connect(endpoint)
        except zmq.ZMQError:
            self.dropped["bad endpoint"] += 1
        self._look_again()

    def unsubscribe(self, node: NodeId) -> None:
        """Do not hear this node any more, unless another one is at its endpoint."""
        for endpoint, nodes in list(self._peers.items()):
            if node in nodes:
                nodes.remove(node)
                if not nodes:
                    del self._peers[endpoint]
                    self._disconnect(endpoint)
        self._look_again()

    def watchdog(self) -> None:
        """Look whether an edge was missed."""
        self.missed_edges += self.drain()

    def drain(self) -> int:
        """Read until all sockets are empty, or a turn's share is used. Returns how many messages
        there were."""
        self._again = None
        counts = [
            self._read(self._one_event),
            self._read(self._one_subscription),
            self._read(self._one_message),
        ]
        if max(counts) >= TURN_MAX:
            self._look_again()
        return sum(counts)

    def _read(self, read_one: Callable[[], None]) -> int:
        for count in range(TURN_MAX):
            if self._context is None:
                return 0
            try:
                read_one()
            except zmq.Again:
                return count
        return TURN_MAX

    def _one_message(self) -> None:
        frames = self._messages.receive()
        if frames is None:
            return
        if len(frames) == FRAMES:
            self._listener.on_frames(frames[1], frames[2])
        else:
            self.dropped["malformed"] += 1

    def _one_subscription(self) -> None:
        """Who subscribes to anything but a node's topics goes."""
        frame = self._pub.recv(zmq.NOBLOCK, copy=False)
        head, topic = frame.bytes[:1], frame.bytes[1:]
        try:
            uid = 0 if topic == TOPIC_ALL else int(topic, 16)
        except ValueError:
            uid = -1
        if uid < 0 or topic not in (TOPIC_ALL, topic_of(uid)) or head not in (b"\0", b"\1"):
            self.dropped["malformed"] += 1
            self._keeper.refuse(source(frame), "not_a_subscription")
            return
        self._keeper.introduce(source(frame))
        if head == b"\1" and topic != TOPIC_ALL:
            self._listener.on_listening(uid)

    def _on_cut(self, reason: str) -> None:
        """Called in the doorkeeper's thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.dropped.update, (reason,))

    def _one_event(self) -> None:
        frames = self._monitor.recv_multipart(zmq.NOBLOCK)
        endpoint = parse_monitor_message(frames)["endpoint"].decode()
        for node in list(self._peers.get(endpoint, ())):
            self._listener.on_disconnected(node)

    def _disconnect(self, endpoint: str) -> None:
        try:
            self._sub.disconnect(endpoint)
        except zmq.ZMQError:
            self.dropped["bad endpoint"] += 1

    def _look_again(self) -> None:
        if self._again is None and self._loop is not None:
            self._again = self._loop.call_soon(self.drain)

    def _socket(
        self, kind: zmq.SocketType, options: Mapping[zmq.SocketOption, int]
    ) -> zmq.Socket[bytes]:
        assert self._context is not None
        created = self._context.socket(kind)
        for option, value in options.items():
            created.setsockopt(option, value)
        return created
