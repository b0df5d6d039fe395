"""Asks the process that listens at an address for its uid.

A ROUTER answers any frame: one for another incarnation with REFUSED, one without a session with
UNKNOWN. Both answers carry the uid of the process that sends them, and neither leaves a trace
there. With a keyring, every key of it is tried: while a secret is rotated, one of them works.

Source: docs/architecture.md; S1.58.
"""

from __future__ import annotations

import asyncio

import zmq

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.transport.descriptors import require_descriptors
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.reader import Reader
from shardbus.transport.zmq.sockets import SocketContext, connect_dealer, end_context
from shardbus.wire.batch import PROTOCOL_VERSION, FrameType, cluster_tag, pack_header, read_header

CONTEXT_SOCKETS = 256
START_DESCRIPTORS = 16
"""More than a context opens with its first socket. libzmq aborts the process if they end midway."""


class Identifier:
    """Identifies processes for the node with this uid. Belongs to one event loop."""

    def __init__(self, cluster: str, uid: int, keyring: Keyring | None = None) -> None:
        self._tag, self._uid = cluster_tag(cluster), uid
        self._keyring = keyring
        self._context: SocketContext | None = None

    async def uid_at(self, host: str, node: NodeId) -> int:
        """Return the uid of the process that answers at the node's port of a numeric address. Waits
        without a bound: a busy process answers late.

        Raises:
            OSError: the frame cannot be sent, or few descriptors are left.
        """
        if self._context is None:
            require_descriptors(START_DESCRIPTORS)
            self._context = SocketContext(io_threads=1)
            self._context.max_sockets = CONTEXT_SOCKETS
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()

        def on_message(parts: list[bytes]) -> None:
            try:
                uid = read_header(parts[0] if parts else b"").sender
            except RemoteProtocolError:
                return
            if not answer.done():
                answer.set_result(uid)

        header = pack_header(PROTOCOL_VERSION, FrameType.ACK, self._tag, self._uid, node.uid, 0, 0)
        opened: list[tuple[Reader, zmq.Socket[bytes]]] = []
        try:
            for keys in self._keyring.keys if self._keyring is not None else (None,):
                dealer = connect_dealer(self._context, host, node.port, keys)
                reader = Reader(loop, dealer, on_message)
                opened.append((reader, dealer))
                reader.start()
                dealer.send_multipart((header, b""), zmq.NOBLOCK)
                reader.used()
            return await answer
        except zmq.ZMQError as e:
            raise OSError(e.errno, str(e)) from None
        finally:
            for reader, dealer in opened:
                reader.close()
                dealer.close(0)

    def close(self) -> None:
        """Close every socket."""
        if self._context is not None:
            end_context(self._context, 0)
            self._context = None
