"""A connection that this process opened: one DEALER to one ROUTER, and the session over it.

It says HELLO until it is welcomed, again after every reconnect, and watches the connection's
events. With `probe`, a broken connection is followed by fresh ones to the same port: refused means
that the process is gone, and the session is lost; anything else proves nothing, and only
`SILENCE_S` without a word ends it. A session that was open is not given up for one refusal: a proxy
or a gateway in between may refuse for a moment, and what was sent would be lost. It must last for
`REFUSED_S`.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from shardbus.errors import NodeLost, RemoteProtocolError
from shardbus.ids import Address, NodeId
from shardbus.transport.log_limiter import log
from shardbus.transport.network import Connection
from shardbus.transport.session import SESSION_KINDS, Session
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    FrameType,
    Hello,
    decode_refused,
    decode_welcome,
    encode_body,
    pack_header,
    read_header,
)

if TYPE_CHECKING:
    from shardbus.transport.endpoint import Endpoint


HELLO_EVERY_S = 0.5
SILENCE_S = 15.0
PROBE_S = 1.0
REFUSED_S = 0.5
KNOCK_S = 0.05


class OutgoingConnection:
    """See the module."""

    def __init__(
        self, endpoint: Endpoint, address: Address, node: NodeId | None, serial: int, *, probe: bool
    ) -> None:
        self.address = address
        self.meant = self.node = node
        """Who must answer, or who has answered; None before that."""
        self.serial = serial
        self.session = Session(
            str(node or address),
            endpoint.loop,
            endpoint.clock,
            endpoint.receiver,
            self.transmit,
            endpoint.send_buffer_limit,
        )
        self.session.tag = node
        self._endpoint = endpoint
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._welcomed = False
        self._opened = False
        self._greeted_at = 0.0
        self._heard_at = 0.0
        self._closed = False
        self._connection: Connection

    def start(self) -> None:
        """Connect and say HELLO."""
        endpoint = self._endpoint
        self._heard_at = endpoint.loop.time()
        self._connection = endpoint.network.connect(
            self.address, self._on_parts, self._greet, self._on_broken
        )
        self._greet()

    def transmit(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        """Hand one frame to the connection; False if it has no room now."""
        endpoint = self._endpoint
        uid = self.node.uid if self.node is not None else 0
        header = pack_header(PROTOCOL_VERSION, kind, endpoint.tag, endpoint.uid, uid, seq, ack)
        return self._connection.send(header, body)

    def close(self) -> None:
        """Let go of the connection. What it still holds may go out."""
        if not self._closed:
            self._closed = True
            self._connection.close()
            if self._probing is not None:
                self._probing.cancel()

    def watch(self) -> None:
        """Probe from now on, at once if the connection is broken already."""
        self._probe = True
        if not self._welcomed:
            self._look_soon()

    def tick(self, now: float) -> None:
        """Greet again while nobody has answered; give up on who stays silent."""
        if not self._welcomed and now - self._greeted_at >= HELLO_EVERY_S:
            self._greet()
        if self._probe and not self._welcomed and now - self._heard_at > SILENCE_S:
            error = NodeLost(f"no word from {self.session.name} for {SILENCE_S:.0f} s")
            self._endpoint.lose(self, error, gone=False)

    def _greet(self) -> None:
        endpoint = self._endpoint
        self._greeted_at = endpoint.loop.time()
        hello = Hello(endpoint.cluster, endpoint.name, endpoint.node, self.serial, listens=True)
        self.transmit(FrameType.HELLO, 0, self.session.received, encode_body(hello))

    def _on_parts(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 2:
                raise RemoteProtocolError(f"a message of {len(parts)} parts")
            self._on_frame(*parts)
        except RemoteProtocolError as e:
            self._endpoint.count_drop("malformed")
            log.warning("dropped a frame from %s: %s", self.session.name, e)

    def _on_frame(self, head: bytes, body: bytes) -> None:
        header = read_header(head)
        self._heard_at = self._endpoint.loop.time()
        match header.kind:
            case kind if self._welcomed and kind in SESSION_KINDS:
                self.session.on_frame(kind, header.seq, header.ack, body)
                if self.session.torn:
                    error = NodeLost(f"{self.session.name} lacks what it acknowledged")
                    self._endpoint.lose(self, error, gone=False)
            case FrameType.WELCOME:
                self._on_welcome(header.ack, body)
            case FrameType.REFUSED:
                refusal = decode_refused(body)
                if not (refusal.stale and self._welcomed is False and self.node is None):
                    if not refusal.stale:
                        self._endpoint.refused(refusal.reason)
                    self._endpoint.lose(self, NodeLost(f"{self.session.name}: {refusal.reason}"))
            case FrameType.UNKNOWN if self._welcomed:
                self._break()
                self._greet()
            case FrameType.BYE:
                self._endpoint.lose(self, NodeLost(f"{self.session.name} has left"))
            case FrameType.LEAVING:
                self._endpoint.leaving(self.session)
            case FrameType.MEMBERSHIP:
                self._endpoint.took_membership(body)
            case _:
                self._endpoint.count_drop("unexpected")

    def _on_welcome(self, ack: int, body: bytes) -> None:
        welcome = decode_welcome(body)
        node = welcome.node
        if self.node is not None and self.node != node:
            self._endpoint.lose(
                self, NodeLost(f"{self.session.name} is gone, {node} answers there")
            )
            return
        if self._welcomed:
            return
        if welcome.fresh and self._opened:
            error = NodeLost(f"{self.session.name} has forgotten this session")
            self._endpoint.lose(self, error, gone=False)
            return
        self._welcomed = self._opened = True
        self.node = self.session.tag = node
        self.session.opened(ack)
        self._endpoint.opened(self)

    def _on_broken(self) -> None:
        self._break()
        if self._probe:
            self._look_soon()

    def _break(self) -> None:
        """Send nothing but HELLO until welcomed again."""
        self._welcomed = False
        self.session.suspend()

    def _look_soon(self) -> None:
        if self._probing is None:
            self._probing = self._endpoint.loop.create_task(self._look())

    async def _look(self) -> None:
        """Is anybody listening there?"""
        endpoint = self._endpoint
        since = endpoint.loop.time()
        while not await self._answers():
            if not self._opened or endpoint.loop.time() - since >= REFUSED_S:
                self._probing = None
                error = NodeLost(f"{self.session.name} is gone: connection refused")
                endpoint.lose(self, error)
                return
            await asyncio.sleep(KNOCK_S)
        self._probing = None

    async def _answers(self) -> bool:
        """False if a fresh connection was refused, and nothing else has come to stand."""
        there = True
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_S):
                there = await self._endpoint.network.knock(self.address)
        return there or self._welcomed
