"""Is that process still there? The question behind confirmed death, asked at the door of a node.

    1. a fresh TCP connection to the node's ROUTER   refused: nobody listens, the process is gone
    2. a frame for the node's uid, on that port      answered under that uid: it is alive; under
                                                     another: somebody else has the address, so the
                                                     process is gone too

A ROUTER answers any frame: one for another incarnation with REFUSED, one without a session with
UNKNOWN. Neither leaves a trace there. No answer proves nothing, nor does any other error: a busy
node answers late.

The sockets of a dying process do not close all at once, and until they do the system takes
connections for it. So the first connection stays open meanwhile: if it is closed before anybody has
answered, the process may have ended just now, and the look is repeated at once, a few times.

Source: docs/architecture.md; S1.58; B.42, N.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import zmq

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.sockets import connect_dealer
from shardbus.wire.batch import PROTOCOL_VERSION, FrameType, cluster_tag, pack_header, read_header

PROBE_WITHIN = 1.0
WHO_WITHIN = 0.2
LOOKS = 3
CONTEXT_SOCKETS = 256


class Prober:
    """Probes nodes for the node with this uid. Belongs to one event loop. Of one that does not say
    who it is in `WHO_WITHIN` nothing is known: its loop may be busy."""

    def __init__(self, cluster: str, uid: int) -> None:
        self._tag, self._uid = cluster_tag(cluster), uid
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    async def probe(self, node: NodeId) -> ProbeOutcome:
        """What is there now."""
        try:
            async with asyncio.timeout(PROBE_WITHIN):
                for _ in range(LOOKS):
                    outcome = await self._look(node)
                    if outcome is not None:
                        return outcome
        except (OSError, TimeoutError):
            return ProbeOutcome.UNKNOWN
        return ProbeOutcome.OPEN

    async def _look(self, node: NodeId) -> ProbeOutcome | None:
        """None if the connection was made, and closed before anybody answered."""
        connection = await knock(node)
        if isinstance(connection, ProbeOutcome):
            return connection
        with connection:
            who = asyncio.ensure_future(self._who(node))
            closed = asyncio.ensure_future(_closed(connection))
            try:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait((who, closed), timeout=WHO_WITHIN, return_when=first)
                if who.done():
                    alive = who.result() == node.uid
                    return ProbeOutcome.ALIVE if alive else ProbeOutcome.OTHER
                return None if closed.done() else ProbeOutcome.OPEN
            except zmq.ZMQError:
                return ProbeOutcome.OPEN
            finally:
                for task in (who, closed):
                    task.cancel()
                await asyncio.gather(who, closed, return_exceptions=True)

    def close(self) -> None:
        """Probe no more."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def _who(self, node: NodeId) -> int:
        """The uid of whoever answers at that address."""
        if self._context is None:
            self._context = zmq.Context(io_threads=1)
            self._context.max_sockets = CONTEXT_SOCKETS
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()

        def heard(parts: list[bytes]) -> None:
            try:
                uid = read_header(parts[0] if parts else b"").sender
            except RemoteProtocolError:
                return
            if not answer.done():
                answer.set_result(uid)

        dealer = connect_dealer(self._context, node.host, node.port)
        reader = Reader(loop, dealer, heard)
        try:
            reader.start()
            header = pack_header(
                PROTOCOL_VERSION, FrameType.ACK, self._tag, self._uid, node.uid, 0, 0
            )
            dealer.send_multipart((header, b""), zmq.NOBLOCK)
            reader.used()
            return await answer
        finally:
            reader.close()
            dealer.close(0)


async def knock(node: NodeId) -> socket.socket | ProbeOutcome:
    """Open a connection to the node's ROUTER. It is refused only if every address of the host
    refuses it; a connection of a port to itself, which the kernel may make on an unused one, is
    refused, too."""
    loop = asyncio.get_running_loop()
    kind = socket.SOCK_STREAM
    outcomes = []
    for family, _, _, _, address in await loop.getaddrinfo(node.host, node.port, type=kind):
        answer = await _connect(loop, family, address)
        if isinstance(answer, socket.socket):
            return answer
        outcomes.append(answer)
    refused = bool(outcomes) and all(o is ProbeOutcome.REFUSED for o in outcomes)
    return ProbeOutcome.REFUSED if refused else ProbeOutcome.UNKNOWN


async def _connect(
    loop: asyncio.AbstractEventLoop, family: int, address: tuple[Any, ...]
) -> socket.socket | ProbeOutcome:
    with contextlib.ExitStack() as unless_kept:
        client = unless_kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
        client.setblocking(False)
        try:
            await loop.sock_connect(client, address)
            if client.getsockname() == client.getpeername():
                return ProbeOutcome.REFUSED
        except ConnectionRefusedError:
            return ProbeOutcome.REFUSED
        except OSError:
            return ProbeOutcome.UNKNOWN
        unless_kept.pop_all()
        return client


async def _closed(connection: socket.socket) -> None:
    """Ends when the other side has closed it."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while await loop.sock_recv(connection, 4096):
            pass
