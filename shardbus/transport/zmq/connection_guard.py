"""Watches the connections of a listening socket, and ends those that exceed a bound.

ZeroMQ accepts every connection and holds its bytes until they are read. It bounds the bytes of a
part and the messages of a queue, but not the number of connections, nor the parts of a message, nor
the bytes of a message without an end, which pile up unread. So a thread checks, twenty times a
second, the kernel's counts for each connection, and ends connections for these reasons:

    too_many_parts         a message of more than `PARTS_MAX` parts
    not_a_subscription     a topic that no node has
    too_much_unread        more unread bytes arrived than a peer may have under way
    too_many_connections   more than there are descriptors for; the oldest silent connection ends
                           first, and if there is none, the youngest
    silent                 no message since it opened; ZeroMQ itself ends connections without a
                           handshake
    too_many_handshakes    with keys: more attempts of one address than `HandshakeLimit` allows
    no_room                its session was refused, because the room left is for nodes
    no_descriptor          no descriptor is left for it; those that are open stay

Ending a connection breaks no guarantee: a peer that keeps the protocol reconnects and sends
unacknowledged batches again. So a mistake costs a moment, and the bounds may be rough.

The guard has a thread of its own, because a handler may block the loop, and a flood of
subscriptions keeps ZeroMQ busy inside one call. A descriptor belongs to ZeroMQ, and may have been
closed and reused by the time it is checked; so before a connection is ended, its two addresses are
compared.

**Descriptors.** Before the last are used up, the listener is `full`: a client that comes then gets
a refusal that says why, and nodes still find room. When none is left, because the application has
taken them, ZeroMQ would try to accept in an endless loop. So the guard accepts a waiting connection
in the place of a descriptor that it holds for that, and ends it (`descriptors`).

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

from shardbus.transport.descriptors import (
    HINT,
    NONE_LEFT,
    DescriptorReserve,
    descriptors_limit,
    in_use,
)
from shardbus.transport.log_limiter import log
from shardbus.transport.zmq.zap import HandshakeLimit, plain_address

CHECK_S = 0.05
CHECKED_MAX = 128
"""Connections per check; with more of them, each is checked less often."""
UNREAD_MAX = 16 * 1024 * 1024
"""Bytes: twice the amount that a peer that keeps the protocol may have under way. Parts of one byte
take some twenty times as much memory as they have bytes on the wire."""
SUBSCRIBED_MAX = 64 * 1024
"""The same for connections that only subscribe."""
IDLE_BYTES_PER_S = 128
"""Heartbeats: the kernel counts them, and ZeroMQ does not pass them on. Encrypted ones of both
sides take 82 bytes a second."""
SILENT_S = 30.0
CONNECTIONS_MIN = 16
FOR_NODES_MIN, FOR_NODES_PART = 8, 16
"""Descriptors that clients leave to nodes: one part in `FOR_NODES_PART`, or the minimum."""
COUNT_S, COUNT_COST, COUNT_MAX_S = 1.0, 500, 10.0
"""Between two counts of the open descriptors: seconds at least, a multiple of the processor time of
one, and seconds at most."""
DISMISSED_S = 1.0
"""For a refused client to close its connection."""
RESERVED = 2
"""Descriptors that a guard holds for connections that find none."""
TURNED_AWAY_MAX = 1024
"""Connections that are turned away at a time: twice the length of the kernel's queue."""
EVENTS_MAX = 100_000
"""Connections that may open and close while this thread gets no time."""
LOG_EVERY_S = 10.0
_BYTES_RECEIVED_AT = 128
"""Offset in Linux' struct tcp_info."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_UNAUTHENTIC = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""The peer has no keys, or the wrong ones. Connections that end before the handshake does, such as
probes, raise another event."""
_EVENTS = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | _ENDED
    | zmq.EVENT_MONITOR_STOPPED
    | _UNAUTHENTIC
)
_names = count()


class ReadCounter:
    """Bytes read of one connection; written by the thread that reads. `user`: the name that
    authentication gave the peer, None without keys. `dismissed`: its session was refused."""

    __slots__ = ("dismissed", "fd", "gone", "taken", "user")

    def __init__(self, fd: int) -> None:
        self.fd, self.taken, self.gone, self.dismissed = fd, 0, False, False
        self.user: str | None = None


class _Connection:
    __slots__ = ("counter", "dismissed_at", "peer", "since")

    def __init__(self, peer: Any, since: float) -> None:
        self.peer, self.since = peer, since
        self.dismissed_at: float | None = None
        self.counter: ReadCounter | None = None


