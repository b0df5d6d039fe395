"""The contact: the node that describes entity types to a client and locates their shards.

Any node that answers can be the contact, and an open session is preferred to a new one. When the
contact leaves or is lost, the client chooses another one, by the addresses of the members that it
received and by those that it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

from shardbus.backoff import doubling
from shardbus.errors import NodeLost, Refused
from shardbus.ids import Address, NodeId
from shardbus.task_set import TaskSet
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session

RETRY_S, RETRY_MAX_S = 0.2, 1.0
"""Until all addresses are tried again. It doubles up to the second, since a client whose cluster is
away for hours should do little, and is the second at once if some node had no room. Half as much or
half as much again, so that clients do not come all at once."""
CONTACT_WAIT_S = 3.0
START_HINT = (
    "start one with `shardbus node start APP`, or correct the addresses: a client needs the port of"
    " messages, 7355 by default"
)


class Contact:
    """The contact of one client. `on_chosen(node)` is called when there is a new one."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: list[Address],
        dice: Random,
        on_chosen: Callable[[NodeId], None],
    ) -> None:
        self.session: Session | None = None
        """The session to the contact; None while the client seeks one."""
        self.members: tuple[NodeId, ...] = ()
        """The members of the cluster, as last received."""
        self.leaving: set[NodeId] = set()
        """Members that leave: the client sends nothing new there."""
        self.denied = ""
        """Why no handshake succeeds at some address; empty if one did."""
        self.refused = ""
        """Why the cluster refuses this client; empty if it does not."""
        self.busy = ""
        """Why some node had no room for this client; empty once one had."""
        self._endpoint, self._addresses, self._dice = endpoint, addresses, dice
        self._on_chosen = on_chosen
        self._search_over = asyncio.Event()
        self._seeking: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._closed = self._had_one = False

    async def until_found(self) -> None:
        """Return once there is a contact or the cluster has refused this client."""
        await self._search_over.wait()

    def seek(self) -> None:
        """Start to seek a contact, unless that is under way or the client is closed."""
        if not self._closed and (self._seeking is None or self._seeking.done()):
            self._search_over.clear()
            self._seeking = self._tasks.spawn(self._find())

    def on_refused(self, reason: str) -> None:
        """Record that a node refuses this client. Ignored while there is a contact: the node then
        belongs to another cluster."""
        if self.session is None:
            self.refused = reason

    def on_busy(self, reason: str) -> None:
        """Record that a node has no room for this client now."""
        self.busy = reason

    def on_denied(self, reason: str) -> None:
        """Record that no handshake with a node succeeds. The client is refused by it if no other
        node answers either, before it ever had a contact: later the secret may be rotated."""
        self.denied = reason

    def close(self) -> None:
        """Stop seeking."""
        self._closed = True
        if self._seeking is not None:
            self._seeking.cancel()

    @property
    def error(self) -> Exception:
        """Return why there is no contact."""
        if self.refused:
            return Refused(self.refused)
        tried = ", ".join(map(str, self._addresses))
        text = f"no node of cluster {self._endpoint.cluster!r} answers at {tried}"
        why = self.denied or self.busy
        return NodeLost(f"{text}: {why}" if why else text, hint="" if why else START_HINT)

    @property
    def away(self) -> str:
        """Return why there is no contact, as a part of another error; empty if there is one."""
        return "" if self.session is not None else str(self.error)

    async def _find(self) -> None:
        tries = 0
        while not self.refused:
            for address in self._candidates():
                session = await self._opens(address)
                if session is not None:
                    self.session, self._had_one, self.denied, self.busy = session, True, "", ""
                    self._on_chosen(session.tag)
                    self._search_over.set()
                    return
            if self.denied and not self._had_one:
                self.refused = self.denied
            else:
                tries += 1
                pause = RETRY_MAX_S if self.busy else doubling(RETRY_S, RETRY_MAX_S, tries)
                await asyncio.sleep(pause * (0.5 + self._dice.random()))
        self._search_over.set()

    def _candidates(self) -> list[Address]:
        """Return the addresses to try, in order: the address of an open session, else all in random
        order. Nodes that leave are tried only if there is no other."""
        members = [node.address for node in self.members]
        candidates = list(dict.fromkeys([*members, *self._addresses]))
        self._dice.shuffle(candidates)
        for session in self._endpoint.sessions():
            if session.link.open and session.tag not in self.leaving:
                return [session.tag.address]
        leaving = {node.address for node in self.leaving}
        leaving |= {place for place in candidates if self._endpoint.node_at(place) in self.leaving}
        return [place for place in candidates if place not in leaving] or candidates

    async def _opens(self, address: Address) -> Session | None:
        """Return an open session to the address; None if there is none after a while. Where the
        address is another name of a node that has a session already, it is that one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONTACT_WAIT_S):
                session = self._endpoint.session_to(address, probe=True)
                await session.link.opening()
                if session.closed_idle:
                    session = self._endpoint.session_to(address, probe=True)
                    await session.link.opening()
                return session if session.link.open else None
        return None
