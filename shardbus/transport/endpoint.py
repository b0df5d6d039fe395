"""The sockets of one process and the sessions over them.

A node binds one ROUTER; whoever wants to talk to it connects a DEALER of its own. So between two
nodes there are two connections, one opened by each, and each is a full session: tells and asks go
out on the connection one has opened, answers come back on it. A client has only the connections
that it opens.

`link` holds the first kind, `visitors` the second.

Who is dead is not decided here. A node learns it from membership and calls `drop`; a client has no
membership, so its links probe: when a connection breaks and a fresh one is *refused*, that process
is gone; when the peer stays silent for `SILENCE_S`, the session is given up, and the peer may live.

Source: docs/architecture.md; S1.2; C.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardbus.errors import NodeLost, RequestError
from shardbus.ids import Address, NodeId
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.departures import DepartureNotices
from shardbus.transport.fork_guard import guard
from shardbus.transport.incoming import IncomingSessions
from shardbus.transport.network import Network, ZmqNetwork
from shardbus.transport.outgoing import OutgoingConnection
from shardbus.transport.receiver import Receiver
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.session import Session
from shardbus.transport.window import Transmit
from shardbus.wire.batch import (
    FrameType,
    MembershipFrame,
    cluster_tag,
    decode_membership,
    encode_body,
)

KEEP_ALIVE_S = 5.0


class Endpoint:
    """See the module. All methods belong to the event loop's thread."""

    def __init__(
        self,
        cluster: str,
        name: str,
        uid: int,
        receiver: Receiver,
        *,
        node: NodeId | None = None,
        on_open: Callable[[Session], None] | None = None,
        on_lost: Callable[[Session, list[Unsent]], None] | None = None,
        on_client: Callable[[Session], None] | None = None,
        on_leaving: Callable[[Session], None] | None = None,
        on_refused: Callable[[str], None] | None = None,
        on_tick: Callable[[], None] | None = None,
        on_membership: Callable[[NodeId, bytes], None] | None = None,
        network: Network | None = None,
        send_buffer_limit: SendBufferLimit | None = None,
    ) -> None:
        guard(self)
        self.cluster, self.name, self.uid, self.node = cluster, name, uid, node
        self.receiver = receiver
        self.tag = cluster_tag(cluster)
        self.clock = CoarseClock()
        self.send_buffer_limit, self.departures = (
            send_buffer_limit or SendBufferLimit(),
            DepartureNotices(self),
        )
        self.dropped_frames: dict[str, int] = {}
        """Frames that could not be used, by reason."""
        self.asks_timed_out = 0
        self._on_open, self._on_lost = on_open, on_lost
        self._on_client, self._on_membership = on_client, on_membership
        self._on_leaving, self._on_refused, self._on_tick = on_leaving, on_refused, on_tick
        self.network = network or ZmqNetwork()
        self.incoming = IncomingSessions(self)
        self._links: dict[tuple[Address, NodeId | None], OutgoingConnection] = {}
        """By address and the incarnation that is meant, None for any. The link to a dead one stays
        beside that to its successor until somebody says that it is dead."""
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._kept = 0.0

    def start(self, host: str | None = None, port: int = 0) -> None:
        """Begin; with a host, listen there.

        Raises:
            ConfigError: the port is taken.
        """
        self.loop = asyncio.get_running_loop()
        self.network.open(self.loop)
        if host is not None:
            incoming = self.incoming
            incoming.door = self.network.listen(
                host, port, self.name, incoming.on_parts, self.count_drop
            )
        self.clock.start(self.loop.time)
        self._kept = self.loop.time()
        self._timer = self.loop.call_later(CoarseClock.TICK_MS / 1000, self._tick)

    # ---- sessions

    def session_to(
        self, address: Address, node: NodeId | None = None, *, probe: bool = False
    ) -> Session:
        """The session we opened to this address, opened now if there is none. With a `node`, no
        other incarnation will do. `probe`: find out by ourselves when the process is gone."""
        link = self._link(address, node)
        if link is None:
            self._serial += 1
            link = OutgoingConnection(self, address, node, self._serial, probe=probe)
            self._links[address, node] = link
            link.start()
            self.departures.greet(link.session)
        return link.session

    def _link(self, address: Address, node: NodeId | None) -> OutgoingConnection | None:
        """The link that will do for this incarnation; without one, the newest to that address."""
        if node is None:
            here = [link for link in self._links.values() if link.address == address]
            return here[-1] if here else None
        link = self._links.get((address, node)) or self._links.get((address, None))
        return link if link is not None and link.node in (None, node) else None

    def drop(self, node: NodeId, error: RequestError) -> None:
        """This incarnation is gone, and does not come back: end every session with it."""
        self.give_up(node, error)
        self.incoming.remove(node, error)

    def give_up(self, node: NodeId, error: RequestError) -> None:
        """End every session with this incarnation; it may begin new ones."""
        for link in list(self._links.values()):
            if link.address == node.address and link.node in (None, node):
                self.lose(link, error)
        self.incoming.part_from(node, error)

    def watch(self, node: NodeId) -> bool:
        """Membership says no more about this node: find out by ourselves when its process ends.
        False: nothing connects us with it."""
        watched = [link for link in self._links.values() if link.node == node]
        for link in watched:
            link.watch()
        return bool(watched)

    def lose(self, link: OutgoingConnection, error: RequestError, *, gone: bool = True) -> None:
        """A link has ended; `gone`: and so has, for certain, the process at its other end."""
        link.session.gone = gone
        if self._links.get((link.address, link.meant)) is link:
            del self._links[link.address, link.meant]
        link.close()
        self.end(link.session, error)

    def announce_leaving(self) -> None:
        """Ask clients to finish what they have with us and to part; those who come later, too."""
        self.incoming.ask_to_part()

    @property
    def clients(self) -> int:
        """Sessions of clients."""
        return self.incoming.clients

    def part(self, node: NodeId, in_use: Callable[[Session], bool]) -> bool:
        """Close the link to a node that leaves, once nothing is under way on it; whether it is
        closed."""
        parted = True
        for link in [link for link in self._links.values() if link.node == node]:
            session = link.session
            if in_use(session) or session.outstanding or session.unflushed or session.waiting_asks:
                parted = False
                continue
            link.transmit(FrameType.BYE, 0, session.received, b"")
            session.parted = True
            self.lose(link, NodeLost(f"{session.name} has left"))
        return parted

    def leaving(self, session: Session) -> None:
        """The node at the other end of a link leaves."""
        if self._on_leaving is not None:
            self._on_leaving(session)

    def refused(self, reason: str) -> None:
        """A node does not take us."""
        if self._on_refused is not None:
            self._on_refused(reason)

    def opened(self, link: OutgoingConnection) -> None:
        """A link was welcomed (again)."""
        if self._on_open is not None:
            self._on_open(link.session)

    @property
    def opened_here(self) -> list[Session]:
        """The sessions that we opened."""
        return [link.session for link in self._links.values()]

    def sessions(self) -> list[Session]:
        """Every session, opened by either side."""
        return self.opened_here + [one.session for one in self.incoming.by_name.values()]

    def session(self, name: str, transmit: Transmit) -> Session:
        """A session of this process, over a way that frames take."""
        return Session(name, self.loop, self.clock, self.receiver, transmit)

    def came(self, client: Session) -> None:
        """A client has opened a session."""
        if self._on_client is not None:
            self._on_client(client)

    def end(self, session: Session, error: RequestError) -> None:
        """A session is over: say what becomes of what it holds."""
        if session.lost is None:
            unsent = session.close(error)
            if self._on_lost is not None:
                self._on_lost(session, unsent)

    def membership(self, to: Address | NodeId, body: bytes) -> None:
        """Send a membership message outside of any session; it may be lost."""
        assert self.node is not None
        frame = encode_body(MembershipFrame(self.node, body))
        if isinstance(to, NodeId):
            inbound = self.incoming.by_name.get(str(to))
            if inbound is not None:
                self.incoming.transmit(
                    inbound.identity, inbound.uid, FrameType.MEMBERSHIP, 0, 0, frame
                )
                return
            to = to.address
        self.session_to(to)
        link = self._link(to, None)
        assert link is not None
        link.transmit(FrameType.MEMBERSHIP, 0, 0, frame)

    def took_membership(self, body: bytes) -> None:
        """A MEMBERSHIP frame arrived."""
        if self._on_membership is not None:
            message = decode_membership(body)
            self._on_membership(message.node, message.body)

    def count_drop(self, reason: str) -> None:
        """A frame could not be used."""
        self.dropped_frames[reason] = self.dropped_frames.get(reason, 0) + 1

    # ---- time and the end

    def _tick(self) -> None:
        now = self.loop.time()
        self.clock.move()
        for session in self.sessions():
            if session.waiting_asks:
                self.asks_timed_out += session.expire()
        for link in list(self._links.values()):
            link.tick(now)
        if self._on_tick is not None:
            self._on_tick()
        if now - self._kept >= KEEP_ALIVE_S:
            self._kept = now
            for link in self._links.values():
                link.session.keep_alive()
            self.incoming.sweep()
        self._timer = self.loop.call_later(CoarseClock.TICK_MS / 1000, self._tick)

    def close(self) -> None:
        """Say goodbye on every session and let go of the sockets."""
        if self._timer is not None:
            self._timer.cancel()
        self.incoming.finish()
        for link in list(self._links.values()):
            link.session.finish()
            link.close()
        self._links.clear()
        self.incoming.close()
        self.network.close()
