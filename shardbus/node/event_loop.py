"""The event loop of a node's process: look-ups of host names have bounds of their own.

asyncio runs look-ups in the loop's pool of threads, which handlers with `thread=True` use, too. A
name server that does not answer keeps each thread for 10 s and longer: a store that reconnects
would soon hold all of them, and the process cannot end before the last look-up returns. So this
loop looks names up as links do (`transport.name_resolver`), and if an answer takes too long,
connects to the address that was known before.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from shardbus.transport.destination import is_numeric
from shardbus.transport.name_resolver import LookUpFunction, NameResolver, system_look_up

WITHIN_S = 1.0
"""Seconds for a look-up; a store gives a whole call about twice as long."""


class NodeEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose look-ups hold up neither its threads nor its end."""

    def __init__(self, look_up: LookUpFunction = system_look_up) -> None:
        super().__init__()
        self._names = NameResolver(look_up)
        self._names.open(self)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        """As `socket.getaddrinfo`.

        Raises:
            socket.gaierror: there is no address, or none is known in time.
        """
        if not isinstance(host, str) or not isinstance(port, int) or not host or is_numeric(host):
            return await super().getaddrinfo(
                host, port, family=family, type=type, proto=proto, flags=flags
            )
        known = await self._names.resolve(host, WITHIN_S)
        found: list[tuple[Any, ...]] = []
        for address in known.addresses:
            own = socket.AF_INET6 if ":" in address else socket.AF_INET
            if family in (0, own):
                found += socket.getaddrinfo(
                    address, port, own, type, proto, flags | socket.AI_NUMERICHOST
                )
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, known.reason or "no address of that family")
        return found

    def close(self) -> None:
        """Close the loop. Look-ups that run end by themselves."""
        self._names.close()
        super().close()
