"""The sockets of one process and the sessions over them.

A node binds one ROUTER; whoever wants to talk to it connects a DEALER of its own. So between two
nodes there are two connections, one opened by each, and each is a full session: tells and asks go
out on the connection one has opened, answers come back on it. A client has only the connections
that it opens.

    HELLO ──> WELCOME      the session is open; on the same number after a break: both resend
          └─> REFUSED      another cluster, or another incarnation than the one that was meant
    other ──> UNKNOWN      a connection that has not said HELLO: say it

Who is dead is not decided here. A node learns it from membership and calls `drop`; a client has no
membership, so its links probe: when a connection breaks and a fresh one is *refused*, that process
is gone; when the peer stays silent for `SILENCE_S`, the session is given up, and the peer may live.

Source: docs/architecture.md; S1.2; C.32.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shardbus.errors import NodeLost, RemoteProtocolError, RequestError
from shardbus.ids import Address, NodeId
from shardbus.transport.allowance import Allowance
from shardbus.transport.asks import Clock, Unsent
from shardbus.transport.goodbyes import Goodbyes
from shardbus.transport.inbound import Inbound
from shardbus.transport.link import Link
from shardbus.transport.session import NUMBERED, SESSION_KINDS, Receiver, Session
from shardbus.transport.wiring import Door, Fate, Wiring, ZmqWiring
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    Hello,
    Kind,
    Membership,
    RefusedBody,
    Welcome,
    cluster_tag,
    decode_hello,
    decode_membership,
    encode_body,
    pack_header,
    read_header,
)

log = logging.getLogger("shardbus.link")

KEEP_ALIVE_S = 5.0
REMOVED_MAX = 10_000
"""So many dropped incarnations are remembered; the oldest are forgotten first."""
CLIENT_SILENCE_TICKS = 60_000 // Clock.TICK_MS
"""A client that says nothing for so long, not even that it lives, is forgotten."""


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
        wiring: Wiring | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.cluster, self.name, self.uid, self.node = cluster, name, uid, node
        self.receiver = receiver
        self.tag = cluster_tag(cluster)
        self.clock = Clock()
        self.allowance, self.goodbyes = allowance or Allowance(), Goodbyes(self)
        self.dropped_frames: dict[str, int] = {}
        """Frames that could not be used, by reason."""
        self.asks_timed_out = 0
        self._on_open, self._on_lost = on_open, on_lost
        self._on_client, self._on_membership = on_client, on_membership
        self._on_leaving, self._on_refused, self._on_tick = on_leaving, on_refused, on_tick
        self.wiring = wiring or ZmqWiring()
        self._door: Door | None = None
        self._links: dict[tuple[Address, NodeId | None], Link] = {}
        """By address and the incarnation that is meant, None for any. The link to a dead one stays
        beside that to its successor until somebody says that it is dead."""
        self._inbound: dict[str, Inbound] = {}
        self._by_identity: dict[bytes, Inbound] = {}
        self._removed: dict[str, None] = {}
        self._leaves, self._serial = False, 0
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._kept = 0.0

    def start(self, host: str | None = None, port: int = 0) -> None:
        """Begin; with a host, listen there.

        Raises:
            ConfigError: the port is taken.
        """
        self.loop = asyncio.get_running_loop()
        self.wiring.open(self.loop)
        if host is not None:
            self._door = self.wiring.listen(host, port, self.name, self._on_parts)
        self._began = self._kept = self.loop.time()
        self._timer = self.loop.call_later(Clock.TICK_MS / 1000, self._tick)

    # ---- sessions

    def session_to(
        self, address: Address, node: NodeId | None = None, *, probe: bool = False
    ) -> Session:
        """The session we opened to this address, opened now if there is none. With a `node`, no
        other incarnation will do. `probe`: find out by ourselves when the process is gone."""
        link = self._link(address, node)
        if link is None:
            self._serial += 1
            link = Link(self, address, node, self._serial, probe=probe)
            self._links[address, node] = link
            link.start()
            self.goodbyes.greet(link.session)
        return link.session

    def _link(self, address: Address, node: NodeId | None) -> Link | None:
        """The link that will do for this incarnation; without one, the newest to that address."""
        if node is None:
            here = [link for link in self._links.values() if link.address == address]
            return here[-1] if here else None
        link = self._links.get((address, node)) or self._links.get((address, None))
        return link if link is not None and link.node in (None, node) else None

    def drop(self, node: NodeId, error: RequestError) -> None:
        """This incarnation is gone, and does not come back: end every session with it."""
        self._removed[str(node)] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        self.end(node, error)

    def end(self, node: NodeId, error: RequestError) -> None:
        """End every session with this incarnation; it may begin new ones."""
        for link in list(self._links.values()):
            if link.address == node.address and link.node in (None, node):
                self.lose(link, error)
        inbound = self._inbound.pop(str(node), None)
        if inbound is not None:
            self._by_identity.pop(inbound.identity, None)
            self._end(inbound.session, error)

    def watch(self, node: NodeId) -> bool:
        """Membership says no more about this node: find out by ourselves when its process ends.
        False: nothing connects us with it."""
        watched = [link for link in self._links.values() if link.node == node]
        for link in watched:
            link.watch()
        return bool(watched)

    def lose(self, link: Link, error: RequestError, *, gone: bool = True) -> None:
        """A link has ended; `gone`: and so has, for certain, the process at its other end."""
        link.session.gone = gone
        if self._links.get((link.address, link.meant)) is link:
            del self._links[link.address, link.meant]
        link.close()
        self._end(link.session, error)

    def announce_leaving(self) -> None:
        """Ask clients to finish what they have with us and to part; those who come later, too."""
        self._leaves = True
        for inbound in self._inbound.values():
            self._ask_to_part(inbound)

    def _ask_to_part(self, inbound: Inbound) -> None:
        if self._leaves and inbound.hello.node is None:
            self._transmit(inbound.identity, inbound.uid, Kind.LEAVING, 0, 0, b"")

    @property
    def clients(self) -> int:
        """Sessions of clients."""
        return sum(inbound.hello.node is None for inbound in self._inbound.values())

    def part(self, node: NodeId, in_use: Callable[[Session], bool]) -> bool:
        """Close the link to a node that leaves, once nothing is under way on it; whether it is
        closed."""
        parted = True
        for link in [link for link in self._links.values() if link.node == node]:
            session = link.session
            if in_use(session) or session.outstanding or session.unflushed or session.waiting_asks:
                parted = False
                continue
            link.transmit(Kind.BYE, 0, session.received, b"")
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

    def opened(self, link: Link) -> None:
        """A link was welcomed (again)."""
        if self._on_open is not None:
            self._on_open(link.session)

    @property
    def opened_here(self) -> list[Session]:
        """The sessions that we opened."""
        return [link.session for link in self._links.values()]

    def sessions(self) -> list[Session]:
        """Every session, opened by either side."""
        return self.opened_here + [inbound.session for inbound in self._inbound.values()]

    def _end(self, session: Session, error: RequestError) -> None:
        if session.lost is None:
            unsent = session.close(error)
            if self._on_lost is not None:
                self._on_lost(session, unsent)

    def membership(self, to: Address | NodeId, body: bytes) -> None:
        """Send a membership message outside of any session; it may be lost."""
        assert self.node is not None
        frame = encode_body(Membership(self.node, body))
        if isinstance(to, NodeId):
            inbound = self._inbound.get(str(to))
            if inbound is not None:
                self._transmit(inbound.identity, inbound.uid, Kind.MEMBERSHIP, 0, 0, frame)
                return
            to = to.address
        self.session_to(to)
        link = self._link(to, None)
        assert link is not None
        link.transmit(Kind.MEMBERSHIP, 0, 0, frame)

    def took_membership(self, body: bytes) -> None:
        """A MEMBERSHIP frame arrived."""
        if self._on_membership is not None:
            message = decode_membership(body)
            self._on_membership(message.node, message.body)

    def count_drop(self, reason: str) -> None:
        """A frame could not be used."""
        self.dropped_frames[reason] = self.dropped_frames.get(reason, 0) + 1

    # ---- the door

    def _transmit(
        self, identity: bytes, uid: int, kind: int, seq: int, ack: int, body: bytes
    ) -> bool:
        assert self._door is not None
        header = pack_header(PROTOCOL_VERSION, kind, self.tag, self.uid, uid, seq, ack)
        fate = self._door.send(identity, header, body)
        if fate is Fate.NO_WAY:
            return kind not in NUMBERED  # these wait until the peer connects again
        return fate is Fate.TAKEN

    def _on_parts(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 3:
                raise RemoteProtocolError(f"a message of {len(parts)} parts")
            self._on_frame(*parts)
        except RemoteProtocolError as e:
            self.count_drop("malformed")
            log.warning("dropped a frame: %s", e)

    def _on_frame(self, identity: bytes, head: bytes, body: bytes) -> None:
        header = read_header(head)
        if header.kind == Kind.MEMBERSHIP:
            self.took_membership(body)
            return
        if header.kind == Kind.HELLO:
            self._on_hello(identity, header.sender, header.receiver, header.ack, body)
            return
        inbound = self._by_identity.get(identity)
        if header.receiver != self.uid or header.cluster != self.tag or inbound is None:
            self.count_drop("no_session")
            if header.receiver != self.uid:
                self._refuse(identity, header.sender, "another incarnation lives here", stale=True)
            elif inbound is None and header.kind != Kind.BYE:
                self._transmit(identity, header.sender, Kind.UNKNOWN, 0, 0, b"")
            return
        inbound.heard = self.clock.tick
        session = inbound.session
        if header.kind in SESSION_KINDS:
            session.on_frame(header.kind, header.seq, header.ack, body)
            if session.torn:
                self._forget(inbound, NodeLost(f"{session.name} lacks what it acknowledged"))
        elif header.kind == Kind.BYE:
            self._forget(inbound, NodeLost(f"{session.name} has left"))

    def _on_hello(self, identity: bytes, uid: int, meant: int, ack: int, body: bytes) -> None:
        hello = decode_hello(body)
        if hello.cluster != self.cluster:
            why = f"this is cluster {self.cluster!r}, not {hello.cluster!r}"
            self._refuse(identity, uid, why, stale=False)
            return
        if meant not in (0, self.uid):
            self._refuse(identity, uid, "another incarnation lives here now", stale=True)
            return
        if hello.name in self._removed:
            self.count_drop("removed")  # no answer: it learns from gossip that it is out
            return
        inbound = self._inbound.get(hello.name)
        if inbound is not None and hello.session < inbound.hello.session:
            self.count_drop("late_hello")
            return
        if inbound is not None and inbound.hello.session < hello.session:
            self._forget(inbound, NodeLost(f"{hello.name} began a new session"))
            inbound = None
        fresh = inbound is None
        if inbound is None:
            inbound = self._accept(identity, uid, hello)
        self._by_identity.pop(inbound.identity, None)
        inbound.identity = identity
        self._by_identity[identity] = inbound
        inbound.heard = self.clock.tick
        assert self.node is not None
        self._transmit(
            identity,
            uid,
            Kind.WELCOME,
            0,
            inbound.session.received,
            encode_body(Welcome(self.node, fresh)),
        )
        self._ask_to_part(inbound)
        inbound.session.opened(ack)

    def _accept(self, identity: bytes, uid: int, hello: Hello) -> Inbound:
        inbound = Inbound(identity, uid, hello)

        def transmit(kind: int, seq: int, ack: int, frame: bytes) -> bool:
            return self._transmit(inbound.identity, inbound.uid, kind, seq, ack, frame)

        inbound.session = Session(hello.name, self.loop, self.clock, self.receiver, transmit)
        inbound.session.listens = hello.listens
        inbound.session.tag = hello.node or NodeId("client", 0, uid)
        self._inbound[hello.name] = inbound
        if hello.node is None and self._on_client is not None:
            self._on_client(inbound.session)
        return inbound

    def _refuse(self, identity: bytes, uid: int, reason: str, *, stale: bool) -> None:
        self._transmit(identity, uid, Kind.REFUSED, 0, 0, encode_body(RefusedBody(reason, stale)))

    def _forget(self, inbound: Inbound, error: RequestError) -> None:
        self._by_identity.pop(inbound.identity, None)
        if self._inbound.get(inbound.hello.name) is inbound:
            del self._inbound[inbound.hello.name]
        self._end(inbound.session, error)

    # ---- time and the end

    def _tick(self) -> None:
        now = self.loop.time()
        clock = self.clock
        clock.tick = int((now - self._began) * 1000) // Clock.TICK_MS
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
            for inbound in list(self._inbound.values()):
                if inbound.hello.node is None and clock.tick - inbound.heard > CLIENT_SILENCE_TICKS:
                    self._forget(inbound, NodeLost(f"{inbound.session.name} is silent"))
        self._timer = self.loop.call_later(Clock.TICK_MS / 1000, self._tick)

    def close(self) -> None:
        """Say goodbye on every session and let go of the sockets."""
        if self._timer is not None:
            self._timer.cancel()
        for inbound in self._inbound.values():
            inbound.session.finish()
        for link in list(self._links.values()):
            link.session.finish()
            link.close()
        self._links.clear()
        self._inbound.clear()
        self._by_identity.clear()
        if self._door is not None:
            self._door.close()
        self.wiring.close()
