"""Goodbyes are told on, so that nothing comes late from a process that has ended.

A node that left passes on what it was sent, and its senders wait for that: a Flush behind it comes
back. If the node ends before (a connection broke, or the receiver had no room), the wait ends too,
and a newer message takes another way, which may be the faster one:

    sender ── 1 ──> node that leaves ── 1 ... held up ...> home
    sender ── 2 ────────────────────────────────────────> home

So whoever gives up a node tells so on every link, before anything else that it sends there. Whoever
hears it, and knows that the node leaves, tells it on, once, and takes it for a goodbye to itself:
what has come by that node's sessions is handed out, and what has not is never taken any more. Then
1 comes before 2 or not at all. Who left counts what was not acknowledged when it went, and tells
its senders.

Of a member that hosts yet it is not believed: who says so may have met a wall.

What a node that lives has passed on once more, behind the one that left, may still be held up.

Source: docs/guarantees.md; S0.35; C.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.errors import NodeLost
from shardbus.ids import NodeId
from shardbus.transport.session import Session
from shardbus.wire.control import Goodbye, encode_control

if TYPE_CHECKING:
    from shardbus.transport.endpoint import Endpoint

NEWS_S = 60.0
"""For so long a goodbye is told on links that are opened."""
KNOWN_MAX = 1000
"""So many goodbyes are remembered, so that each is told once; the oldest are forgotten first."""


class DepartureNotices:
    """See the module; one per endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._said: dict[NodeId, float] = {}
        """Who has ended, and when we heard."""

    def tell(self, node: NodeId) -> None:
        """We have given this process up: tell everybody, before anything that is sent from now
        on."""
        self._said.pop(node, None)
        self._said[node] = self._endpoint.loop.time()
        if len(self._said) > KNOWN_MAX:
            del self._said[next(iter(self._said))]
        for session in self._endpoint.opened_here:
            self._say(session, node)

    def greet(self, session: Session) -> None:
        """A link is opened: the first that is said on it."""
        now = self._endpoint.loop.time()
        for node in [node for node, at in self._said.items() if now - at < NEWS_S]:
            self._say(session, node)

    def heard(self, node: NodeId) -> None:
        """Somebody else has given it up, and it is known to leave."""
        if node != self._endpoint.node:
            if node not in self._said:
                self.tell(node)
            self._endpoint.give_up(node, NodeLost(f"{node} has left"))

    def _say(self, session: Session, node: NodeId) -> None:
        """In a batch of its own, which nothing holds up."""
        if session.tag != node:
            session.flush()
            session.control(encode_control("", Goodbye(node)))
            session.flush()
