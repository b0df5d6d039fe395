"""A port on which a socket of ZeroMQ listens, and can change its keys without closing the port.

New keys of a bound socket have no effect before its next bind. But between an unbind and a bind the
port would refuse connections, and a refused connection proves to other nodes that this process has
ended. So with keys the kernel's listening socket is made here and only lent to ZeroMQ. While
ZeroMQ unbinds and binds again, connections wait in the queue of the kernel.

An unbind ends every connection that the socket has accepted. That is right: these were accepted
under keys that may not be known any more. Peers connect again under the new keys, and sessions
resend their unacknowledged batches.

Source: docs/security.md.
"""

from __future__ import annotations

import os
import socket as net
import time

import zmq

from shardbus.transport.zmq.curve import Keyring, listen_with

TAKEN_S = 1.0
BACKLOG = 512


class KeyedListener:
    """The port of one socket, which listens under the newest keys of a keyring.

    Raises:
        zmq.ZMQError: the port is taken, or the host is not of this machine.
    """

    def __init__(self, socket: zmq.Socket[bytes], host: str, port: int, keyring: Keyring) -> None:
        self._socket, self._keyring = socket, keyring
        self._port = _opened(host, port)
        try:
            self._bind()
        except zmq.ZMQError:
            self._port.close()
            raise

    def rekey(self) -> None:
        """End every accepted connection, and listen under the keys that are the newest now. Called
        in the thread that uses the socket."""
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self._socket.unbind(endpoint.rstrip(b"\0"))
        self._bind()

    def close(self) -> None:
        """Close the port; the socket is closed by its owner."""
        self._port.close()

    def _bind(self) -> None:
        listen_with(self._socket, self._keyring.newest)
        lent = os.dup(self._port.fileno())  # ZeroMQ closes it at the unbind
        self._socket.setsockopt(zmq.USE_FD, lent)
        host, port = self._port.getsockname()[:2]
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        try:
            self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError:
            os.close(lent)
            raise


def _opened(host: str, port: int) -> net.socket:
    """Return a listening socket. A taken port is tried again for `TAKEN_S` seconds: the last
    process on it may be about to end."""
    until = time.monotonic() + TAKEN_S
    while True:
        try:
            return _listening(host, port)
        except net.gaierror as failed:
            raise zmq.ZMQError(zmq.EINVAL, f"{host!r}: {failed.strerror}") from None
        except OSError as failed:
            if failed.errno != zmq.EADDRINUSE or time.monotonic() > until:
                raise zmq.ZMQError(failed.errno or zmq.EINVAL, failed.strerror) from None
        time.sleep(0.02)


def _listening(host: str, port: int) -> net.socket:
    name = "0.0.0.0" if host in ("", "*") else host.removeprefix("[").removesuffix("]")  # noqa: S104
    family, _, _, _, place = net.getaddrinfo(
        name, port, type=net.SOCK_STREAM, flags=net.AI_PASSIVE
    )[0]
    made = net.socket(family, net.SOCK_STREAM)
    try:
        made.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
        if family == net.AF_INET6 and name == "::":
            made.setsockopt(net.IPPROTO_IPV6, net.IPV6_V6ONLY, 0)
        made.bind(place)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
