"""The contact: the node that tells a client what types are and where their shards live.

Any node will do that answers, and a session that is open already is as good as a new one. When the
contact leaves or is lost, the client takes another one, by the addresses of the members that it was
told of, and by those that it was given.

Source: docs/how-to.md; B.130.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from shardbus.errors import NodeLost, Refused
from shardbus.ids import Address, NodeId
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session

RETRY_S = 0.2
CONTACT_WAIT_S = 3.0


class Contact:
    """See the module. `on_taken(node)` is called when there is one."""

    def __init__(
        self,
        endpoint: Endpoint,
        given: list[Address],
        dice: Random,
        on_taken: Callable[[NodeId], None],
    ) -> None:
        self.session: Session | None = None
        """The one that we have; None while another is looked for."""
        self.members: tuple[NodeId, ...] = ()
        """Who is in the cluster, as far as we were told."""
        self.leaving: set[NodeId] = set()
        """Members that go: nothing new is sent there."""
        self.refused = ""
        """Why the cluster does not take us."""
        self._endpoint, self._given, self._dice, self._on_taken = endpoint, given, dice, on_taken
        self._found = asyncio.Event()
        self._seeking: asyncio.Task[None] | None = None
        self._closed = False

    async def found(self) -> None:
        """Return once there is one, or the cluster has refused us."""
        await self._found.wait()

    def seek(self) -> None:
        """Look for one."""
        if not self._closed and (self._seeking is None or self._seeking.done()):
            self._found.clear()
            self._seeking = asyncio.get_running_loop().create_task(self._find())

    def on_refused(self, reason: str) -> None:
        """A node does not take us. Once we have been taken, it was another cluster's."""
        if self.session is None:
            self.refused = reason

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._seeking is not None:
            self._seeking.cancel()

    @property
    def error(self) -> Exception:
        """Why there is none."""
        if self.refused:
            return Refused(self.refused)
        tried = ", ".join(map(str, self._given))
        return NodeLost(f"no node of cluster {self._endpoint.cluster!r} answers at {tried}")

    async def _find(self) -> None:
        while not self.refused:
            known = [n.address for n in self.members if n not in self.leaving]
            candidates = list(dict.fromkeys([*known, *self._given]))
            self._dice.shuffle(candidates)
            open_already = [
                s for s in self._endpoint.sessions() if s.open and s.tag not in self.leaving
            ]
            for address in candidates if not open_already else [open_already[0].tag.address]:
                session = self._endpoint.session_to(address, probe=True)
                if await self._welcomed(session):
                    self.session = session
                    self._on_taken(session.tag)
                    self._found.set()
                    return
            await asyncio.sleep(RETRY_S)
        self._found.set()

    async def _welcomed(self, session: Session) -> bool:
        try:
            async with asyncio.timeout(CONTACT_WAIT_S):
                await session.opening()
        except TimeoutError:
            return False
        return session.open
