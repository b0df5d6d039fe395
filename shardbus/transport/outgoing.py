"""A connection that this process opened to one node, and the session over it.

    start ── HELLO ──> welcomed ── connection breaks ──> HELLO again, until welcomed
                           └── BYE, REFUSED, process gone, silence ──> the session ends

A client that is not welcomed by the node it names, since that leaves, gets LEAVING: the session
ends before it has carried anything.

The connection sends HELLO until it is welcomed, and again after every reconnect. With `probe`, a
broken connection is followed by fresh TCP connections to the same port. If one is refused, the
process is gone and the session is lost. Any other outcome proves nothing; only `SILENCE_S` without
a frame ends the session then. A session that was open is not given up for one refusal, because a
proxy or gateway in between may refuse for a moment, and messages would be lost: refusals must last
for `REFUSED_S`.

**Names.** A node may be dialled by several names: `localhost`, the name of a service, the address
that it advertises. It has one session with this process, whatever was dialled, because a second one
would end the first at the node. So a connection to no certain incarnation first asks who answers,
unless it is the only one of this process:

    frame of no session ──> REFUSED, under the uid of the process that answers
        a connection to that uid exists     this one ends, and its names become names of that one
        none                                HELLO

A connection by a name is one to the node. When the name no longer leads there, because a refusal or
another process answers, it goes on at the address that the node advertises.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Protocol

from shardbus.errors import NodeLost, RemoteProtocolError, RequestError
from shardbus.ids import Address, NodeId
from shardbus.task_set import TaskSet
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.link import SESSION_FRAMES
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Connection, Network
from shardbus.transport.permissions import FRAMES, NEWCOMER, NODE
from shardbus.transport.session import Session
from shardbus.transport.window import Transmit
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    SESSION_FEATURES,
    SESSION_VERSIONS,
    FrameType,
    Hello,
    decode_refused,
    decode_welcome,
    encode_body,
    pack_header,
    read_header,
)

HELLO_EVERY_S = 0.5
BUSY_S = 1.0
"""Until HELLO is sent again to a node that has no room, besides `HELLO_EVERY_S`."""
SILENCE_S = 15.0
PROBE_TIMEOUT_S = 1.0
PROBE_EVERY_S = 0.05
REFUSED_S = 0.5


class OutgoingOwner(Protocol):
    """The endpoint, as its outgoing connections use it and call it back."""

    cluster: str
    name: str
    uid: int
    secret: bytes
    node: NodeId | None
    tag: int
    loop: asyncio.AbstractEventLoop
    network: Network
    events: EndpointEvents

    def new_session(self, name: str, transmit: Transmit) -> Session: ...
    def end_connection(
        self, connection: OutgoingConnection, error: RequestError, *, peer_ended: bool = True
    ) -> None: ...
    def on_busy(self, reason: str) -> None: ...
    def is_member(self, node: NodeId) -> bool: ...
    def has_others(self, connection: OutgoingConnection) -> bool: ...
    def holder_of(self, uid: int, connection: OutgoingConnection) -> OutgoingConnection: ...
    def on_membership(self, sender: NodeId, body: bytes, dialled: Address | None) -> None: ...
    def on_denied(self, address: Address, reason: str) -> None: ...
    def count_drop(self, reason: str) -> None: ...


class OutgoingConnection:
    """One connection with its session. `pinned_node`: the incarnation that must answer, None for
    any."""

    def __init__(
        self,
        owner: OutgoingOwner,
        address: Address,
        node: NodeId | None,
        serial: int,
        *,
        probe: bool,
    ) -> None:
        self.address = address
        """Where it connects."""
        self.names = {address}
        """The addresses by which this process has dialled it."""
        self.pinned_node = self.node = node
        """`node`: the incarnation that must answer, or has answered; None before that."""
        self.uid = node.uid if node is not None else 0
        """The uid of the process that must answer, or has answered; 0 before that."""
        self.session = owner.new_session(str(node or address), self.transmit)
        self.session.tag = node
        self.serial = serial
        self._owner = owner
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._welcomed = False
        """The peer has answered the HELLO of the present TCP connection."""
        self._opened = False
        """The peer has answered some HELLO."""
        self._hello_at = 0.0
        self.since = 0.0
        """When the connection was made."""
        self._frame_at = 0.0
        """When the last frame arrived."""
        self._closed = False
        self._request = b""
        """The last membership frame that waits for the welcome."""
        self._connection: Connection

    def pin(self, node: NodeId) -> None:
        """Let only this incarnation answer. None has answered yet."""
        self.pinned_node = self.node = self.session.tag = node
        self.uid = node.uid

    def start(self) -> None:
        """Connect and send HELLO."""
        self._frame_at = self.since = self._owner.loop.time()
        self._connect()

    def _connect(self) -> None:
        self._connection = self._owner.network.connect(
            self.address, self._on_parts, self._greet, self._on_broken, self._on_denied
        )
        self._greet()

    def transmit(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        """Hand one frame to the connection. Returns False if it has no room now."""
        owner = self._owner
        uid = self.node.uid if self.node is not None else 0
        header = pack_header(PROTOCOL_VERSION, kind, owner.tag, owner.uid, uid, seq, ack)
        return self._connection.send(header, body)

    def request_membership(self, frame: bytes) -> None:
        """Send a membership frame within the session, so once it is open. Only the last one waits:
        a joining node repeats its requests."""
        if self._welcomed:
            self.transmit(FrameType.MEMBERSHIP, 0, 0, frame)
        else:
            self._request = frame

    def on_members(self, members: Collection[NodeId]) -> None:
        """Membership knows these nodes."""
        session = self.session
        if session.permissions is NEWCOMER and self.node in members:
            session.permissions = NODE
            session.link.send_numbers(FrameType.NAK)

    def close(self) -> None:
        """Close the connection. Frames that it still holds may go out."""
        if not self._closed:
            self._closed = True
            self._connection.close()
            if self._probing is not None:
                self._probing.cancel()

    def watch(self) -> None:
        """Probe from now on, at once if the connection is broken already."""
        self._probe = True
        if not self._welcomed:
            self._start_probing()

    def tick(self, now: float) -> None:
        """Send HELLO again while it is unanswered; end the session after a long silence."""
        if not self._welcomed and now - self._hello_at >= HELLO_EVERY_S:
            self._greet()
        if self._probe and not self._welcomed and now - self._frame_at > SILENCE_S:
            error = NodeLost(f"no word from {self.session.name} for {SILENCE_S:.0f} s")
            self._owner.end_connection(self, error, peer_ended=False)

    def _greet(self) -> None:
        """Ask who answers if this process may have a session with it; otherwise send HELLO."""
        self._hello_at = self._owner.loop.time()
        if self.uid or not self._owner.has_others(self):
            self._send_hello()
        else:
            self.transmit(FrameType.ACK, 0, 0, b"")

    def _on_who(self, uid: int) -> None:
        """The process with this uid answers."""
        if self.uid != uid and not self._yields_to(uid):
            self._send_hello()

    def _yields_to(self, uid: int) -> bool:
        """Take this uid. If another connection has it, end this one, which has carried nothing, and
        return True."""
        holder = self._owner.holder_of(uid, self)
        if holder is self:
            self.uid = uid
            return False
        holder.names |= self.names
        if self._request:
            holder.request_membership(self._request)
        self.session.closed_idle = True
        error = NodeLost(f"{self.session.name} is {holder.session.name}")
        self._owner.end_connection(self, error, peer_ended=False)
        return True

    def _send_hello(self) -> None:
        owner = self._owner
        hello = Hello(
            owner.cluster,
            owner.name,
            owner.node,
            self.serial,
            listens=True,  # builds that know no features read this
            secret=owner.secret,
            versions=SESSION_VERSIONS,
            features=SESSION_FEATURES,
        )
        self.transmit(FrameType.HELLO, 0, self.session.link.window.received, encode_body(hello))

    # ---- frames

    def _on_parts(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 2:
                raise RemoteProtocolError(f"a message of {len(parts)} parts")
            self._on_frame(*parts)
        except RemoteProtocolError as e:
            self._owner.count_drop("malformed")
            log.warning("dropped a frame from %s: %s", self.session.name, e)

    def _on_frame(self, head: bytes, body: bytes) -> None:
        header = read_header(head)
        self._frame_at = self._owner.loop.time()
        match header.kind:
            case kind if self._welcomed and kind in SESSION_FRAMES:
                if kind not in FRAMES[self.session.permissions.role]:
                    self._owner.count_drop("not_a_member")  # it comes again
                    return
                self.session.on_frame(kind, header.seq, header.ack, body)
                if self.session.link.peer_lost_data:
                    error = NodeLost(f"{self.session.name} lacks what it acknowledged")
                    self._owner.end_connection(self, error, peer_ended=False)
            case FrameType.WELCOME:
                self._on_welcome(header.ack, body)
            case FrameType.REFUSED:
                self._on_refused(header.sender, body)
            case FrameType.UNKNOWN if self._welcomed:
                self._break()
                self._greet()
            case FrameType.BYE:
                self._end(f"{self.session.name} has left")
            case FrameType.LEAVING if self.pinned_node is not None and not self._opened:
                self.session.closed_idle = True  # nothing of it is there that could come late
                self._end(f"{self.session.name} is leaving")
            case FrameType.LEAVING:
                self._owner.events.leaving(self.session)
            case FrameType.MEMBERSHIP if self._welcomed and self.node is not None:
                for address in sorted(self.names):
                    self._owner.on_membership(self.node, body, address)
            case _:
                self._owner.count_drop("unexpected")

    def _on_refused(self, uid: int, body: bytes) -> None:
        refusal = decode_refused(body)
        if refusal.busy:
            self._on_busy(refusal.reason)
            return
        if refusal.stale and not self._welcomed and self.node is None:
            self._on_who(uid)  # it refuses a frame that named no incarnation
            return
        if refusal.stale and uid == self.uid:
            return  # the answer to an earlier question, or to a HELLO of an earlier session
        if refusal.stale and self._moves_home():
            return
        if not refusal.stale:
            self._owner.events.refused(refusal.reason, self.address)
        self._end(f"{self.session.name}: {refusal.reason}")

    def _on_busy(self, reason: str) -> None:
        """The node has no room now. A session that seeks any node ends, so that its owner tries
        another one; a session with this very node is requested again later."""
        self._owner.on_busy(reason)
        self._hello_at = self._owner.loop.time() + BUSY_S
        if self.pinned_node is None and not self._opened:
            error = NodeLost(f"{self.session.name}: {reason}")
            self._owner.end_connection(self, error, peer_ended=False)

    def _on_welcome(self, ack: int, body: bytes) -> None:
        welcome = decode_welcome(body)
        node = welcome.node
        if self.node is not None and self.node != node:
            if not self._moves_home():
                self._end(f"{self.session.name} is gone, {node} answers there")
            return
        if self._welcomed or self._yields_to(node.uid):
            return
        self.session.features = frozenset(welcome.features)
        if welcome.fresh and self._opened:
            error = NodeLost(f"{self.session.name} has forgotten this session")
            self._owner.end_connection(self, error, peer_ended=False)
            return
        self._welcomed = self._opened = True
        self.node = self.session.tag = node
        self.session.link.name = str(node)
        self.session.permissions = NODE if self._owner.is_member(node) else NEWCOMER
        self.session.opened(ack)
        self._owner.events.opened(self.session)
        if self._request:
            request, self._request = self._request, b""
            self.transmit(FrameType.MEMBERSHIP, 0, 0, request)

    def _moves_home(self) -> bool:
        """Go on at the address that the node advertises. Returns False if this is it."""
        home = self.node.address if self.node is not None else self.address
        if self.address == home:
            return False
        self._break()
        self._connection.close()
        self.address = home
        self._connect()
        return True

    def _end(self, reason: str) -> None:
        self._owner.end_connection(self, NodeLost(reason))

    # ---- a broken connection

    def _on_broken(self) -> None:
        self._break()
        if self._probe:
            self._start_probing()

    def _on_denied(self, reason: str) -> None:
        """No handshake succeeds. The connection goes on trying, because the keys may be rotated; a
        session that never opened ends, so that its owner gets the reason."""
        self._owner.on_denied(self.address, reason)
        if self._probe and not self._opened:
            self._end(f"{self.session.name}: {reason}")

    def _break(self) -> None:
        """Send nothing but HELLO until welcomed again. The silence begins here: while a session
        rests, no frames come."""
        if self._welcomed:
            self._frame_at = self._owner.loop.time()
        self._welcomed = False
        self.session.link.suspend()

    def _start_probing(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = self._tasks.spawn(self._probe_until_answered(), self._owner.loop)

    async def _probe_until_answered(self) -> None:
        """End the session once probes are refused; return when one is not."""
        loop = self._owner.loop
        since = loop.time()
        while not await self._answers():
            if not self._opened or loop.time() - since >= REFUSED_S:
                if self._moves_home():
                    since = loop.time()
                    continue
                self._probing = None
                self._end(f"{self.session.name} is gone: connection refused")
                return
            await asyncio.sleep(PROBE_EVERY_S)
        self._probing = None

    async def _answers(self) -> bool:
        """Return False if a fresh connection was refused and this one is not welcomed meanwhile."""
        listens = True
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                listens = await self._owner.network.probe(self.address)
        return listens or self._welcomed
