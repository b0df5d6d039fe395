"""The reports of a region to its coordinator: what has happened in a turn, in few messages.

    GetShardHome                          shards without a known home
    ShardMoved, MoveRefused, MoveComplete  both sides of direct moves
    ShardStarted, ShardStopped            shards on this node
    BeginHandOffAck                       messages for these shards wait here

Reports are kept until there is a coordinator. A client only requests homes. Whether a report is
repeated is decided where it arises: the coordinator asks again.

Source: S0.8, S0.21.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.messages import Home
from shardbus.sharding.region.incoming_moves import IncomingMoves
from shardbus.sharding.region.outgoing_moves import OutgoingMoves
from shardbus.sharding.region.routing import Routing


@dataclass(slots=True, eq=False, repr=False)
class CoordinatorReports:
    """The reports of one turn, of the region on `me`. Effects are appended to `out`."""

    _me: NodeId | None
    _routing: Routing
    _outgoing: OutgoingMoves
    _incoming: IncomingMoves
    _out: list[ev.RegionEffect]
    started: dict[str, Home] = field(default_factory=dict)
    """The homes at which shards run here, by shard."""
    stopped: dict[str, Home] = field(default_factory=dict)
    """The homes at which shards have ended here."""

    def send(self, requests: tuple[str, ...]) -> None:
        """Send the reports, and request the homes of these shards."""
        if requests:
            self._send(msg.GetShardHome(requests))
        started, self.started = self.started, {}
        acks, self._routing.acks = self._routing.acks, {}
        stopped, self.stopped = self.stopped, {}
        if self._me is None:
            return
        self._send_moves(self._me)
        if started:
            self._send(msg.ShardStarted(tuple(started.values())))
        if acks:
            self._send(msg.BeginHandOffAck(self._me, tuple(acks.values())))
        if stopped:
            left = tuple(shard for shard in stopped if self._routing.has_leftovers(shard))
            self._send(msg.ShardStopped(self._me, tuple(stopped.values()), left))

    def _send_moves(self, me: NodeId) -> None:
        outgoing, incoming = self._outgoing, self._incoming
        if outgoing.reports:
            self._send(msg.ShardMoved(me, tuple(outgoing.reports.values())))
            outgoing.reports = {}
        if outgoing.refused:
            self._send(msg.MoveRefused(me, tuple(outgoing.refused.values())))
            outgoing.refused = {}
        if incoming.complete:
            self._send(msg.MoveComplete(me, tuple(incoming.complete.values())))
            incoming.complete = {}

    def _send(self, message: ev.Message) -> None:
        self._out.append(ev.SendCoordinator(message))
