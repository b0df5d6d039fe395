"""The fate of messages when another process, or only the session to it, ends.

    member lives        a new session takes the place of the lost one, and sends the unsent ones
    member died         the unsent ones go to the next home, ahead of newer messages; those
                        sent and not acknowledged may have arrived, and are counted
    member left         it may still forward messages, and sends a departure notice when it has
                        finished; without that notice its sessions end after `DEPART_S`
    no member, session  the messages that were never sent come back only when this node's own
    still open          session ends; until then the node does not count as gone

When the session to a member that left has ended, whatever arrives from it later is refused, here
and at every node that this node sends to from then on (`transport.departures`). Otherwise a message
could arrive behind a newer one.

A node that ends itself counts the messages that it sent or forwarded without an acknowledgement,
and reports them to the senders of forwarded messages.

Source: docs/architecture.md; S3.58-S3.64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shardbus.errors import NodeLost
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.node.dispatch import Dispatcher
from shardbus.node.rpc import NodeRpc
from shardbus.sharding import events
from shardbus.shells.region import RegionShell
from shardbus.task_set import TaskSet
from shardbus.transport.asks import Unsent
from shardbus.transport.drop_reports import DropTallies, Origin
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session, tells_by_mark
from shardbus.wire.batch import Relayed, Run, TellRun

log = GuardedLog("shardbus.node")

DEPART_S = 30.0
"""Seconds for which a member that left may forward messages, at most."""


@dataclass(eq=False, repr=False)
class SessionLoss:
    """Settles the messages of sessions that end.

    Args:
        regions: by entity type.
        endpoint: owns the sessions.
        dispatcher: knows the clients' sessions.
        rpc: has questions on the sessions, too.
        drops: counts, by session, the messages that this node forwarded and lost.
        is_member: True if membership reports when the node's process ends.
    """

    _regions: Mapping[str, RegionShell]
    _endpoint: Endpoint
    _dispatcher: Dispatcher
    _rpc: NodeRpc
    _drops: DropTallies
    _is_member: Callable[[NodeId], bool]
    _loop: asyncio.AbstractEventLoop
    _left_nodes: dict[NodeId, None] = field(default_factory=dict)
    """Nodes that left, and may still forward messages."""
    _timers: TaskSet = field(default_factory=TaskSet)
    _parting: NodeId | None = None
    """The node whose sessions are being given up now."""

    def member_gone(self, gone: NodeId, *, died: bool) -> None:
        """Settle the messages sent to a member that membership has removed."""
        error = NodeLost(f"{gone} is gone")
        if died:
            self._endpoint.remove(gone, error)  # first: the returned are older than the waiting
            self._dispatcher.notify_clients(died=(gone,))
        else:
            self._timers.call_later(self._loop, DEPART_S, self._endpoint.remove, gone, error)
            if self._endpoint.watch(gone):
                self._left_nodes[gone] = None
                self._handle(events.NodeLeft(gone))
                return
        self._handle(events.NodeGone(gone))

    def session_lost(self, session: Session, unsent: list[Unsent]) -> None:
        """Settle a session that has ended; `unsent` was never sent on it."""
        if self._parting is not None and session.tag == self._parting:
            return  # a session that the peer opened; this node's own brings back the messages
        clients = self._dispatcher.clients
        if clients.get(session.tag) is session:
            del clients[session.tag]
            self._handle(events.NodeGone(session.tag))
            return
        by_table: dict[str, list[Unsent]] = {name: [] for name in self._regions}
        questions = [message for message in unsent if message.key[0] not in by_table]
        self._rpc.unsent(questions, session.lost or NodeLost(f"{session.name} is gone"))
        for message in unsent:
            if message.key[0] in by_table:
                by_table[self._regions[message.key[0]].table.name].append(message)
        member = self._is_member(session.tag)
        is_node = isinstance(session.tag, NodeId)
        ended = is_node and not member and not self._endpoint.watch(session.tag)
        if ended and session.tag in self._left_nodes:
            self._part(session.tag)
        for name, region in self._regions.items():
            if lost := session.unconfirmed.get(name):
                region.host.counts.drop("unconfirmed", lost)
                _keep(region, session.unconfirmed_runs)
            if region.table is not region:
                continue
            if member:
                region.router.reconnect(session)
                region.router.resend(by_table[name])
            elif ended:
                region.router.gone(session.tag, by_table[name])

    def _handle(self, event: events.RegionEvent) -> None:
        """Pass an event to the region machine of each table."""
        for region in self._regions.values():
            if region.table is region:
                region.router.handle(event)

    def _part(self, left: NodeId) -> None:
        """Give up the sessions of a node that left and forwards nothing any more. Its messages that
        have come are handed out before anything newer can be, here and elsewhere; the rest is
        refused."""
        del self._left_nodes[left]
        self._endpoint.departures.announce(left)
        self._parting = left
        try:
            self._endpoint.end_sessions(left, NodeLost(f"{left} has left"))
        finally:
            self._parting = None

    def closing(self) -> None:
        """Count forwarded tells without an acknowledgement, for the reports to their senders. This
        node ends no session any more."""
        self._timers.cancel()
        for session in self._endpoint.outgoing_sessions:
            for (name, via), lost in tells_by_mark(session.unacknowledged()).items():
                self._drops.drop(via, name, "unconfirmed", lost)

    def closed(self, sessions: Iterable[Session]) -> None:
        """Count and log the unacknowledged messages of the sessions that this node closed."""
        sessions = list(sessions)
        for name, region in self._regions.items():
            if lost := sum(session.unconfirmed.get(name, 0) for session in sessions):
                region.host.counts.drop("unconfirmed", lost)
                log.warning("%d messages of %r may be lost: no acknowledgement came", lost, name)


def _keep(region: RegionShell, runs: Iterable[Run]) -> None:
    """Keep the tells of a type in these runs as dead letters."""
    keep = region.host.counts.keep_letter
    if keep is None:
        return
    for run in runs:
        match run:
            case TellRun() if run.type == region.name:
                for entity_id, payload in zip(run.ids, run.payloads, strict=True):
                    keep("unconfirmed", entity_id, run.method, payload, Origin.OWN, run.trace)
            case Relayed() if run.type == region.name and not run.corr:
                sender = run.via or Origin.OWN
                keep("unconfirmed", run.id, run.method, run.payload, sender, run.trace)
            case _:
                pass
