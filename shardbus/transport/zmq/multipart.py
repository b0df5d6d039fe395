"""Whole messages of one socket, whatever their number of parts.

ZeroMQ bounds each part and not their number. A message of more than `PARTS_MAX` is no frame of
ours: its parts are read and forgotten, so many in a turn that the loop's other work is not kept
waiting, and none of them is kept.

At a door, where everybody connects, books are kept as well: how many bytes each connection has had
read. A connection shows its descriptor with its first message only; from then on its routing id
stands for it.

Source: docs/guarantees.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from shardbus.transport.zmq.connection_guard import ConnectionGuard, ReadCounter

PARTS_MAX = 8
SKIPPED_MAX = 256
"""Parts of one overlong message that are read in one go."""
RCVMORE, NOBLOCK, SOURCE_FD = int(zmq.RCVMORE), int(zmq.NOBLOCK), int(zmq.SRCFD)
SHORT, SHORT_HEAD, LONG_HEAD = 256, 2, 9
"""What ZMTP puts before a part: two bytes if it is shorter than this, nine otherwise."""
SHARES_KEPT = 1024


def source(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a part came by, -1 if there is none."""
    try:
        return int(frame.get(SOURCE_FD))
    except zmq.ZMQError:
        return -1


class Multipart:
    """Reads one socket. With a doorkeeper, the first part of each message is a routing id."""

    def __init__(self, socket: zmq.Socket[bytes], keeper: ConnectionGuard | None = None) -> None:
        self._socket, self._keeper = socket, keeper
        self._recv, self._get = socket.recv, socket.get
        self._skipping = False
        self._shares: dict[bytes, ReadCounter] = {}
        """Connections that have sent something, by routing id."""

    def receive(self) -> list[bytes] | None:
        """The parts of the next message: none of them if there are too many, None while such a one
        is not skipped to its end, and where a doorkeeper has been told of it.

        Raises:
            zmq.Again: there is none.
        """
        if self._skipping:
            self._skip()
            return None
        recv, get = self._recv, self._get
        parts = [recv(NOBLOCK)]
        share = None
        if self._keeper is not None:
            share = self._shares.get(parts[0])
            if share is None:
                share = self._introduce(self._keeper, parts)
            else:
                parts.append(recv(NOBLOCK))  # behind a routing id there is always one
        while get(RCVMORE):
            if len(parts) == PARTS_MAX:
                return self._refuse()
            parts.append(recv(NOBLOCK))
        if share is not None:
            for part in parts[1:]:
                size = len(part)
                share.taken += size + (SHORT_HEAD if size < SHORT else LONG_HEAD)
        return parts

    def _introduce(self, keeper: ConnectionGuard, parts: list[bytes]) -> ReadCounter:
        """The first message of a connection."""
        frame = self._socket.recv(NOBLOCK, copy=False)
        parts.append(frame.bytes)
        share = keeper.introduce(source(frame))
        if len(self._shares) >= SHARES_KEPT:
            self._shares = {i: s for i, s in self._shares.items() if not s.gone}
        self._shares[parts[0]] = share
        return share

    def _refuse(self) -> list[bytes] | None:
        """There is one part too many; the next one tells who sends so."""
        self._skipping = True
        frame = self._socket.recv(NOBLOCK, copy=False)
        self._skip()
        if self._keeper is None:
            return []
        self._keeper.refuse(source(frame), "too_many_parts")
        return None

    def _skip(self) -> None:
        recv, get = self._recv, self._get
        for _ in range(SKIPPED_MAX):
            if not get(RCVMORE):
                self._skipping = False
                return
            recv(NOBLOCK)
