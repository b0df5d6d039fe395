"""The sockets of membership: an XPUB to which every node subscribes, and a SUB that subscribes to
every node.

    frames    topic: the receiver's uid, 16 hexadecimal digits, or `*` for all | sender | payload

XPUB is a PUB that also reports subscriptions. A subscription shows this node that a peer receives
its messages from now on; any published earlier are lost. The monitor of the SUB reports connections
that drop.

With a keyring, both sockets encrypt and authenticate. The SUB has one set of keys at a time, which
holds for the next connection that it opens; so a connection whose handshake fails is opened anew,
with the next keys.

A healed network is noticed at the next attempt to connect, so the pause between attempts grows to
the heartbeat interval and no further.

Members advertise names or addresses; ZeroMQ is given addresses only. A connection that breaks has
its name looked up again (`name_resolver`), and moves if the name has another address now.

All sockets are used in one thread only. Every option that bounds time or memory is set here; none
is left to a default.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.errors import ConfigError
from shardbus.ids import Address, NodeId
from shardbus.membership.member import Member
from shardbus.transport.destination import Destination
from shardbus.transport.log_limiter import log
from shardbus.transport.name_resolver import NameResolver, NameWatch, bindable
from shardbus.transport.zmq import curve, sockets
from shardbus.transport.zmq.connection_guard import SUBSCRIBED_MAX, ConnectionGuard, connections_for
from shardbus.transport.zmq.given_up import GivenUp
from shardbus.transport.zmq.listening import KeyedListener
from shardbus.transport.zmq.multipart import source
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.zap import HandshakeLimit, ZapHandler

TOPIC_ALL = b"*"
FRAMES = 3
DESCRIPTORS = 4
"""The share of the process's descriptors that subscribers may use is one in this number."""
SUBSCRIPTION_BYTES_MAX = 1024
"""A subscription has a few bytes, and so has the handshake before it."""

OPTIONS: Mapping[int, int] = {
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
}

XPUB: Mapping[int, int | bytes] = {
    **OPTIONS,
    zmq.ZAP_DOMAIN: curve.ZAP_DOMAIN,  # refuse peers without a handshake
    zmq.MAXMSGSIZE: SUBSCRIPTION_BYTES_MAX,  # ZeroMQ keeps every topic, many times its size
}
SUB: Mapping[int, int | bytes] = {**OPTIONS}

FAREWELL_LINGER_MS = 200
"""How long the last messages may take to leave when the sockets close."""

LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
"""The events that `PubSubReceiver.on_disconnected` reports."""
ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
"""A connection, or an attempt to connect, has ended."""
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_TRIES = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED
_EVENTS = LOST | ENDED | _FAILED | _TRIES | zmq.EVENT_HANDSHAKE_SUCCEEDED


class PubSubReceiver(Protocol):
    """Gets the messages that the sockets receive."""

    def on_frames(self, sender: bytes, payload: bytes) -> None:
        """A message for this node."""

    def on_listening(self, uid: int) -> None:
        """A peer receives this node's messages, from now on."""

    def on_disconnected(self, node: NodeId) -> None:
        """A connection broke, or could not be made."""


def topic_of(uid: int) -> bytes:
    """Return the topic that reaches only the node with this uid."""
    return b"%016x" % uid


class _Publisher:
    """The XPUB of the members at one place, and the subscription to it."""

    def __init__(self, place: Address, keys: curve.KeyFallback) -> None:
        self.place, self.keys = place, keys
        self.nodes: list[NodeId] = []
        self.to = Destination()
        self.endpoint: str | None = None
        """Where the SUB connects for it."""
        self.name: NameWatch
        self.given_up: GivenUp


