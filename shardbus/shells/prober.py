"""Finds out whether a node's process still runs, for confirmed death.

    1. a fresh TCP connection to the node's ROUTER   refused: no process listens, so it has ended
    2. a frame for the node's uid, on that port      answered under that uid: it is alive; under
                                                     another: another process has the address, so it
                                                     has ended, too

No answer proves nothing, and neither does any other error: a busy node answers late. A name is
looked up first, for a quarter of a second; after that the addresses known before serve. They prove
nothing if another process may have had them (`name_lookups`).

The sockets of a dying process do not close all at once, and until they do the system accepts
connections for it. So the first connection stays open meanwhile. If it is closed before an answer
arrives, the process may have ended just now, and the probe is repeated at once, a few times.

Source: docs/architecture.md; S1.58; B.42, N.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from shardbus.ids import NodeId
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.transport.name_lookups import KnownName
from shardbus.transport.name_resolver import NameResolver
from shardbus.transport.tcp_probe import LOOKUP_WITHIN_S, open_probe
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.identify import Identifier

PROBE_WITHIN = 1.0
WHO_WITHIN = 0.2
ATTEMPTS = 3


class Prober:
    """Probes nodes for the node with this uid. Belongs to one event loop, as its resolver does. A
    process that does not send its uid within `WHO_WITHIN` seconds may be alive: its loop may be
    busy."""

    def __init__(
        self, cluster: str, uid: int, resolver: NameResolver, keyring: Keyring | None = None
    ) -> None:
        self._resolver = resolver
        self._identifier = Identifier(cluster, uid, keyring)

    async def probe(self, node: NodeId) -> ProbeOutcome:
        """Return a description of the listener at the node's address now."""
        try:
            async with asyncio.timeout(PROBE_WITHIN):
                host = await self._resolver.resolve(node.host, LOOKUP_WITHIN_S)
                for _ in range(ATTEMPTS):
                    outcome = await self._attempt(host, node)
                    if outcome is not None:
                        return outcome
        except ConnectionRefusedError:
            return ProbeOutcome.REFUSED
        except (OSError, TimeoutError):
            return ProbeOutcome.UNKNOWN
        return ProbeOutcome.OPEN

    async def _attempt(self, host: KnownName, node: NodeId) -> ProbeOutcome | None:
        """Probe once. Returns None if the connection was made, and closed before an answer.

        Raises:
            OSError: as `open_probe`.
        """
        with await open_probe(host, node.port) as connection:
            place = str(connection.getpeername()[0])
            who = asyncio.ensure_future(self._identifier.uid_at(place, node))
            closed = asyncio.ensure_future(_closed(connection))
            try:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait((who, closed), timeout=WHO_WITHIN, return_when=first)
                if who.done() and who.exception() is None:
                    alive = who.result() == node.uid
                    return ProbeOutcome.ALIVE if alive else ProbeOutcome.OTHER
                return None if closed.done() else ProbeOutcome.OPEN
            finally:
                for task in (who, closed):
                    task.cancel()
                await asyncio.gather(who, closed, return_exceptions=True)

    def close(self) -> None:
        """Close every socket."""
        self._identifier.close()


async def _closed(connection: socket.socket) -> None:
    """Return when the other side has closed the connection."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while await loop.sock_recv(connection, 4096):
            pass
