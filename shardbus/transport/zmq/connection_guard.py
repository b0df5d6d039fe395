"""Who is connected to a socket that listens, and who has to go.

ZeroMQ accepts everybody and holds what they send until it is read; it bounds a part's bytes and a
queue's messages, but neither the connections, nor the parts of a message, nor the bytes of a
message that has no end: those pile up where nobody can read them. So a thread looks from outside,
twenty times a second, at what the kernel has counted for each connection, and ends those that go
too far:

    too_many_parts         a message of more than `PARTS_MAX` parts
    not_a_subscription     a topic that no node has
    too_much_unread        more bytes came than a peer may have on its way, and were not to be read
    too_many_connections   more than there are descriptors for; the oldest of those that have never
                           said anything goes first, and if there is none, who came last
    silent                 never said anything; ZeroMQ itself ends who does not even shake hands

To end a connection breaks no promise: whoever keeps the protocol connects anew and sends again what
was not acknowledged. So a mistake costs a moment, and the bounds may be rough.

It has a thread of its own, because a handler may block the loop, and a flood of subscriptions keeps
ZeroMQ busy inside of one call. A descriptor belongs to ZeroMQ and may have been closed, and given
to something else, by the time it is looked at; so before a connection is ended, its two addresses
are compared.

Source: docs/guarantees.md; C.32.
"""

from __future__ import annotations

import os
import resource
import socket as net
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus.transport.log_limiter import log