class PubSubSockets:
    """Opens, reads and closes the sockets of membership. Without a keyring nothing is encrypted."""

    def __init__(
        self,
        me: NodeId,
        receiver: PubSubReceiver,
        keyring: curve.Keyring | None = None,
        resolver: NameResolver | None = None,
    ) -> None:
        self.me, self._keyring = me, keyring
        self.resolver = resolver or NameResolver()
        """Looks up the names of members, for these sockets and for probes."""
        self.port = 0
        self.dropped: Counter[str] = Counter()
        """Messages that were not sent or not usable, by reason."""
        self.missed_edges = 0
        """Reads that only a watchdog started."""
        self._receiver = receiver
        self._sender = str(me).encode()
        self._publishers: dict[Address, _Publisher] = {}
        self._limit = HandshakeLimit() if keyring is not None else None
        self._zap: ZapHandler | None = None
        self._keyed: KeyedListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: sockets.SocketContext | None = None

    def open(self, bind_host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
        """Bind and begin to read. `port` 0 binds any free port; it is then in `self.port`.

        Raises:
            ConfigError: the address cannot be bound. Nothing stays open.
        """
        place = bindable(bind_host)
        self._loop = loop
        self.resolver.open(loop)
        self._context = sockets.SocketContext(io_threads=1)
        self._context.max_sockets = 64
        self._pub = self._socket(zmq.XPUB, XPUB)
        self._sub = self._socket(zmq.SUB, SUB)
        self._guard = ConnectionGuard(
            self._pub,
            unread_max=SUBSCRIBED_MAX,
            connections_max=connections_for(DESCRIPTORS),
            may_be_silent=True,  # ZeroMQ reports only the first subscriber of a topic
            limit=self._limit,
            on_cut=self._on_cut,
        )
        self._monitor = self._sub.get_monitor_socket(_EVENTS)
        try:
            self._bind(place, port)
        except zmq.ZMQError as error:
            why = "it is taken" if error.errno == zmq.EADDRINUSE else str(error.strerror)
            self._guard.stop()
            self._close_port()
            sockets.end_context(self._context, 0)
            self._context = None
            raise ConfigError(
                f"cannot listen for gossip on {Address(bind_host, port)}: {why}",
                hint="choose another with --gossip-port (node.gossip_port), which is the port of "
                "messages + 1 by default",
            ) from None
        self.port = sockets.port_of(self._pub)
        self._guard.start(self.port)
        for topic in (topic_of(self.me.uid), TOPIC_ALL):
            self._sub.setsockopt(zmq.SUBSCRIBE, topic)
        self._messages = Reader(loop, self._sub, self._on_message, self._on_missed)
        self._subscriptions = Reader(
            loop, self._pub, self._on_message, self._on_missed, self._read_subscription
        )
        self._events = Reader(loop, self._monitor, self._on_event, self._on_missed)
        for reader in (self._events, self._subscriptions, self._messages):
            reader.start()

    def close(self) -> None:
        """Close everything. Messages just published have a moment to leave."""
        self.resolver.close()
        if self._context is None:
            return
        for publisher in self._publishers.values():
            publisher.given_up.stop()
        for reader in (self._events, self._subscriptions, self._messages):
            reader.close()
        self._sub.disable_monitor()
        self._guard.stop()
        self._close_port()
        sockets.end_context(self._context, FAREWELL_LINGER_MS)
        self._context = None

    def rekey(self) -> None:
        """Listen under the keys that are the newest now, and end every connection that was accepted
        before."""
        if self._context is not None and self._keyed is not None:
            self._keyed.rekey()
            self._subscriptions.used()

    def _bind(self, host: str, port: int) -> None:
        if self._keyring is None or self._limit is None:
            sockets.bind(self._pub, host, port)
        else:
            assert self._context is not None
            self._zap = ZapHandler(
                self._context,
                self._keyring,
                self._limit,
                nodes_only=True,
                on_denied=self._on_cut,
            )
            self._keyed = KeyedListener(self._pub, host, port, self._keyring)

    def _close_port(self) -> None:
        if self._keyed is not None:
            self._keyed.close()
        if self._zap is not None:
            self._zap.stop()

    def publish(self, to: NodeId, payload: bytes) -> None:
        """Send to one node. Drop and count messages that find no room in the socket."""
        try:
            self._pub.send_multipart([topic_of(to.uid), self._sender, payload], zmq.NOBLOCK)
        except zmq.Again:
            self.dropped["not sent"] += 1
        self._subscriptions.used()

    def subscribe(self, member: Member) -> None:
        """Receive this member's messages. If an earlier incarnation had the same place, connect
        anew."""
        place = member.gossip_address
        publisher = self._publishers.get(place)
        if publisher is None:
            publisher = self._publishers[place] = _Publisher(
                place, curve.KeyFallback(self._keyring)
            )
            assert self._loop is not None
            publisher.given_up = GivenUp(self._loop, partial(self._on_given_up, publisher))
            looked_up = partial(self._on_looked_up, publisher)
            publisher.name = self.resolver.watch(place.host, looked_up)
        publisher.nodes.append(member.node)
        self._disconnect(publisher)
        publisher.to = Destination()
        self._on_looked_up(publisher)
        publisher.name.renew(new_process=True)

    def unsubscribe(self, node: NodeId) -> None:
        """Disconnect from this node, unless another incarnation has the same place."""
        for publisher in list(self._publishers.values()):
            if node in publisher.nodes:
                publisher.nodes.remove(node)
                if not publisher.nodes:
                    del self._publishers[publisher.place]
                    publisher.name.close()
                    self._disconnect(publisher)
        self._messages.used()

    def _on_looked_up(self, publisher: _Publisher) -> None:
        if publisher.to.learn(publisher.name.known_name.addresses):
            self._connect(publisher)

    def _connect(self, publisher: _Publisher) -> None:
        """Connect to the address that the destination names now, and to no other."""
        self._disconnect(publisher)
        host, port = publisher.to.at, publisher.place.port
        assert host is not None
        publisher.endpoint = sockets.endpoint_of(host, port)
        try:
            if publisher.keys.current is not None:
                curve.connect_with(self._sub, publisher.keys.current)
            sockets.connect(self._sub, host, port)
        except zmq.ZMQError:
            self.dropped["bad endpoint"] += 1
        publisher.given_up.on_event()
        self._messages.used()

    def _on_given_up(self, publisher: _Publisher) -> None:
        """ZeroMQ tries no longer: connect anew, to the next address."""
        publisher.name.renew()
        publisher.to.on_broken()
        self._connect(publisher)

    def _disconnect(self, publisher: _Publisher) -> None:
        """Disconnect from where the publisher is, unless another one is there, too: ZeroMQ makes
        one connection to an endpoint."""
        publisher.given_up.stop()
        endpoint, publisher.endpoint = publisher.endpoint, None
        others = [other.endpoint for other in self._publishers.values()]
        if endpoint is not None and endpoint not in others:
            sockets.disconnect(self._sub, endpoint)

    def _on_message(self, parts: list[bytes]) -> None:
        if len(parts) == FRAMES:
            self._receiver.on_frames(parts[1], parts[2])
        else:
            self.dropped["malformed"] += 1

    def _read_subscription(self) -> None:
        """Read and handle one subscription. A peer that subscribes to anything but a node's topics
        is disconnected.

        Raises:
            zmq.Again: there is none.
        """
        frame = self._pub.recv(zmq.NOBLOCK, copy=False)
        head, topic = frame.bytes[:1], frame.bytes[1:]
        try:
            uid = 0 if topic == TOPIC_ALL else int(topic, 16)
        except ValueError:
            uid = -1
        if uid < 0 or topic not in (TOPIC_ALL, topic_of(uid)) or head not in (b"\0", b"\1"):
            self.dropped["malformed"] += 1
            self._guard.refuse(source(frame), "not_a_subscription")
            return
        self._guard.introduce(source(frame))
        if head == b"\1" and topic != TOPIC_ALL:
            self._receiver.on_listening(uid)

    def _on_missed(self) -> None:
        self.missed_edges += 1

    def _on_cut(self, reason: str) -> None:
        """Count a connection that the guard ended. Called in the guard's thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.dropped.update, (reason,))

    def _on_event(self, parts: list[bytes]) -> None:
        report = parse_monitor_message(parts)
        event, endpoint = report["event"], sockets.without_zone(report["endpoint"].decode())
        for publisher in list(self._publishers.values()):
            if (
                publisher.endpoint is not None
                and sockets.without_zone(publisher.endpoint) == endpoint
            ):
                self._on_publisher(publisher, event, report["value"])

    def _on_publisher(self, publisher: _Publisher, event: int, value: int) -> None:
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            publisher.given_up.on_event()
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            publisher.given_up.stop()
            publisher.keys.succeeded()
            publisher.to.on_up()
            publisher.name.settle()
        elif event & _FAILED:
            if self._keyring is not None:
                self._connect_later(publisher, value)
        elif event & ENDED:
            publisher.name.renew()
            if publisher.to.on_broken():
                self._connect(publisher)
        if event & LOST:
            self._report_lost(publisher)

    def _report_lost(self, publisher: _Publisher) -> None:
        for node in list(publisher.nodes):
            self._receiver.on_disconnected(node)

    def _connect_later(self, publisher: _Publisher, value: int) -> None:
        """The handshake failed: connect with the next keys, to the next address."""
        assert self._loop is not None
        self._disconnect(publisher)
        publisher.name.renew()
        publisher.to.on_broken()
        pause = publisher.keys.failed(value)
        if publisher.keys.hopeless():
            self.dropped["handshake_failed"] += 1
            why = curve.reason_for(value, keyed=True)
            log.warning("no gossip from %s: %s", publisher.place, why)
        self._report_lost(publisher)

        def again() -> None:
            is_current = self._publishers.get(publisher.place) is publisher
            if self._context is not None and is_current and publisher.endpoint is None:
                self._connect(publisher)

        self._loop.call_later(pause, again)

    def _socket(
        self, kind: zmq.SocketType, options: Mapping[int, int | bytes]
    ) -> zmq.Socket[bytes]:
        assert self._context is not None
        created = self._context.socket(kind)
        sockets.set_options(created, options)
        if self._keyring is not None:
            sockets.allow_overhead(created)
        return created
