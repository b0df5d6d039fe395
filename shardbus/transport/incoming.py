"""Sessions that other processes opened to this one.

    HELLO ──> WELCOME      the session is open; with the number of a session before: both resend
          └─> REFUSED      another cluster, or another incarnation than the wanted one
    other ──> UNKNOWN      the connection has not sent HELLO: it must

A connection carries one session: a HELLO under another name on the same connection ends the session
it had. So open connections bound the sessions, and `SESSIONS_MAX` bounds those that are kept
because their peer may reconnect.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

from typing import Protocol

from shardbus.errors import NodeLost, RemoteProtocolError, RequestError
from shardbus.ids import NodeId
from shardbus.transport.asks import CoarseClock
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Listener, SendResult
from shardbus.transport.session import NUMBERED, SESSION_FRAMES, Session
from shardbus.transport.window import Transmit
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

SESSIONS_MAX = 10_000
REMOVED_MAX = 10_000
"""Removed incarnations that are remembered; the oldest are forgotten first."""
CLIENT_SILENCE_TICKS = CoarseClock.ticks(60.0)
"""A client that sends nothing for 60 s, not even a keep-alive, is forgotten."""


class IncomingOwner(Protocol):
    """The endpoint, as its incoming sessions use it and call it back."""

    cluster: str
    uid: int
    node: NodeId | None
    tag: int
    clock: CoarseClock

    def new_session(self, name: str, transmit: Transmit) -> Session: ...
    def end(self, session: Session, error: RequestError) -> None: ...
    def on_client(self, session: Session) -> None: ...
    def on_membership(self, body: bytes) -> None: ...
    def count_drop(self, reason: str) -> None: ...


class IncomingSession:
    """A session that another process opened. `identity`, the id of its connection, changes with
    each reconnect."""

    __slots__ = ("frame_tick", "hello", "identity", "session", "uid")

    def __init__(self, identity: bytes, uid: int, hello: Hello) -> None:
        self.identity, self.uid, self.hello = identity, uid, hello
        self.frame_tick = 0
        """When its last frame arrived."""
        self.session: Session


class IncomingSessions:
    """All incoming sessions of one endpoint. The endpoint sets `listener` when it listens."""

    def __init__(self, owner: IncomingOwner) -> None:
        self.listener: Listener | None = None
        self.by_name: dict[str, IncomingSession] = {}
        self._owner = owner
        self._by_identity: dict[bytes, IncomingSession] = {}
        self._removed: dict[str, None] = {}
        self._leaving = False

    @property
    def clients(self) -> int:
        """Number of sessions of clients."""
        return sum(inbound.hello.node is None for inbound in self.by_name.values())

    def transmit(
        self, identity: bytes, uid: int, kind: int, seq: int, ack: int, body: bytes
    ) -> bool:
        """Hand one frame to the listener. Returns False if it has no room now."""
        assert self.listener is not None
        owner = self._owner
        header = pack_header(PROTOCOL_VERSION, kind, owner.tag, owner.uid, uid, seq, ack)
        result = self.listener.send(identity, header, body)
        if result is SendResult.UNROUTABLE:
            return kind not in NUMBERED  # these wait until the peer connects again
        return result is SendResult.TAKEN

    # ---- frames

    def on_parts(self, parts: list[bytes]) -> None:
        """A message arrived at the listener."""
        try:
            if len(parts) != 3:
                raise RemoteProtocolError(f"a message of {len(parts)} parts")
            self._on_frame(*parts)
        except RemoteProtocolError as e:
            self._owner.count_drop("malformed")
            log.warning("dropped a frame: %s", e)

    def _on_frame(self, identity: bytes, head: bytes, body: bytes) -> None:
        owner, header = self._owner, read_header(head)
        of_session = header.kind in SESSION_FRAMES
        if not of_session and header.kind == FrameType.MEMBERSHIP:
            owner.on_membership(body)
            return
        if not of_session and header.kind == FrameType.HELLO:
            self._on_hello(identity, header.sender, header.receiver, header.ack, body)
            return
        inbound = self._by_identity.get(identity)
        if header.receiver != owner.uid or header.cluster != owner.tag or inbound is None:
            owner.count_drop("no_session")
            if header.receiver != owner.uid:
                self._refuse(identity, header.sender, "another incarnation lives here", stale=True)
            elif inbound is None and header.kind != FrameType.BYE:
                self.transmit(identity, header.sender, FrameType.UNKNOWN, 0, 0, b"")
            return
        inbound.frame_tick = owner.clock.tick
        session = inbound.session
        if of_session:
            session.on_frame(header.kind, header.seq, header.ack, body)
            if session.peer_lost_data:
                self.forget(inbound, NodeLost(f"{session.name} lacks what it acknowledged"))
        elif header.kind == FrameType.BYE:
            self.forget(inbound, NodeLost(f"{session.name} has left"))

    def _on_hello(self, identity: bytes, uid: int, meant: int, ack: int, body: bytes) -> None:
        owner, hello = self._owner, decode_hello(body)
        if hello.cluster != owner.cluster:
            reason = f"this is cluster {owner.cluster!r}, not {hello.cluster!r}"
            self._refuse(identity, uid, reason, stale=False)
            return
        if meant not in (0, owner.uid):
            self._refuse(identity, uid, "another incarnation lives here now", stale=True)
            return
        if hello.name in self._removed:
            owner.count_drop("removed")  # no answer: it learns of its removal by gossip
            return
        inbound = self.by_name.get(hello.name)
        if inbound is not None and hello.session < inbound.hello.session:
            owner.count_drop("late_hello")
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
                owner.count_drop("too_many_sessions")  # no answer: it sends HELLO again
                return
            inbound = self._accept(identity, uid, hello)
        self._by_identity.pop(inbound.identity, None)
        inbound.identity = identity
        self._by_identity[identity] = inbound
        inbound.frame_tick = owner.clock.tick
        assert owner.node is not None
        welcome = encode_body(LinkWelcome(owner.node, fresh))
        self.transmit(identity, uid, FrameType.WELCOME, 0, inbound.session.received, welcome)
        self._announce_leaving_to(inbound)
        inbound.session.opened(ack)

    def _accept(self, identity: bytes, uid: int, hello: Hello) -> IncomingSession:
        inbound = IncomingSession(identity, uid, hello)

        def transmit(kind: int, seq: int, ack: int, frame: bytes) -> bool:
            return self.transmit(inbound.identity, inbound.uid, kind, seq, ack, frame)

        inbound.session = self._owner.new_session(hello.name, transmit)
        inbound.session.wants_drop_reports = hello.listens
        inbound.session.tag = hello.node or NodeId("client", 0, uid)
        self.by_name[hello.name] = inbound
        if hello.node is None:
            self._owner.on_client(inbound.session)
        return inbound

    def _refuse(self, identity: bytes, uid: int, reason: str, *, stale: bool) -> None:
        self.transmit(
            identity, uid, FrameType.REFUSED, 0, 0, encode_body(RefusedBody(reason, stale))
        )

    # ---- the end of sessions

    def remove(self, node: NodeId, error: RequestError) -> None:
        """This incarnation is gone for good: end its session, and accept none."""
        self._removed[str(node)] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        self.end_session(node, error)

    def end_session(self, node: NodeId, error: RequestError) -> None:
        """End the session that this incarnation has opened."""
        inbound = self.by_name.get(str(node))
        if inbound is not None:
            self.forget(inbound, error)

    def forget(self, inbound: IncomingSession, error: RequestError) -> None:
        """End a session and forget its numbers."""
        if self._by_identity.get(inbound.identity) is inbound:
            del self._by_identity[inbound.identity]
        if self.by_name.get(inbound.hello.name) is inbound:
            del self.by_name[inbound.hello.name]
        self._owner.end(inbound.session, error)

    def sweep(self) -> None:
        """Forget silent clients."""
        tick = self._owner.clock.tick
        for inbound in list(self.by_name.values()):
            if inbound.hello.node is None and tick - inbound.frame_tick > CLIENT_SILENCE_TICKS:
                self.forget(inbound, NodeLost(f"{inbound.session.name} is silent"))

    def announce_leaving(self) -> None:
        """Ask clients, also those that connect later, to finish what they have with this node and
        to close their sessions."""
        self._leaving = True
        for inbound in self.by_name.values():
            self._announce_leaving_to(inbound)

    def _announce_leaving_to(self, inbound: IncomingSession) -> None:
        if self._leaving and inbound.hello.node is None:
            self.transmit(inbound.identity, inbound.uid, FrameType.LEAVING, 0, 0, b"")

    def finish(self) -> None:
        """Send BYE on every session."""
        for inbound in self.by_name.values():
            inbound.session.finish()

    def close(self) -> None:
        """Forget every session and close the listener."""
        self.by_name.clear()
        self._by_identity.clear()
        if self.listener is not None:
            self.listener.close()
