"""Reads whole messages of one socket, with a bound on their number of parts.

ZeroMQ bounds the size of each part, and not the number of parts. A message of more than `PARTS_MAX`
parts cannot be a frame: its parts are read and dropped, a bounded number in each turn, so that the
loop's other work is not delayed.

On a listener, where any process may connect, this also counts the bytes read of each connection. A
connection shows its descriptor with its first message only; from then on its routing id stands for
it.

Source: docs/guarantees.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from shardbus.transport.zmq.connection_guard import ConnectionGuard, ReadCounter

PARTS_MAX = 8
SKIPPED_MAX = 256
"""Parts of one overlong message that are read in one turn."""
RCVMORE, NOBLOCK, SOURCE_FD = zmq.RCVMORE, int(zmq.NOBLOCK), int(zmq.SRCFD)
SHORT, SHORT_HEAD, LONG_HEAD = 256, 2, 9
"""ZMTP puts a head before each part: 2 bytes if the part is shorter than 256, else 9."""
COUNTERS_MAX = 1024


def source(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that a part came by, -1 if there is none."""
    try:
        return int(frame.get(SOURCE_FD))
    except zmq.ZMQError:
        return -1


def user_of(frame: zmq.Frame) -> str | None:
    """Return the name that authentication gave the peer that sent a part."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None


class Multipart:
    """Reads one socket. With a connection guard, the first part of each message is a routing id.
    `overhead`: bytes that encryption adds to each part."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        guard: ConnectionGuard | None = None,
        overhead: int = 0,
    ) -> None:
        self._socket, self._guard, self._overhead = socket, guard, overhead
        self._recv, self._get = socket.recv, socket.get
        self._skipping = False
        self._counters: dict[bytes, ReadCounter] = {}
        """Connections that have sent something, by routing id."""

    def user(self, routing_id: bytes) -> str | None:
        """Return the name that authentication gave the peer of a connection that has sent
        something; None without keys."""
        counter = self._counters.get(routing_id)
        return counter.user if counter is not None else None

    def dismiss(self, routing_id: bytes) -> None:
        """Let the guard end a connection that has sent something, after a moment."""
        counter = self._counters.get(routing_id)
        if counter is not None:
            counter.dismissed = True

    def receive(self) -> list[bytes] | None:
        """Return the parts of the next message. Returns no parts if there are too many, and None
        while the rest of such a message is skipped, or if the guard ends its connection.

        Raises:
            zmq.Again: there is no message.
        """
        if self._skipping:
            self._skip()
            return None
        # Asking the socket whether more parts follow takes a microsecond. Frames know it, but to
        # receive frames took a node 12 % more of its processor for an ask at a time.
        recv, get = self._recv, self._get
        parts = [recv(NOBLOCK)]
        counter = None
        if self._guard is not None:
            counter = self._counters.get(parts[0])
            if counter is None:
                counter = self._introduce(self._guard, parts)
            else:
                parts.append(recv(NOBLOCK))  # a routing id is always followed by a part
        while get(RCVMORE):
            if len(parts) == PARTS_MAX:
                return self._refuse()
            parts.append(recv(NOBLOCK))
        if counter is not None:
            for part in parts[1:]:
                size = len(part) + self._overhead
                counter.taken += size + (SHORT_HEAD if size < SHORT else LONG_HEAD)
        return parts

    def _introduce(self, guard: ConnectionGuard, parts: list[bytes]) -> ReadCounter:
        """Receive the second part of the first message of a connection, and report it to the
        guard."""
        frame = self._socket.recv(NOBLOCK, copy=False)
        parts.append(frame.bytes)
        counter = guard.introduce(source(frame))
        counter.user = user_of(frame) if self._overhead else None
        if len(self._counters) >= COUNTERS_MAX:
            self._counters = {i: s for i, s in self._counters.items() if not s.gone}
        self._counters[parts[0]] = counter
        return counter

    def _refuse(self) -> list[bytes] | None:
        """Drop a message with one part too many. The next part shows the connection it came by."""
        self._skipping = True
        frame = self._socket.recv(NOBLOCK, copy=False)
        self._skip()
        if self._guard is None:
            return []
        self._guard.refuse(source(frame), "too_many_parts")
        return None

    def _skip(self) -> None:
        recv, get = self._recv, self._get
        for _ in range(SKIPPED_MAX):
            if not get(RCVMORE):
                self._skipping = False
                return
            recv(NOBLOCK)
