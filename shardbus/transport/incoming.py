"""Sessions that other processes opened to our ROUTER.

    HELLO ──> WELCOME      the session is open; on the same number after a break: both resend
          └─> REFUSED      another cluster, or another incarnation than the one that was meant
    other ──> UNKNOWN      a connection that has not said HELLO: say it

A connection carries one session: whoever says HELLO under another name on the same one has ended
what he had there. So sessions are bounded by connections while those stand, and `SESSIONS_MAX`
bounds those that are kept because their peer may come back.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.errors import NodeLost, RemoteProtocolError, RequestError
from shardbus.ids import NodeId
from shardbus.transport.asks import CoarseClock
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Listener, SendResult
from shardbus.transport.session import NUMBERED, SESSION_KINDS, Session
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    FrameType,
    Hello,
    LinkWelcome,
    RefusedBody,
    decode_hello,
    encode_body,
    pack_header,
    read_header,
)

if TYPE_CHECKING:
    from shardbus.transport.endpoint import Endpoint


SESSIONS_MAX = 10_000
REMOVED_MAX = 10_000
"""So many dropped incarnations are remembered; the oldest are forgotten first."""
CLIENT_SILENCE_TICKS = 60_000 // CoarseClock.TICK_MS
"""A client that says nothing for so long, not even that it lives, is forgotten."""


class IncomingSession:
    """A session that another process opened to our ROUTER. Its routing id changes when it connects
    anew."""

    __slots__ = ("heard", "hello", "identity", "session", "uid")

    def __init__(self, identity: bytes, uid: int, hello: Hello) -> None:
        self.identity, self.uid, self.hello = identity, uid, hello
        self.heard = 0
        self.session: Session


class IncomingSessions:
    """See the module. `door` is set once it is open."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.door: Listener | None = None
        self.by_name: dict[str, IncomingSession] = {}
        self._endpoint = endpoint
        self._by_identity: dict[bytes, IncomingSession] = {}
        self._removed: dict[str, None] = {}
        self._leaves = False

    @property
    def clients(self) -> int:
        """Sessions of clients."""
        return sum(inbound.hello.node is None for inbound in self.by_name.values())

    def transmit(
        self, identity: bytes, uid: int, kind: int, seq: int, ack: int, body: bytes
    ) -> bool:
        """Hand one frame to the door; False if it has no room now."""
        assert self.door is not None
        endpoint = self._endpoint
        header = pack_header(PROTOCOL_VERSION, kind, endpoint.tag, endpoint.uid, uid, seq, ack)
        fate = self.door.send(identity, header, body)
        if fate is SendResult.NO_WAY:
            return kind not in NUMBERED  # these wait until the peer connects again
        return fate is SendResult.TAKEN

    # ---- what comes

    def on_parts(self, parts: list[bytes]) -> None:
        """A message came by the door."""
        try:
            if len(parts) != 3:
                raise RemoteProtocolError(f"a message of {len(parts)} parts")
            self._on_frame(*parts)
        except RemoteProtocolError as e:
            self._endpoint.count_drop("malformed")
            log.warning("dropped a frame: %s", e)

    def _on_frame(self, identity: bytes, head: bytes, body: bytes) -> None:
        endpoint, header = self._endpoint, read_header(head)
        of_session = header.kind in SESSION_KINDS
        if not of_session and header.kind == FrameType.MEMBERSHIP:
            endpoint.took_membership(body)
            return
        if not of_session and header.kind == FrameType.HELLO:
            self._on_hello(identity, header.sender, header.receiver, header.ack, body)
            return
        inbound = self._by_identity.get(identity)
        if header.receiver != endpoint.uid or header.cluster != endpoint.tag or inbound is None:
            endpoint.count_drop("no_session")
            if header.receiver != endpoint.uid:
                self._refuse(identity, header.sender, "another incarnation lives here", stale=True)
            elif inbound is None and header.kind != FrameType.BYE:
                self.transmit(identity, header.sender, FrameType.UNKNOWN, 0, 0, b"")
            return
        inbound.heard = endpoint.clock.tick
        session = inbound.session
        if of_session:
            session.on_frame(header.kind, header.seq, header.ack, body)
            if session.torn:
                self.forget(inbound, NodeLost(f"{session.name} lacks what it acknowledged"))
        elif header.kind == FrameType.BYE:
            self.forget(inbound, NodeLost(f"{session.name} has left"))

    def _on_hello(self, identity: bytes, uid: int, meant: int, ack: int, body: bytes) -> None:
        endpoint, hello = self._endpoint, decode_hello(body)
        if hello.cluster != endpoint.cluster:
            reason = f"this is cluster {endpoint.cluster!r}, not {hello.cluster!r}"
            self._refuse(identity, uid, reason, stale=False)
            return
        if meant not in (0, endpoint.uid):
            self._refuse(identity, uid, "another incarnation lives here now", stale=True)
            return
        if hello.name in self._removed:
            endpoint.count_drop("removed")  # no answer: it learns from gossip that it is out
            return
        inbound = self.by_name.get(hello.name)
        if inbound is not None and hello.session < inbound.hello.session:
            endpoint.count_drop("late_hello")
            return
        if inbound is not None and inbound.hello.session < hello.session:
            self.forget(inbound, NodeLost(f"{hello.name} began a new session"))
            inbound = None
        before = self._by_identity.get(identity)
        if before is not None and before is not inbound:
            self.forget(before, NodeLost(f"{before.session.name} calls itself {hello.name}"))
        fresh = inbound is None
        if inbound is None:
            if len(self.by_name) >= SESSIONS_MAX:
                endpoint.count_drop("too_many_sessions")  # no answer: it asks again
                return
            inbound = self._accept(identity, uid, hello)
        self._by_identity.pop(inbound.identity, None)
        inbound.identity = identity
        self._by_identity[identity] = inbound
        inbound.heard = endpoint.clock.tick
        assert endpoint.node is not None
        welcome = encode_body(LinkWelcome(endpoint.node, fresh))
        self.transmit(identity, uid, FrameType.WELCOME, 0, inbound.session.received, welcome)
        self._ask_to_part(inbound)
        inbound.session.opened(ack)

    def _accept(self, identity: bytes, uid: int, hello: Hello) -> IncomingSession:
        inbound = IncomingSession(identity, uid, hello)

        def transmit(kind: int, seq: int, ack: int, frame: bytes) -> bool:
            return self.transmit(inbound.identity, inbound.uid, kind, seq, ack, frame)

        inbound.session = self._endpoint.session(hello.name, transmit)
        inbound.session.listens = hello.listens
        inbound.session.tag = hello.node or NodeId("client", 0, uid)
        self.by_name[hello.name] = inbound
        if hello.node is None:
            self._endpoint.came(inbound.session)
        return inbound

    def _refuse(self, identity: bytes, uid: int, reason: str, *, stale: bool) -> None:
        self.transmit(
            identity, uid, FrameType.REFUSED, 0, 0, encode_body(RefusedBody(reason, stale))
        )

    # ---- who goes

    def remove(self, node: NodeId, error: RequestError) -> None:
        """This incarnation is gone, and does not come back."""
        self._removed[str(node)] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        self.part_from(node, error)

    def part_from(self, node: NodeId, error: RequestError) -> None:
        """End what this incarnation has opened here."""
        inbound = self.by_name.get(str(node))
        if inbound is not None:
            self.forget(inbound, error)

    def forget(self, inbound: IncomingSession, error: RequestError) -> None:
        """End a session."""
        if self._by_identity.get(inbound.identity) is inbound:
            del self._by_identity[inbound.identity]
        if self.by_name.get(inbound.hello.name) is inbound:
            del self.by_name[inbound.hello.name]
        self._endpoint.end(inbound.session, error)

    def sweep(self) -> None:
        """Forget clients that are silent."""
        tick = self._endpoint.clock.tick
        for inbound in list(self.by_name.values()):
            if inbound.hello.node is None and tick - inbound.heard > CLIENT_SILENCE_TICKS:
                self.forget(inbound, NodeLost(f"{inbound.session.name} is silent"))

    def ask_to_part(self) -> None:
        """Ask clients to finish what they have with us and to part; those who come later, too."""
        self._leaves = True
        for inbound in self.by_name.values():
            self._ask_to_part(inbound)

    def _ask_to_part(self, inbound: IncomingSession) -> None:
        if self._leaves and inbound.hello.node is None:
            self.transmit(inbound.identity, inbound.uid, FrameType.LEAVING, 0, 0, b"")

    def finish(self) -> None:
        """Say goodbye on every session."""
        for inbound in self.by_name.values():
            inbound.session.finish()

    def close(self) -> None:
        """Close the door."""
        self.by_name.clear()
        self._by_identity.clear()
        if self.door is not None:
            self.door.close()
