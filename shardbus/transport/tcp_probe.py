"""A TCP probe: does a process listen at an address?

A refused connection proves that no process listens there. Nothing else proves anything: a timeout
or a route error may come from the network, and a connection may be accepted by the kernel for a
process that is about to end.

A host may have several addresses. All are tried at once, because the network may drop the packets
to one of them, and the first that accepts is used. Every address is numeric: names are looked up
before (`name_resolver`).

Source: docs/architecture.md; S1.58.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

from shardbus.transport.name_lookups import KnownName

LOOKUP_WITHIN_S = 0.25
"""Seconds that a probe waits for an answer that is newer than the last."""


async def open_probe(host: KnownName, port: int) -> socket.socket:
    """Open a TCP connection; the caller closes it.

    A connection of a port to itself, which the kernel may make on an unused port, counts as
    refused.

    Raises:
        ConnectionRefusedError: every address refuses, and the addresses are sure.
        OSError: connecting failed in another way, or no address is known.
    """
    errors: list[OSError] = []
    connected: socket.socket | None = None
    attempts = {asyncio.ensure_future(_connect(address, port)) for address in host.addresses}
    try:
        for attempt in asyncio.as_completed(attempts):
            try:
                connected = await attempt
                return connected
            except OSError as error:
                errors.append(error)
    finally:
        for other in attempts:
            other.cancel()
        await _close(attempts, but=connected)
    return _failed(host, errors)


def _failed(host: KnownName, errors: list[OSError]) -> socket.socket:
    """Raise the error that stands for all."""
    if not errors:
        raise OSError(f"no address is known: {host.reason}")
    others = [e for e in errors if not isinstance(e, ConnectionRefusedError)]
    if others:
        raise others[0]
    if not host.sure:
        raise OSError("refused at an address that another process may have had")
    raise errors[0]


async def _close(attempts: Iterable[asyncio.Future[socket.socket]], but: object) -> None:
    """Wait until the cancelled attempts have ended, and close the connections that they opened
    meanwhile."""
    for ended in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(ended, socket.socket) and ended is not but:
            ended.close()


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as unless_kept:
        client = unless_kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
        client.setblocking(False)
        await loop.sock_connect(client, _place(host, port))
        if client.getsockname() == client.getpeername():
            raise ConnectionRefusedError(f"port {port} connected to itself")
        unless_kept.pop_all()
        return client


def _place(host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return the address for `connect`, with the number of the zone of a link-local address."""
    host, _, zone = host.partition("%")
    if not zone:
        return host, port
    return host, port, 0, int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
