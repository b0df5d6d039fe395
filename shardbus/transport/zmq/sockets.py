"""Makes every ZeroMQ socket of the application loop, with every option written out.

libzmq's defaults lose messages silently (a ROUTER drops unroutable messages), wait without a limit
(handshakes, linger) or bound nothing (message size). The tables list every option with its reason;
a test compares them with the options of real sockets.

A listening socket has a ZAP domain, although without keys no handler answers for it. libzmq then
refuses peers of ZMTP 1.0 and 2.0, which send no handshake: without it the body of a web page's HTTP
request would be read as frames. Peers of ZMTP 3 connect as before.

Two options are never used. ROUTER_HANDOVER lets any peer that claims a routing id take its traffic.
A routing id chosen for a connection aborts the process if that id is in use. So a ROUTER draws the
id of each connection itself, and HELLO names the peer.
"""

from __future__ import annotations

import contextlib
import resource
import socket as net
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.transport.destination import is_numeric
from shardbus.transport.log_limiter import log
from shardbus.transport.name_resolver import bindable
from shardbus.transport.zmq import curve
from shardbus.wire.batch import BODY_BYTES_MAX

TAKEN_S = 1.0
END_WITHIN_S = 3.0
LIBZMQ_MIN = (4, 3, 5)
"""Earlier versions have flaws that the first bytes of any connection can exploit."""

SOCKETS_MIN, SOCKETS_MAX = 1023, 65_535
"""Sockets of one context: libzmq's default, and its bound."""

COMMON: dict[int, int] = {
    zmq.LINGER: 0,  # closing never waits: important messages are acknowledged before
    zmq.MAXMSGSIZE: BODY_BYTES_MAX,  # per frame; the peer that sends more is disconnected
    zmq.HEARTBEAT_IVL: 1000,  # ms; frees connections whose peer vanished without a FIN
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.HEARTBEAT_TTL: 3000,
    zmq.HANDSHAKE_IVL: 3000,  # ms; silent connections are dropped
    zmq.SNDHWM: 2000,  # messages; a link's window is smaller, so that this limit is never met
    zmq.RCVHWM: 2000,
    zmq.BACKLOG: 512,
}
ROUTER: dict[int, int | bytes] = {
    **COMMON,
    zmq.ROUTER_MANDATORY: 1,  # an unroutable message is an error, not a silent drop
    zmq.ZAP_DOMAIN: curve.ZAP_DOMAIN,  # refuse peers without a handshake
}
DEALER: dict[int, int] = COMMON | {
    zmq.IMMEDIATE: 0,  # queue while connecting: a lost queue is resent by the link
    zmq.RECONNECT_IVL: 50,  # ms
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.CONNECT_TIMEOUT: 2000,
}


def require_libzmq(version: tuple[int, int, int]) -> None:
    """Check the version of libzmq.

    Raises:
        ConfigError: it is older than `LIBZMQ_MIN`.
    """
    if version < LIBZMQ_MIN:
        has, needed = (".".join(map(str, v)) for v in (version, LIBZMQ_MIN))
        raise ConfigError(
            f"libzmq {has} is too old: {needed} is needed", hint="pip install -U pyzmq"
        )


def libzmq_version() -> str:
    """Return the version of the C library under pyzmq."""
    return str(zmq.zmq_version())


class SocketContext(zmq.Context[zmq.Socket[bytes]]):
    """A context that the garbage collector ends, with its sockets, if no code has closed it, as of
    a client that is dropped. pyzmq's knows its sockets by weak references. The collector clears
    these first, so it would end itself before its sockets, and wait for them for ever."""

    _opened: tuple[zmq.Socket[bytes], ...] = ()

    def socket(self, *args: Any, **options: Any) -> zmq.Socket[bytes]:
        """Open a socket."""
        opened = super().socket(*args, **options)
        self._opened = (*(socket for socket in self._opened if not socket.closed), opened)
        return opened

    def __del__(self) -> None:
        for socket in self._opened:
            socket.close(0)
        super().__del__()


def context_for_links() -> SocketContext:
    """Return a context for as many sockets as this process may have descriptors. A link takes three
    of each, so libzmq's default would end at some 340 links."""
    context = SocketContext(io_threads=1)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = SOCKETS_MAX
    context.max_sockets = max(SOCKETS_MIN, min(soft, SOCKETS_MAX))
    return context


def end_context(context: zmq.Context[zmq.Socket[bytes]], linger_ms: int) -> bool:
    """Close the context's sockets and end its threads. ZeroMQ waits without a limit for its own
    threads, so after `END_WITHIN_S` seconds they are left behind. Returns True if they ended.

    At the end of a process Python 3.12 starts no thread. Then this thread waits without a limit."""
    ending = threading.Thread(
        target=context.destroy, args=(linger_ms,), name="shardbus-zmq-end", daemon=True
    )
    try:
        ending.start()
    except RuntimeError:
        context.destroy(linger_ms)
        return True
    ending.join(END_WITHIN_S)
    if ending.is_alive():
        log.error("ZeroMQ's threads do not end within %g s: they are left behind", END_WITHIN_S)
    return not ending.is_alive()


