"""The event loop of a node's process: look-ups of host names have bounds of their own.

asyncio runs look-ups in the loop's pool of threads, which handlers with `thread=True` use, too. A
name server that does not answer keeps each thread for 10 s and longer: a store that reconnects
would soon hold all of them, and the process cannot end before the last look-up returns. So this
loop looks names up as links do (`transport.name_resolver`), and if an answer takes too long,
connects to the address that was known before.

While no file descriptor is left, asyncio tries once a second to accept a connection, and reports
each time with a traceback. This loop reports it in one line, in intervals.

Before Python 3.14 asyncio takes the watcher of child processes from the policy of event loops. An
application may have installed the policy of another loop when it was imported, as `uvloop.install`
does; that policy has no watcher for this loop, so handlers could start no process.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from shardbus.guarded_log import GuardedLog
from shardbus.transport.descriptors import HINT, descriptors_limit
from shardbus.transport.destination import is_numeric
from shardbus.transport.name_resolver import LookUpFunction, NameResolver, system_look_up

log = GuardedLog("shardbus.node")

NO_DESCRIPTOR = "socket.accept() out of system resource"
"""The message of asyncio."""
REPORT_EVERY_S = 10.0
WITHIN_S = 1.0
"""Seconds for a look-up; a store gives a whole call about twice as long."""


def take_own_policy() -> None:
    """Let asyncio watch child processes for this loop, whatever policy the application has set."""
    if sys.version_info < (3, 14):
        asyncio.set_event_loop_policy(None)


class NodeEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose look-ups hold up neither its threads nor its end."""

    def __init__(self, look_up: LookUpFunction = system_look_up) -> None:
        super().__init__()
        self._names = NameResolver(look_up)
        self._names.open(self)
        self._reported_at: float | None = None

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
        lookup = await self._names.resolve(host, WITHIN_S)
        addresses: list[tuple[Any, ...]] = []
        for address in lookup.addresses:
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            if family in (0, kind):
                addresses += socket.getaddrinfo(
                    address, port, kind, type, proto, flags | socket.AI_NUMERICHOST
                )
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, lookup.reason or "no address of that family")
        return addresses

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no other code handles."""
        if context.get("message") != NO_DESCRIPTOR:
            super().default_exception_handler(context)
            return
        now = self.time()
        if self._reported_at is None or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            port, limit = context["socket"].getsockname()[1], descriptors_limit()
            log.warning(
                "connections to port %d wait: all %d descriptors are in use: %s", port, limit, HINT
            )

    def close(self) -> None:
        """Close the loop. Look-ups that run end by themselves."""
        self._names.close()
        super().close()
