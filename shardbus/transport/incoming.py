"""Sessions that other processes opened to this one.

    HELLO ──> WELCOME      the session is open; with the number of a session before: both resend
          └─> REFUSED      another cluster, another incarnation than the one named, or a name that
                           the sender cannot prove
    other ──> UNKNOWN      the connection has not sent HELLO: it must

HELLO is authorized once, and fixes what the session may send (`permissions`). Only the process that
has the name can send a HELLO in it, so a name has one session.

A connection carries one session: a HELLO under another name on the same connection ends the session
it had. So open connections bound the sessions. Those that are kept because their peer may reconnect
have bounds by role, so that neither clients nor unknown nodes shut the other out:

    clients        over `CLIENTS_MAX`, an idle one gives way; without an idle one, HELLO gets no
                   answer, and the client repeats it. When descriptors are short, a new client is
                   REFUSED as long as that lasts, and those that have a session keep it
    unknown nodes  over `NEWCOMERS_MAX`, the oldest gives way: it has nothing under way, and says
                   HELLO again
    members        are few

A leaving node waits for its clients, but not for one without a connection: it has failed, if it
does not connect again within `GONE_TICKS`. It opens no session to a client that connects to it by
name, and so has messages for it: the node may no longer receive where these go. LEAVING is the
answer, and the client takes another way. A client that takes any node is welcomed: it may find no
other. So is one that has a session here and begins a new one: its earlier messages may still be
forwarded, and nothing may overtake them.

A process that is silent for `SILENCE_TICKS` is forgotten, and so is a node that has not become a
member within `NEWCOMER_TICKS`.

Source: docs/architecture.md; docs/security.md; C.32.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from shardbus.errors import NodeLost, RemoteProtocolError, RequestError
from shardbus.ids import NodeId
from shardbus.transport.asks import CoarseClock
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.link import NUMBERED, SESSION_FRAMES
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Listener, SendResult
from shardbus.transport.permissions import FRAMES, NODE, Authorize, Permissions, Role, uid_of
from shardbus.transport.session import Session
from shardbus.transport.window import Transmit
from shardbus.wire.batch import (
    DROP_REPORTS,
    PROTOCOL_VERSION,
    SESSION_FEATURES,
    SESSION_VERSIONS,
    FrameType,
    Hello,
    LinkWelcome,
    RefusedBody,
    decode_hello,
    encode_body,
    pack_header,
    read_header,
)

CLIENTS_MAX = 10_000
NEWCOMERS_MAX = 1000
TRIES = 16
"""Clients that are checked for an idle one at each HELLO over the bound."""
REMOVED_MAX = 10_000
"""Removed incarnations that are remembered; the oldest are forgotten first."""
SILENCE_TICKS = CoarseClock.ticks(60.0)
"""A client or unknown node that sends nothing for 60 s, not even a keep-alive, is forgotten."""
IDLE_TICKS = CoarseClock.ticks(12.0)
"""A client that sends nothing for two intervals of keep-alives gives way to others."""
NEWCOMER_TICKS = CoarseClock.ticks(300.0)
GONE_TICKS = CoarseClock.ticks(1.0)
"""For a client to connect again to a leaving node. A living one tries every 0.05 s at first."""

CARRY_NOTHING = (FrameType.ACK, FrameType.BYE)
"""Frames that lose nothing without a session: a question who answers here, and a farewell."""


class IncomingOwner(Protocol):
    """The endpoint, as its incoming sessions use it and call it back."""

    cluster: str
    uid: int
    node: NodeId | None
    tag: int
    clock: CoarseClock
    authorize: Authorize
    events: EndpointEvents

    def new_session(self, name: str, transmit: Transmit) -> Session: ...
    def end(self, session: Session, error: RequestError) -> None: ...
    def is_member(self, node: NodeId) -> bool: ...
    def on_membership(self, sender: NodeId, body: bytes) -> None: ...
    def count_drop(self, reason: str) -> None: ...


class IncomingSession:
    """A session that another process opened. `identity`, the id of its connection, changes with
    each reconnect."""

    __slots__ = ("cut_tick", "frame_tick", "hello", "identity", "opened_tick", "session", "uid")

    def __init__(self, identity: bytes, uid: int, hello: Hello, tick: int) -> None:
        self.identity, self.uid, self.hello = identity, uid, hello
        self.frame_tick = self.opened_tick = tick
        """When its last frame arrived, and the first."""
        self.cut_tick: int | None = None
        """When a leaving node found that it has no connection."""
        self.session: Session


class IncomingSessions:
    """All incoming sessions of one endpoint. The endpoint sets `listener` when it listens."""

    def __init__(self, owner: IncomingOwner) -> None:
        self.listener: Listener | None = None
        self.by_name: dict[str, IncomingSession] = {}
        self._owner = owner
        self._by_identity: dict[bytes, IncomingSession] = {}
        self._by_role: dict[Role, dict[str, IncomingSession]] = {role: {} for role in Role}
        """Sessions by role and name; the oldest first."""
        self._removed: dict[str, None] = {}
        self._leaving = False

    @property
    def clients(self) -> int:
        """Number of sessions of clients, without those that are gone while this node leaves."""
        latest = self._owner.clock.tick - GONE_TICKS
        sessions = self._by_role[Role.CLIENT].values()
        return sum(inbound.cut_tick is None or inbound.cut_tick > latest for inbound in sessions)

    def transmit(
        self, identity: bytes, uid: int, kind: int, seq: int, ack: int, body: bytes
    ) -> bool:
        """Hand one frame to the listener. Returns False if it has no room now."""
        result = self._send(identity, uid, kind, seq, ack, body)
        if result is SendResult.TAKEN:
            return True
        # Numbered frames wait until the peer connects again.
        return result is SendResult.UNROUTABLE and kind not in NUMBERED

    def _send(
        self, identity: bytes, uid: int, kind: int, seq: int, ack: int, body: bytes
    ) -> SendResult:
        assert self.listener is not None
        owner = self._owner
        header = pack_header(PROTOCOL_VERSION, kind, owner.tag, owner.uid, uid, seq, ack)
        return self.listener.send(identity, header, body)

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
        if header.kind == FrameType.HELLO:
            self._on_hello(identity, header.sender, header.receiver, header.ack, body)
            return
        inbound = self._by_identity.get(identity)
        if (
            inbound is None
            or header.receiver != owner.uid
            or header.cluster != owner.tag
            or header.sender != inbound.uid
        ):
            if inbound is not None or header.kind not in CARRY_NOTHING:
                owner.count_drop("no_session")
            if header.receiver != owner.uid:
                self._refuse(identity, header.sender, "another incarnation lives here", stale=True)
            elif inbound is None and header.kind != FrameType.BYE:
                self.transmit(identity, header.sender, FrameType.UNKNOWN, 0, 0, b"")
            return
        inbound.frame_tick = owner.clock.tick
        session, kind = inbound.session, header.kind
        if kind not in FRAMES[session.permissions.role]:
            self._not_allowed(session, kind)
        elif kind in SESSION_FRAMES:
            session.on_frame(kind, header.seq, header.ack, body)
            if session.link.peer_lost_data:
                self.forget(inbound, NodeLost(f"{session.name} lacks what it acknowledged"))
        elif kind == FrameType.MEMBERSHIP:
            owner.on_membership(session.tag, body)
        elif kind == FrameType.BYE:
            self.forget(inbound, NodeLost(f"{session.name} has left"))

    def _not_allowed(self, session: Session, kind: int) -> None:
        """Drop a frame. One that is numbered is sent again when its sender is a member."""
        if kind in NUMBERED and session.permissions.role is Role.NEWCOMER:
            self._owner.count_drop("not_a_member")
            return
        self._owner.count_drop("not_allowed")
        log.warning("dropped a frame of type %d: %s may not send it", kind, session.name)

    def _on_hello(self, identity: bytes, uid: int, meant: int, ack: int, body: bytes) -> None:
        owner, hello = self._owner, decode_hello(body)
        if hello.cluster != owner.cluster:
            reason = f"this is cluster {owner.cluster!r}, not {hello.cluster[:256]!r}"
            self._refuse(identity, uid, reason, stale=False)
            return
        if not SESSION_VERSIONS.meets(hello.versions):
            reason = f"sessions of version {hello.versions} are not {SESSION_VERSIONS}"
            self._refuse(identity, uid, reason, stale=False)
            return
        if meant not in (0, owner.uid):
            self._refuse(identity, uid, "another incarnation lives here now", stale=True)
            return
        assert self.listener is not None
        permissions = owner.authorize(hello, self.listener.user(identity))
        if isinstance(permissions, str) or (hello.secret and uid != uid_of(hello.secret)):
            reason = permissions if isinstance(permissions, str) else "the uid is not the sender's"
            owner.count_drop("not_authorized")
            log.warning("refused a session: %s", reason)
            self._refuse(identity, uid, reason, stale=False)
            return
        if hello.name in self._removed:
            owner.count_drop("removed")  # no answer: gossip announces its removal
            return
        inbound = self.by_name.get(hello.name)
        if inbound is None and self._leaving and meant and hello.node is None:
            self.transmit(identity, uid, FrameType.LEAVING, 0, 0, b"")
            return
        if inbound is not None and hello.session < inbound.hello.session:
            owner.count_drop("late_hello")
            self._refuse(identity, uid, "a newer session of this process is open", stale=True)
            return
        if inbound is not None and inbound.hello.session < hello.session:
            self.forget(inbound, NodeLost(f"{hello.name} began a new session"))
            inbound = None
        before = self._by_identity.get(identity)
        if before is not None and before is not inbound:
            self.forget(before, NodeLost(f"{before.session.name} calls itself {hello.name}"))
        fresh = inbound is None
        if inbound is None:
            if permissions.role is Role.NEWCOMER and hello.node and owner.is_member(hello.node):
                permissions = NODE
            if permissions.role is Role.CLIENT and self.listener.full:
                self._turn_away(identity, uid)
                return
            if not self._has_room(permissions.role):
                owner.count_drop("too_many_sessions")  # no answer: it sends HELLO again
                return
            inbound = self._accept(identity, uid, hello, permissions)
        elif permissions.role is Role.CLIENT:
            inbound.session.permissions = permissions  # they may have changed since
        self._by_identity.pop(inbound.identity, None)
        inbound.identity, inbound.cut_tick = identity, None
        self._by_identity[identity] = inbound
        inbound.frame_tick = owner.clock.tick
        assert owner.node is not None
        welcome = encode_body(LinkWelcome(owner.node, fresh, SESSION_VERSIONS, SESSION_FEATURES))
        self.transmit(
            identity, uid, FrameType.WELCOME, 0, inbound.session.link.window.received, welcome
        )
        self._announce_leaving_to(inbound)
        inbound.session.opened(ack)

    def _turn_away(self, identity: bytes, uid: int) -> None:
        """Refuse a client for now: the remaining descriptors are for nodes."""
        reason = f"{self._owner.node} has no file descriptor left for another client"
        self._owner.count_drop("no_room")
        log.warning("refused a session: %s", reason)
        refusal = encode_body(RefusedBody(reason, stale=False, busy=True))
        self.transmit(identity, uid, FrameType.REFUSED, 0, 0, refusal)
        assert self.listener is not None
        self.listener.dismiss(identity)

    def _has_room(self, role: Role) -> bool:
        """Make room for one more session of this role. Returns False if none gives way."""
        bound = {Role.CLIENT: CLIENTS_MAX, Role.NEWCOMER: NEWCOMERS_MAX}.get(role)
        sessions = self._by_role[role]
        if bound is None or len(sessions) < bound:
            return True
        tick = self._owner.clock.tick
        for _ in range(TRIES):
            name, oldest = next(iter(sessions.items()))
            if role is Role.NEWCOMER or tick - oldest.frame_tick > IDLE_TICKS:
                self._owner.count_drop("gave_way")
                self.forget(oldest, NodeLost(f"{oldest.session.name} is idle: others need room"))
                return True
            sessions[name] = sessions.pop(name)  # the next HELLO tries others
        return False

    def _accept(
        self, identity: bytes, uid: int, hello: Hello, permissions: Permissions
    ) -> IncomingSession:
        inbound = IncomingSession(identity, uid, hello, self._owner.clock.tick)

        def transmit(kind: int, seq: int, ack: int, frame: bytes) -> bool:
            return self.transmit(inbound.identity, inbound.uid, kind, seq, ack, frame)

        session = inbound.session = self._owner.new_session(hello.name, transmit)
        session.permissions = permissions
        session.features = frozenset(hello.features)
        session.wants_drop_reports = hello.listens or DROP_REPORTS in session.features
        session.tag = hello.node or NodeId("client", 0, uid)
        self.by_name[hello.name] = self._by_role[permissions.role][hello.name] = inbound
        if permissions.role is Role.CLIENT:
            self._owner.events.client(session)
        return inbound

    def on_members(self, members: Collection[NodeId]) -> None:
        """Membership knows these nodes: their sessions have the permissions of members, and
        messages held back come again."""
        newcomers = self._by_role[Role.NEWCOMER]
        for inbound in [n for n in newcomers.values() if n.session.tag in members]:
            del newcomers[inbound.hello.name]
            self._by_role[Role.NODE][inbound.hello.name] = inbound
            inbound.session.permissions = NODE
            inbound.session.link.send_numbers(FrameType.NAK)

    def _refuse(self, identity: bytes, uid: int, reason: str, *, stale: bool) -> None:
        self.transmit(
            identity, uid, FrameType.REFUSED, 0, 0, encode_body(RefusedBody(reason, stale))
        )

    # ---- the end of sessions

    def refuse(self, node: NodeId) -> None:
        """Accept no session of this incarnation: it is gone for good."""
        self._removed[str(node)] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]

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
            self._by_role[inbound.session.permissions.role].pop(inbound.hello.name, None)
        self._owner.end(inbound.session, error)

    def sweep(self) -> None:
        """Forget silent clients, and nodes that are silent or do not become members."""
        tick = self._owner.clock.tick
        clients, newcomers = self._by_role[Role.CLIENT], self._by_role[Role.NEWCOMER]
        for inbound in [*clients.values(), *newcomers.values()]:
            if tick - inbound.frame_tick > SILENCE_TICKS:
                self.forget(inbound, NodeLost(f"{inbound.session.name} is silent"))
        for inbound in list(newcomers.values()):
            if tick - inbound.opened_tick > NEWCOMER_TICKS:
                self._owner.count_drop("never_a_member")
                self.forget(inbound, NodeLost(f"{inbound.session.name} has not become a member"))

    def announce_leaving(self) -> None:
        """Ask clients, also those that connect later, to finish their work with this node and to
        close their sessions."""
        self._leaving = True
        for inbound in self.by_name.values():
            self._announce_leaving_to(inbound)

    def _announce_leaving_to(self, inbound: IncomingSession) -> None:
        if not self._leaving or inbound.hello.node is not None:
            return
        result = self._send(inbound.identity, inbound.uid, FrameType.LEAVING, 0, 0, b"")
        if result is not SendResult.UNROUTABLE:
            inbound.cut_tick = None
        elif inbound.cut_tick is None:
            inbound.cut_tick = self._owner.clock.tick

    def finish(self) -> None:
        """Send BYE on every session."""
        for inbound in self.by_name.values():
            inbound.session.finish()

    def close(self) -> None:
        """Forget every session and close the listener."""
        self.by_name.clear()
        self._by_identity.clear()
        for sessions in self._by_role.values():
            sessions.clear()
        if self.listener is not None:
            self.listener.close()