def set_options(socket: zmq.Socket[bytes], options: Mapping[int, int | bytes]) -> None:
    """Set every option. Call it before bind or connect: later it would only affect later
    connections."""
    for option, value in options.items():
        socket.setsockopt(option, value)


def allow_overhead(socket: zmq.Socket[bytes]) -> None:
    """Allow parts of the size limit although encryption makes them longer."""
    most = socket.getsockopt(zmq.MAXMSGSIZE)
    assert isinstance(most, int)
    socket.setsockopt(zmq.MAXMSGSIZE, most + curve.MESSAGE_OVERHEAD)


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]],
    host: str,
    port: int,
    routing_id: bytes,
    before: Callable[[zmq.Socket[bytes]], None] = lambda socket: None,
    binds: Callable[[zmq.Socket[bytes], str, int], object] | None = None,
) -> zmq.Socket[bytes]:
    """Return a ROUTER that listens. `before` is called with the socket before it binds; `binds`
    binds it, instead of `bind`.

    Raises:
        ConfigError: the port is taken, or the host is not of this machine or cannot be looked up.
    """
    place = bindable(host)
    socket = context.socket(zmq.ROUTER)
    set_options(socket, ROUTER)
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    before(socket)
    try:
        (binds or bind)(socket, place, port)
    except zmq.ZMQError as e:
        socket.close(0)
        why = "it is taken" if e.errno == zmq.EADDRINUSE else str(e.strerror)
        hint = "choose another with --port (node.port), or set node.host to one of this machine"
        raise ConfigError(
            f"cannot listen for messages on {Address(host, port)}: {why}", hint=hint
        ) from None
    return socket


def bind(socket: zmq.Socket[bytes], host: str, port: int) -> None:
    """Bind to a numeric address; port 0 binds any free port. A taken port is tried again for
    `TAKEN_S` seconds: the last process on it may be about to end, or an outgoing connection uses
    it.

    Raises:
        zmq.ZMQError: the port stays taken, or the address is not of this machine.
    """
    until = time.monotonic() + TAKEN_S
    socket.setsockopt(zmq.IPV6, int(":" in host))
    while True:
        try:
            socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
            return
        except zmq.ZMQError as e:
            if e.errno != zmq.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.02)


def port_of(socket: zmq.Socket[bytes]) -> int:
    """Return the port that a socket listens on."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rpartition(b":")[2])


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    host: str,
    port: int,
    keys: curve.ClusterKeys | None = None,
    before: Callable[[zmq.Socket[bytes]], None] = lambda socket: None,
) -> zmq.Socket[bytes]:
    """Return a DEALER connected to one peer at a numeric address. It has one endpoint for life, and
    the same keys. The peer's ROUTER draws a routing id for each of its connections: an id of its
    own choice would be ignored until the ROUTER notices that the previous connection is dead.
    `before` is called with the socket before it connects."""
    socket = context.socket(zmq.DEALER)
    set_options(socket, DEALER)
    if keys is not None:
        curve.connect_with(socket, keys)
        allow_overhead(socket)
    try:
        before(socket)
        connect(socket, host, port)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket


def endpoint_of(host: str, port: int) -> str:
    """Return the ZeroMQ endpoint of a numeric address, as its monitors name it, but for the zone of
    a link-local address."""
    if ":" in host:
        bare, mark, zone = host.partition("%")
        packed = net.inet_pton(net.AF_INET6, bare)
        host = net.inet_ntop(net.AF_INET6, packed) + mark + zone
    return f"tcp://{Address(host, port)}"


def without_zone(endpoint: str) -> str:
    """Return the endpoint without its zone, which monitors may name by number or by interface."""
    before, mark, zone = endpoint.partition("%")
    return before + zone[zone.index("]") :] if mark else endpoint


def connect(socket: zmq.Socket[bytes], host: str, port: int) -> None:
    """Connect to a numeric address, IPv4 or IPv6. ZeroMQ would look a name up in the thread that
    carries all connections, again at every reconnect."""
    assert is_numeric(host), f"{host} needs a look-up"
    # Never on for IPv4: ZeroMQ would report such a connection under an IPv6 address.
    socket.setsockopt(zmq.IPV6, int(":" in host))
    socket.connect(endpoint_of(host, port))


def disconnect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """End the connection to an endpoint, with its held messages."""
    with contextlib.suppress(zmq.ZMQError):  # it has no such connection
        socket.disconnect(endpoint)
