"""A TCP probe: does a process listen at an address?

A refused connection proves that no process listens there. Nothing else proves anything: a timeout
or a route error may come from the network, and a connection may be accepted by the kernel for a
process that is about to end.

Source: docs/architecture.md; S1.58.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from shardbus.ids import Address


async def open_probe(address: Address) -> socket.socket:
    """Open a TCP connection; the caller closes it.

    Every address that the host name stands for is tried in turn. A connection of a port to itself,
    which the kernel may make on an unused port, counts as refused.

    Raises:
        ConnectionRefusedError: every address refuses.
        OSError: connecting failed in another way.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    error: OSError = OSError(f"{address.host} stands for no address")
    for number, (family, _, _, _, place) in enumerate(found):
        try:
            return await _connect(loop, family, place)
        except ConnectionRefusedError as refused:
            error = error if number else refused
        except OSError as other:
            error = other
    raise error


async def _connect(
    loop: asyncio.AbstractEventLoop, family: int, place: tuple[Any, ...]
) -> socket.socket:
    with contextlib.ExitStack() as unless_kept:
        client = unless_kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
        client.setblocking(False)
        await loop.sock_connect(client, place)
        if client.getsockname() == client.getpeername():
            raise ConnectionRefusedError(f"port {place[1]} connected to itself")
        unless_kept.pop_all()
        return client
