"""What becomes of messages when another process ends, or only the link to it.

A member that left may still pass on what it was sent, and says goodbye when it has done so; if that
does not come, its sessions end after a while. One that died says nothing any more: what had never
left for it goes to the next home, ahead of what waits, since it is older; what had, and was not
acknowledged, may have arrived or not, and is counted. While a member lives, a new link takes the
place of a lost one. One that is no member any more has ended only when our own link to it has, for
what never left on that comes back then, and must not come too late.

A node that ends itself counts what it had sent or passed on and nobody has acknowledged.

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
from shardbus.transport.session import Session

if TYPE_CHECKING:
    from shardbus.runtime.node import Node

log = logging.getLogger("shardbus.node")

DEPART_S = 30.0
"""So long at most may a member that left go on passing messages on."""


class Losses:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def member_gone(self, gone: NodeId, *, died: bool) -> None:
        """Membership has removed it."""
        node = self._node
        error = NodeLost(f"{gone} is gone")
        if died:
            node.endpoint.drop(gone, error)  # first: what comes back is older than what waits
            node.switchboard.tell_clients(died=(gone,))
        else:
            node.loop.call_later(DEPART_S, node.endpoint.drop, gone, error)
            if node.endpoint.watch(gone):
                for kind in node.kinds.values():
                    kind.router.handle(events.NodeLeft(gone))
                return
        for kind in node.kinds.values():
            kind.router.handle(events.NodeGone(gone))

    def session_lost(self, session: Session, unsent: list[Unsent]) -> None:
        """A session has ended; `unsent` never left on it."""
        node = self._node
        if node.switchboard.clients.get(session.tag) is session:
            del node.switchboard.clients[session.tag]
            for kind in node.kinds.values():
                kind.router.handle(events.NodeGone(session.tag))
            return
        by_kind: dict[str, list[Unsent]] = {name: [] for name in node.kinds}
        questions = [message for message in unsent if message.key[0] not in by_kind]
        node.questions.unsent(questions, session.lost or NodeLost(f"{session.name} is gone"))
        for message in unsent:
            if message.key[0] in by_kind:
                by_kind[message.key[0]].append(message)
        member = node.is_member(session.tag)
        is_node = isinstance(session.tag, NodeId)
        ended = is_node and not member and not node.endpoint.watch(session.tag)
        for name, kind in node.kinds.items():
            if lost := session.unconfirmed.get(name):
                kind.host.counts.drop("unconfirmed", lost)
            if member:
                kind.router.reconnect(session)
                kind.router.resend(by_kind[name])
            elif ended:
                kind.router.gone(session.tag, by_kind[name])

    def closed(self, sessions: Iterable[Session]) -> None:
        """This node ends, and these with it."""
        sessions = list(sessions)
        for name, kind in self._node.kinds.items():
            if lost := sum(session.unconfirmed.get(name, 0) for session in sessions):
                kind.host.counts.drop("unconfirmed", lost)
                log.warning("%d messages of %r may be lost: nobody has confirmed them", lost, name)