LOOK_S = 0.05
LOOKED_AT = 128
"""Connections in one look; with more of them, each has its turn less often."""
UNREAD_MAX = 16 * 1024 * 1024
"""Bytes: twice what a peer that keeps the protocol may have on its way. Parts of one byte take some
twenty times as much memory as they have bytes on the wire."""
SUBSCRIBED_MAX = 64 * 1024
"""The same where connections subscribe and say nothing more."""
IDLE_BYTES_PER_S = 64
"""Heartbeats: the kernel counts them, and nobody reads them."""
SILENT_S = 30.0
CONNECTIONS_MIN = 16
EVENTS_MAX = 100_000
"""So many connections may come and go while this thread gets no time."""
COMPLAIN_EVERY_S = 10.0
_BYTES_RECEIVED_AT = 128
"""In Linux' struct tcp_info."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_EVENTS = zmq.EVENT_ACCEPTED | _ENDED | zmq.EVENT_MONITOR_STOPPED
_names = count()


class ReadCounter:
    """What was read of one connection; written by the thread that reads."""

    __slots__ = ("fd", "gone", "taken")

    def __init__(self, fd: int) -> None:
        self.fd, self.taken, self.gone = fd, 0, False


class _Connection:
    __slots__ = ("peer", "share", "since")

    def __init__(self, peer: Any, since: float) -> None:
        self.peer, self.since = peer, since
        self.share: ReadCounter | None = None


def connections_for(part: int) -> int:
    """How many connections a door may have, if it gets one of so many parts of the descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(CONNECTIONS_MIN, soft // part)


class ConnectionGuard:
    """See the module. `on_cut(reason)` is called in its thread."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        *,
        unread_max: int = UNREAD_MAX,
        connections_max: int,
        may_be_silent: bool = False,
        on_cut: Callable[[str], None],
    ) -> None:
        self.connections_max = connections_max
        self._unread_max, self._on_cut = unread_max, on_cut
        self._socket, self._may_be_silent = socket, may_be_silent
        self._connections: dict[int, _Connection] = {}
        self._introduced: deque[ReadCounter] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._turn = 0
        self._complained = 0.0
        self._stopped = False
        name = f"inproc://door-{next(_names)}"
        socket.monitor(name, _EVENTS)
        self._monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.setsockopt(zmq.RCVHWM, EVENTS_MAX)
        self._monitor.connect(name)
        self._thread = threading.Thread(target=self._run, name="shardbus-door", daemon=True)

    def start(self, port: int) -> None:
        """Begin; the socket was bound to this port after this object was made, so that nobody has
        come unseen."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        """Look no more. The socket stays open; whoever uses it calls this."""
        self._stopped = True
        with suppress(zmq.ZMQError):
            self._socket.monitor(None, 0)
        if self._thread.ident is not None:
            self._thread.join(2 * LOOK_S + 1.0)
        self._monitor.close(0)

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    # ---- for the thread that reads

    def introduce(self, fd: int) -> ReadCounter:
        """A connection has said something for the first time."""
        share = ReadCounter(fd)
        self._introduced.append(share)
        return share

    def refuse(self, fd: int, reason: str) -> None:
        """A connection has to go."""
        self._refused.append((fd, reason))

    # ---- its own thread

    def _run(self) -> None:
        try:
            while not self._stopped:
                if self._monitor.poll(int(1000 * LOOK_S)):
                    self._hear()
                self.look(time.monotonic())
        except zmq.ZMQError as e:
            if e.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                log.exception("nobody looks after the connections any more")

    def _hear(self) -> None:
        """Who came and who went."""
        for _ in range(EVENTS_MAX):
            try:
                heard = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            fd, event = int(heard["value"]), heard["event"]
            if event == zmq.EVENT_ACCEPTED:
                self._came(fd, time.monotonic())
            elif event & _ENDED:
                self._went(fd)

    def _came(self, fd: int, now: float) -> None:
        self._went(fd)
        with suppress(OSError), borrowed(fd) as connection:
            self._connections[fd] = _Connection(connection.getpeername(), now)

    def _went(self, fd: int) -> None:
        gone = self._connections.pop(fd, None)
        if gone is not None and gone.share is not None:
            gone.share.gone = True

    def look(self, now: float) -> None:
        """End who goes too far."""
        introduced = [self._introduced.popleft() for _ in range(len(self._introduced))]
        refused = [self._refused.popleft() for _ in range(len(self._refused))]
        self._hear()  # whoever was introduced has come by now
        for share in introduced:
            connection = self._connections.get(share.fd)
            if connection is None:
                share.gone = True
            else:
                connection.share = share
        for fd, reason in refused:
            self._cut(fd, reason)
        while len(self._connections) > self.connections_max:
            self._cut(self._least(), "too_many_connections")
        for fd in self._next():
            connection = self._connections[fd]
            age, taken = now - connection.since, 0
            if connection.share is not None:
                taken = connection.share.taken
            if _received(fd) - taken > self._unread_max + int(age * IDLE_BYTES_PER_S):
                self._cut(fd, "too_much_unread")
            elif connection.share is None and age > SILENT_S and not self._may_be_silent:
                self._cut(fd, "silent")

    def _least(self) -> int:
        """Of too many, who goes: nothing is lost with one that never said anything."""
        for fd, connection in self._connections.items():
            if connection.share is None:
                return fd
        return next(reversed(self._connections))

    def _next(self) -> list[int]:
        known = len(self._connections)
        if known <= LOOKED_AT:
            return list(self._connections)
        at = self._turn = self._turn % known
        self._turn += LOOKED_AT
        return list(islice(self._connections, at, at + LOOKED_AT))

    def _cut(self, fd: int, reason: str) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        self._went(fd)
        with suppress(OSError), borrowed(fd) as there:
            if there.getsockname()[1] != self._port or there.getpeername() != connection.peer:
                return
            there.shutdown(net.SHUT_RDWR)
            self._on_cut(reason)
            self._complain(connection.peer, reason)

    def _complain(self, peer: Any, reason: str) -> None:
        now = time.monotonic()
        if now - self._complained < COMPLAIN_EVERY_S and self._complained:
            return
        self._complained = now
        hint = ""
        if reason == "too_many_connections":
            hint = f", at most {self.connections_max} here: raise the limit of `ulimit -n`"
        log.warning("ended a connection from %s: %s%s", peer[0], reason, hint)


@contextmanager
def borrowed(fd: int) -> Iterator[net.socket]:
    """A descriptor of somebody else as a socket; it stays theirs, and open.

    Raises:
        OSError: it is closed, or no socket any more.
    """
    try:
        own = os.dup(fd)
    except OSError:  # perhaps because there are none left: all the more must be ended
        lent = net.socket(fileno=fd)
        try:
            yield lent
        finally:
            lent.detach()
        return
    with net.socket(fileno=own) as lent:
        yield lent


def _received(fd: int) -> int:
    """What the kernel has counted for this connection; 0 where it does not say."""
    option = getattr(net, "TCP_INFO", None)
    if option is None:
        return 0
    try:
        connection = net.socket(fileno=fd)
    except OSError:
        return 0
    try:
        told = connection.getsockopt(net.IPPROTO_TCP, option, _BYTES_RECEIVED_AT + 8)
    except OSError:
        return 0
    finally:
        connection.detach()
    if len(told) < _BYTES_RECEIVED_AT + 8:
        return 0
    return int(struct.unpack_from("=Q", told, _BYTES_RECEIVED_AT)[0])
