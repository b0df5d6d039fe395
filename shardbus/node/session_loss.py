"""What becomes of messages when another process ends, or only the link to it.

A member that left may still pass on what it was sent, and says goodbye when it has done so; if
that does not come, its sessions end after a while. One that died says nothing any more: what had
never left for it goes to the next home, ahead of what waits, since it is older; what had, and was
not acknowledged, may have arrived or not, and is counted. While a member lives, a new link takes
the place of a lost one. One that is no member any more has ended only when our own link to it has,
for what never left on that comes back then, and must not come too late. When it does, whatever else
may yet come from one that left is refused, here and wherever we send from then on
(`transport.goodbyes`).

A node that ends itself counts what it had sent or passed on and nobody has acknowledged, and tells
those for whom it did.

Source: docs/architecture.md; S3.58-S3.64; C.5; N.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardbus.errors import NodeLost
from shardbus.ids import NodeId
from shardbus.sharding import events
from shardbus.transport.asks import Unsent
from shardbus.transport.session import Session, tells_by_mark

if TYPE_CHECKING:
    from shardbus.node.node import Node

log = logging.getLogger("shardbus.node")

DEPART_S = 30.0
"""So long at most may a member that left go on passing messages on."""


class SessionLoss:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._left: dict[NodeId, None] = {}
        """Who has left, and may still pass messages on."""
        self._parting: NodeId | None = None
        """Of whose end everything is being told now."""

    def member_gone(self, gone: NodeId, *, died: bool) -> None:
        """Membership has removed it."""
        node = self._node
        error = NodeLost(f"{gone} is gone")
        if died:
            node.endpoint.remove(gone, error)  # first: what comes back is older than what waits
            node.dispatcher.tell_clients(died=(gone,))
        else:
            node.loop.call_later(DEPART_S, node.endpoint.remove, gone, error)
            if node.endpoint.watch(gone):
                self._left[gone] = None
                for kind in node.kinds.values():
                    kind.router.handle(events.NodeLeft(gone))
                return
        for kind in node.kinds.values():
            kind.router.handle(events.NodeGone(gone))

    def session_lost(self, session: Session, unsent: list[Unsent]) -> None:
        """A session has ended; `unsent` never left on it."""
        node = self._node
        if self._parting is not None and session.tag == self._parting:
            return  # by its own session, while what comes back by ours is still to be told
        if node.dispatcher.clients.get(session.tag) is session:
            del node.dispatcher.clients[session.tag]
            for kind in node.kinds.values():
                kind.router.handle(events.NodeGone(session.tag))
            return
        by_kind: dict[str, list[Unsent]] = {name: [] for name in node.kinds}
        rpc = [message for message in unsent if message.key[0] not in by_kind]
        node.rpc.unsent(rpc, session.lost or NodeLost(f"{session.name} is gone"))
        for message in unsent:
            if message.key[0] in by_kind:
                by_kind[message.key[0]].append(message)
        member = node.is_member(session.tag)
        is_node = isinstance(session.tag, NodeId)
        ended = is_node and not member and not node.endpoint.watch(session.tag)
        if ended and session.tag in self._left:
            self._part(session.tag)
        for name, kind in node.kinds.items():
            if lost := session.unconfirmed.get(name):
                kind.host.counts.drop("unconfirmed", lost)
            if member:
                kind.router.reconnect(session)
                kind.router.resend(by_kind[name])
            elif ended:
                kind.router.gone(session.tag, by_kind[name])

    def _part(self, left: NodeId) -> None:
        """It passes nothing on any more: what has come from it is handed out before anything newer
        can be, here and at others, and the rest is not taken."""
        del self._left[left]
        endpoint = self._node.endpoint
        endpoint.departures.announce(left)
        self._parting = left
        try:
            endpoint.end_sessions(left, NodeLost(f"{left} has left"))
        finally:
            self._parting = None

    def stopper(self) -> None:
        """This node ends: tell those for whom it has passed on what nobody has acknowledged."""
        for session in self._node.endpoint.outgoing_sessions:
            for (name, via), lost in tells_by_mark(session.unacknowledged()).items():
                self._node.drops.drop(via, name, "unconfirmed", lost)

    def closed(self, sessions: Iterable[Session]) -> None:
        """This node ends, and these with it."""
        sessions = list(sessions)
        for name, kind in self._node.kinds.items():
            if lost := sum(session.unconfirmed.get(name, 0) for session in sessions):
                kind.host.counts.drop("unconfirmed", lost)
                log.warning("%d messages of %r may be lost: nobody has confirmed them", lost, name)
