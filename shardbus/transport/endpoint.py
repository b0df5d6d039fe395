"""An endpoint: the connections of one process and the sessions over them.

A node listens; a process that has messages for it connects. So between two nodes there are two
connections, one opened by each, and each carries a full session: tells and asks go out on the
connection that this process has opened, answers come back on it. A client has only the connections
that it opens.

`outgoing` has the connections that this process opened, `incoming` the sessions that others opened
here. Both call back by the interfaces that they declare (`OutgoingOwner`, `IncomingOwner`).

The endpoint does not decide which process is dead. A node's membership decides that, and the node
calls `remove`. A client has no membership, so its connections probe: when a connection breaks and a
fresh one is *refused*, the process is gone; when the peer stays silent for `SILENCE_S`, the session
ends, and the peer may live.

Source: docs/architecture.md; S1.2; C.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shardbus.errors import NodeLost, RequestError
from shardbus.ids import Address, NodeId
from shardbus.transport.asks import CoarseClock
from shardbus.transport.departures import DepartureNotices
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.fork_guard import guard
from shardbus.transport.inbox import Receiver
from shardbus.transport.incoming import IncomingSessions
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Network
from shardbus.transport.outgoing import OutgoingConnection
from shardbus.transport.permissions import Authorize, authorize
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.session import Session
from shardbus.transport.window import Transmit
from shardbus.wire import batch

LINK_IDLE_S = 60.0
"""A link to a process that is no member ends after this time, once nothing is under way on it."""
KEEP_ALIVE_S = 5.0
"""Interval of keep-alive frames on every outgoing session."""


class Endpoint:
    """All connections and sessions of one process. Made in the running event loop; every method
    belongs to its thread."""

    def __init__(
        self,
        cluster: str,
        name: str,
        uid: int,
        receiver: Receiver[Session],
        *,
        network: Network,
        node: NodeId | None = None,
        secret: bytes = b"",
        authorize: Authorize = authorize,
        events: EndpointEvents | None = None,
        send_buffer_limit: SendBufferLimit | None = None,
    ) -> None:
        guard(self)
        self.cluster, self.name, self.uid, self.node = cluster, name, uid, node
        self.secret, self.authorize = secret, authorize
        self.receiver, self.network = receiver, network
        self.tag = batch.cluster_tag(cluster)
        self.clock = CoarseClock()
        self.loop = asyncio.get_running_loop()
        self.send_buffer_limit = send_buffer_limit or SendBufferLimit()
        self.sent = SentMessages()
        self.departures = DepartureNotices(self)
        self.dropped_frames: dict[str, int] = {}
        """Unusable frames, by reason."""
        self.asks_timed_out = 0
        self.events = events or EndpointEvents()
        self.incoming = IncomingSessions(self)
        self._outgoing: dict[int, OutgoingConnection] = {}
        """By serial number. The connection to a dead incarnation stays beside that to its successor
        until `remove`."""
        self._by_uid: dict[int, OutgoingConnection] = {}
        """By the uid of the process that must answer, or has answered."""
        self._members: frozenset[NodeId] | None = None
        """The nodes that membership knows; None without a membership, which believes every node."""
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._kept_alive_at = 0.0

    def start(self, host: str | None = None, port: int = 0) -> None:
        """Start the clock; with a host, listen there.

        Raises:
            ConfigError: the port is taken.
        """
        self.network.open(self.loop)
        if host is not None:
            incoming = self.incoming
            incoming.listener = self.network.listen(
                host, port, self.name, incoming.on_parts, self.count_drop
            )
        self.clock.start(self.loop.time)
        self._kept_alive_at = self.loop.time()
        self._timer = self.loop.call_later(CoarseClock.TICK_MS / 1000, self._tick)

    def end_turn(self) -> None:
        """Let the loop's other work run before further messages of other processes come."""
        if self.incoming.listener is not None:
            self.incoming.listener.end_turn()

    # ---- sessions

    def session_to(
        self, address: Address, node: NodeId | None = None, *, probe: bool = False
    ) -> Session:
        """Return the session that this process opened to the address; open one if there is none.
        With a `node`, only that incarnation may answer. `probe`: find out by connecting when the
        process is gone."""
        connection = self._find(address, node)
        if connection is not None and node is None:
            connection.names.add(address)
        if connection is None:
            self._serial += 1
            connection = OutgoingConnection(self, address, node, self._serial, probe=probe)
            self._outgoing[connection.serial] = connection
            if node is not None:
                self._by_uid[node.uid] = connection
            connection.start()
            self.departures.on_session(connection.session)
        return connection.session

    def _find(self, address: Address, node: NodeId | None) -> OutgoingConnection | None:
        """Return the connection to this incarnation, by whatever name it was dialled; without one,
        the newest to the address. A connection that no process has answered yet is then for this
        incarnation alone: its successor must not get messages sent to it."""
        if node is not None and (connection := self._by_uid.get(node.uid)) is not None:
            return connection
        for opened in reversed(self._outgoing.values()):
            home = opened.node.address if opened.node is not None else opened.address
            if (node is None or not opened.uid) and (address in opened.names or address == home):
                if node is not None:  # a process keeps one session of this one, so they share it
                    opened.pin(node)
                    self._by_uid[node.uid] = opened
                return opened
        return None

    def has_others(self, connection: OutgoingConnection) -> bool:
        """True if this process has opened another connection."""
        return any(other is not connection for other in self._outgoing.values())

    def holder_of(self, uid: int, connection: OutgoingConnection) -> OutgoingConnection:
        """Return the connection to the process with this uid; the given one if there is none."""
        return self._by_uid.setdefault(uid, connection)

    def node_at(self, address: Address) -> NodeId | None:
        """Return the node that has answered at this address, or by this name; None if none has."""
        connection = self._find(address, None)
        return connection.node if connection is not None else None

    def remove(self, node: NodeId, error: RequestError) -> None:
        """This incarnation is gone for good: end every session with it, and accept none."""
        self.incoming.refuse(node)
        self.end_sessions(node, error)

    def end_sessions(self, node: NodeId, error: RequestError) -> None:
        """End every session with this incarnation. It may open new ones."""
        for connection in list(self._outgoing.values()):
            unknown = not connection.uid and connection.address == node.address
            if connection.node == node or unknown:
                self.end_connection(connection, error)
        self.incoming.end_session(node, error)

    def has_session(self, node: NodeId) -> bool:
        """True if there is a session with this incarnation, opened by either side."""
        return str(node) in self.incoming.by_name or any(
            c.node == node for c in self._outgoing.values()
        )

    def watch(self, node: NodeId) -> bool:
        """Membership no longer reports on this node: find out by connecting when its process ends.
        Returns False if there is no connection to it."""
        watched = [c for c in self._outgoing.values() if c.node == node]
        for connection in watched:
            connection.watch()
        return bool(watched)

    def end_connection(
        self, connection: OutgoingConnection, error: RequestError, *, peer_ended: bool = True
    ) -> None:
        """End a connection and its session. `peer_ended`: the process at the other end has
        certainly ended, too."""
        connection.session.peer_ended = peer_ended
        self._outgoing.pop(connection.serial, None)
        if self._by_uid.get(connection.uid) is connection:
            del self._by_uid[connection.uid]
        connection.close()
        self.end(connection.session, error)

    def announce_leaving(self) -> None:
        """Ask clients, also those that connect later, to finish their work with this node and to
        close their sessions."""
        self.incoming.announce_leaving()

    @property
    def clients(self) -> int:
        """Number of sessions of clients, without those that are gone while this node leaves."""
        return self.incoming.clients

    def close_idle(self, node: NodeId, in_use: Callable[[Session], bool]) -> bool:
        """Close the connections to a leaving node on which nothing is under way. Returns True if
        none is left."""
        none_left = True
        for connection in [c for c in self._outgoing.values() if c.node == node]:
            session = connection.session
            if in_use(session) or session.busy:
                none_left = False
                continue
            connection.transmit(batch.FrameType.BYE, 0, session.link.window.received, b"")
            session.closed_idle = True
            self.end_connection(connection, NodeLost(f"{session.name} has left"))
        return none_left

    @property
    def outgoing_sessions(self) -> list[Session]:
        """The sessions that this process opened."""
        return [connection.session for connection in self._outgoing.values()]

    def sessions(self) -> list[Session]:
        """Every session, opened by either side."""
        return self.outgoing_sessions + [peer.session for peer in self.incoming.by_name.values()]

    # ---- membership

    def set_members(self, members: Iterable[NodeId]) -> None:
        """Believe these nodes, and no others. A session that was believed stays so until it
        ends."""
        self._members = frozenset(members)
        self.incoming.on_members(self._members)
        for connection in self._outgoing.values():
            connection.on_members(self._members)

    def is_member(self, node: NodeId) -> bool:
        """True if membership knows the node, or this process has no membership."""
        return self._members is None or node in self._members

    def request_membership(self, to: Address | NodeId, body: bytes) -> None:
        """Send a request to join on a connection that this process opens. It may be lost."""
        connection = None
        if isinstance(to, NodeId):
            connection = next((c for c in self._outgoing.values() if c.node == to), None)
            to = to.address
        if connection is None:
            self.session_to(to)
            connection = self._find(to, None)
        assert connection is not None
        assert self.node is not None
        connection.request_membership(batch.encode_body(batch.MembershipFrame(self.node, body)))

    def answer_membership(self, to: NodeId, body: bytes) -> None:
        """Answer a request to join on the connection that brought it. Without that connection the
        answer is dropped: the node asks again."""
        assert self.node is not None
        inbound = self.incoming.by_name.get(str(to))
        if inbound is None:
            self.count_drop("no_session")
            return
        frame = batch.encode_body(batch.MembershipFrame(self.node, body))
        self.incoming.transmit(
            inbound.identity, inbound.uid, batch.FrameType.MEMBERSHIP, 0, 0, frame
        )

    def count_drop(self, reason: str) -> None:
        """Count an unusable frame."""
        self.dropped_frames[reason] = self.dropped_frames.get(reason, 0) + 1

    # ---- called back by connections and sessions

    def new_session(self, name: str, transmit: Transmit) -> Session:
        """Make a session of this process over the given way of sending frames."""
        receiver, limit = self.receiver, self.send_buffer_limit
        return Session(name, self.loop, self.clock, receiver, transmit, limit, self.sent)

    def on_busy(self, reason: str) -> None:
        """A node has no room for a session of this process now."""
        self.count_drop("no_room_there")
        self.events.busy(reason)

    def on_denied(self, address: Address, reason: str) -> None:
        """The keys of the process at an address differ from this one's."""
        self.count_drop("handshake_failed")
        log.warning("no connection to %s: %s", address, reason)
        self.events.denied(address, reason)

    def on_membership(self, sender: NodeId, body: bytes, dialled: Address | None = None) -> None:
        """A MEMBERSHIP frame arrived in a session with the sender. `dialled`: the address to which
        this process opened the connection; None if the sender opened it."""
        message = batch.decode_membership(body)
        if message.node == sender:
            self.events.membership(sender, message.body, dialled)
        else:
            self.count_drop("not_allowed")
            log.warning("dropped a message of %s in the name of another node", sender)

    def end(self, session: Session, error: RequestError) -> None:
        """Close a session and pass on the messages that it had not sent."""
        if session.lost is None:
            unsent = session.close(error)
            self.events.lost(session, unsent)
            session.unconfirmed_runs = []

    # ---- time and the end

    def _tick(self) -> None:
        self._timer = self.loop.call_later(CoarseClock.TICK_MS / 1000, self._tick)
        self.clock.move()
        try:
            self._sweep(self.loop.time())
        finally:  # the owner's tasks run in any case
            self.events.tick(self.clock.tick)

    def _sweep(self, now: float) -> None:
        for session in self.sessions():
            if session.waiting_asks:
                self.asks_timed_out += session.expire()
        for connection in list(self._outgoing.values()):
            connection.tick(now)
        if now - self._kept_alive_at >= KEEP_ALIVE_S:
            self._kept_alive_at = now
            for connection in self._outgoing.values():
                connection.session.keep_alive()
            self.incoming.sweep()
            self._end_idle_links(now)

    def _end_idle_links(self, now: float) -> None:
        """End the links to addresses that were asked while this node joined, and have no member."""
        members = self._members
        if members is None or self.node not in members:
            return
        for connection in list(self._outgoing.values()):
            session = connection.session
            idle = not session.busy
            is_member = connection.node in members and connection.node != self.node
            if not is_member and idle and now - connection.since > LINK_IDLE_S:
                session.closed_idle = True
                connection.transmit(batch.FrameType.BYE, 0, session.link.window.received, b"")
                self.end_connection(connection, NodeLost(f"{session.name} is no member"))

    def close(self) -> None:
        """Send BYE on every session and close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        self.departures.close()
        self.incoming.finish()
        for connection in list(self._outgoing.values()):
            connection.session.finish()
            connection.close()
        self._outgoing.clear()
        self._by_uid.clear()
        self.incoming.close()
        self.network.close()