def connections_for(part: int) -> int:
    """Return how many connections a listener may have if it gets one in `part` descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(CONNECTIONS_MIN, soft // part)


class ConnectionGuard:
    """Guards one listening socket. Calls `on_cut(reason)` in its own thread. `limit`: bounds the
    handshakes of each address, for a socket with keys."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        *,
        unread_max: int = UNREAD_MAX,
        connections_max: int,
        may_be_silent: bool = False,
        limit: HandshakeLimit | None = None,
        on_cut: Callable[[str], None],
    ) -> None:
        self.connections_max = connections_max
        self._limit = limit
        self._unread_max, self._on_cut = unread_max, on_cut
        self._socket, self._may_be_silent = socket, may_be_silent
        self._connections: dict[int, _Connection] = {}
        self._introduced: deque[ReadCounter] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._turn = 0
        self._logged_at = 0.0
        self._spoken = 0
        """Connections that have a counter."""
        self._reserve = DescriptorReserve(RESERVED)
        self._few_left = False
        self._count_at = 0.0
        self._listening = -1
        """The descriptor of the listening socket, which is ZeroMQ's."""
        self._stopped = False
        name = f"inproc://listener-{next(_names)}"
        socket.monitor(name, _EVENTS)
        self._monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.setsockopt(zmq.RCVHWM, EVENTS_MAX)
        self._monitor.connect(name)
        self._thread = threading.Thread(target=self._run, name="shardbus-listener", daemon=True)

    def start(self, port: int) -> None:
        """Start the thread. The socket was bound to this port after this object was made, so that
        no connection is missed."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. The socket stays open. Called in the thread that uses the socket."""
        self._stopped = True
        with suppress(zmq.ZMQError):
            self._socket.monitor(None, 0)
        if self._thread.ident is not None:
            self._thread.join(2 * CHECK_S + 1.0)
        self._monitor.close(0)
        self._reserve.close()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def full(self) -> bool:
        """True if the remaining connections and descriptors are for nodes, not for clients."""
        for_nodes = min(_for_nodes(), self.connections_max // 4)
        return self._few_left or self._in_use() > self.connections_max - for_nodes

    def _in_use(self) -> int:
        """The number of connections that have sent something. Others give way to them."""
        return self._spoken + len(self._introduced)

    # ---- for the thread that reads

    def introduce(self, fd: int) -> ReadCounter:
        """A connection has sent its first message. Returns the counter for its bytes."""
        counter = ReadCounter(fd)
        self._introduced.append(counter)
        return counter

    def refuse(self, fd: int, reason: str) -> None:
        """End a connection."""
        self._refused.append((fd, reason))

    # ---- its own thread

    def _run(self) -> None:
        while not self._stopped:
            try:
                if self._monitor.poll(int(1000 * CHECK_S)):
                    self._read_events()
                self.check(time.monotonic())
            except zmq.ZMQError as e:
                if e.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                    log.exception("connections are not watched any more")
                return
            except Exception:  # unread events would fill up, and ZeroMQ would wait
                log.exception("a check of the connections failed")

    def _read_events(self) -> None:
        """Read which connections opened and closed, and which found no descriptor."""
        turned_away = False
        for _ in range(EVENTS_MAX):
            try:
                report = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            fd, event = int(report["value"]), report["event"]
            if event == zmq.EVENT_ACCEPTED:
                self._opened(fd, time.monotonic())
            elif event == zmq.EVENT_LISTENING:
                self._listening = fd
            elif event == zmq.EVENT_ACCEPT_FAILED:
                if fd in NONE_LEFT and not turned_away:  # the value is an error
                    turned_away = True
                    self._turn_away()
            elif event & _ENDED:
                self._closed(fd)
            elif event & _UNAUTHENTIC and self._limit is not None:
                self._on_cut("handshake_failed")
                self._log("a peer", "handshake_failed")

    def _opened(self, fd: int, now: float) -> None:
        self._closed(fd)
        with suppress(OSError), borrowed(fd) as connection:
            if connection.family not in (net.AF_INET, net.AF_INET6):
                return  # it has ended, and another socket of this process has its number
            peer = connection.getpeername()
            self._connections[fd] = _Connection(peer, now)
            if self._reserve.short:  # it has the descriptor that was given up for a moment
                self._cut(fd, "no_descriptor")
            if self._limit is not None and not self._limit.accepted(plain_address(peer[0]), now):
                self._cut(fd, "too_many_handshakes")

    def _closed(self, fd: int) -> None:
        gone = self._connections.pop(fd, None)
        if gone is not None and gone.counter is not None:
            gone.counter.gone = True
            self._spoken -= 1

    def check(self, now: float) -> None:
        """End the connections that exceed a bound."""
        introduced = [self._introduced.popleft() for _ in range(len(self._introduced))]
        refused = [self._refused.popleft() for _ in range(len(self._refused))]
        self._read_events()  # introduced connections are known by now
        for counter in introduced:
            connection = self._connections.get(counter.fd)
            if connection is None:
                counter.gone = True
            else:
                self._spoken += connection.counter is None
                connection.counter = counter
        for fd, reason in refused:
            self._cut(fd, reason)
        while len(self._connections) > self.connections_max:
            self._cut(self._expendable(), "too_many_connections")
        if self._reserve.short:
            self._reserve.fill()
        if now >= self._count_at:
            self._count_descriptors(now)
        for fd in self._next():
            connection = self._connections[fd]
            age, taken = now - connection.since, 0
            if connection.counter is not None:
                taken = connection.counter.taken
            if _received(fd) - taken > self._unread_max + int(age * IDLE_BYTES_PER_S):
                self._cut(fd, "too_much_unread")
            elif connection.counter is None and age > SILENT_S and not self._may_be_silent:
                self._cut(fd, "silent")
            elif connection.counter is not None and connection.counter.dismissed:
                self._on_dismissed(fd, connection, now)

    def _on_dismissed(self, fd: int, connection: _Connection, now: float) -> None:
        """End a connection that was refused some time ago, and is still there."""
        if connection.dismissed_at is None:
            connection.dismissed_at = now
        elif now - connection.dismissed_at > DISMISSED_S:
            self._cut(fd, "no_room")

    def _expendable(self) -> int:
        """Return the connection to end of too many: a silent or a refused one loses nothing."""
        for fd, connection in self._connections.items():
            if connection.counter is None or connection.counter.dismissed:
                return fd
        return next(reversed(self._connections))

    def _count_descriptors(self, now: float) -> None:
        """Find out whether the process has few descriptors left."""
        began, limit = time.thread_time(), descriptors_limit()
        self._few_left = bool(limit) and limit - in_use() < _for_nodes()
        cost = COUNT_COST * (time.thread_time() - began)
        self._count_at = now + max(COUNT_S, min(cost, COUNT_MAX_S))

    def _turn_away(self) -> None:
        """No descriptor is left for the connections that wait: accept each in the place of one that
        is held, and end it."""
        self._few_left, turned_away = True, 0
        if not self._reserve.give():
            return
        with suppress(OSError, ValueError):
            door = net.socket(fileno=self._listening)
            try:
                door.setblocking(False)  # for ZeroMQ, too: it must not wait for a lost connection
                while turned_away < TURNED_AWAY_MAX and door.getsockname()[1] == self._port:
                    door.accept()[0].close()
                    turned_away += 1
            finally:
                door.detach()
        self._reserve.fill()
        for _ in range(turned_away):
            self._on_cut("no_descriptor")
        if turned_away:
            self._log("a peer", "no_descriptor")

    def _next(self) -> list[int]:
        total = len(self._connections)
        if total <= CHECKED_MAX:
            return list(self._connections)
        at = self._turn = self._turn % total
        self._turn += CHECKED_MAX
        return list(islice(self._connections, at, at + CHECKED_MAX))

    def _cut(self, fd: int, reason: str) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        self._closed(fd)
        with suppress(OSError), borrowed(fd) as there:
            if there.getsockname()[1] != self._port or there.getpeername() != connection.peer:
                return
            there.shutdown(net.SHUT_RDWR)
            self._on_cut(reason)
            self._log(connection.peer[0], reason)

    def _log(self, peer: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY_S and self._logged_at:
            return
        self._logged_at = now
        hint = ""
        if reason == "too_many_connections":
            hint = f", at most {self.connections_max} here: raise the limit of `ulimit -n`"
        elif reason == "no_descriptor":
            hint = f", all {descriptors_limit()} of this process are in use: {HINT}"
        elif reason == "handshake_failed":
            hint = ": it does not have this cluster's secret"
        log.warning("ended a connection from %s: %s%s", peer, reason, hint)


def _for_nodes() -> int:
    """The number of descriptors that clients leave to nodes."""
    return max(FOR_NODES_MIN, descriptors_limit() // FOR_NODES_PART)


@contextmanager
def borrowed(fd: int) -> Iterator[net.socket]:
    """Use a descriptor of ZeroMQ as a socket; it stays open and ZeroMQ's.

    Raises:
        OSError: it is closed, or not a socket any more.
    """
    try:
        copy = os.dup(fd)
    except OSError:  # perhaps none are left: then ending connections matters most
        lent = net.socket(fileno=fd)
        try:
            yield lent
        finally:
            lent.detach()
        return
    with net.socket(fileno=copy) as lent:
        yield lent


def _received(fd: int) -> int:
    """Return the bytes that the kernel has received on this connection; 0 if it does not count."""
    option = getattr(net, "TCP_INFO", None)
    if option is None:
        return 0
    try:
        connection = net.socket(fileno=fd)
    except OSError:
        return 0
    try:
        info = connection.getsockopt(net.IPPROTO_TCP, option, _BYTES_RECEIVED_AT + 8)
    except OSError:
        return 0
    finally:
        connection.detach()
    if len(info) < _BYTES_RECEIVED_AT + 8:
        return 0
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)[0])
