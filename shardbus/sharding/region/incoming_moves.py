"""The new home of a direct move: how it takes a shard over, and in which order messages come in.

    PrepareMove ──> PREPARED ──Switch──> STARTING ──shard ready──> OPENING ──all open──> (done)

- PREPARED: nothing of the shard runs here. Messages that come are kept.
- STARTING: the old home has handed the shard over, and it starts.
- OPENING: the shard runs. The old home's messages are let in as they come. In a mode with
  `arrivals="buffer"` the node keeps, for each sender, the messages that come directly, until that
  sender's MoveAck arrives from the old home: behind everything that the sender had sent there. Then
  the sender's messages are handled in their order, and later ones are let in. Processes that are no
  senders of the move (clients, nodes that came later) send here only after the echo of their Flush,
  so they are let in.

            sender S                    old home N1                       new home N2
               │ m1 ─────────────────────> │ m1 ───────────────────────────> │ m1 handled
               │ MoveAck ────────────────> │                                 │
               │ m2 ───────────────────────┼───────────────────────────────> │ m2 kept for S
               │                           │ MoveAck of S ─────────────────> │ m2 handled

Every wait ends. A new home without Switch asks its old home again every `retry_interval`, with
MovePrepared. Without a MoveAck it asks the sender, with AckWanted: an acknowledgement that is lost
with its session is none. It asks the old home, too, which answers for senders that are gone. After
`ACK_PATIENCE_S` a sender's messages are handled all the same, and the region notes `ack_given_up`:
from then on the order of that sender is not guaranteed. When the old home is gone, nothing more can
come from it, and every buffer opens. If it is gone before Switch, only the coordinator's HostShard
starts the shard. The new home requests the home every `retry_interval` then: a coordinator whose
store has lost the move has the shard nowhere, and the waiting messages would wait for ever.

The entities' in-memory data from the old home comes before Switch, and goes to the shard's start.
Data that comes later, or exceeds `CARRY_MAX` bytes, is refused, and noted: those entities start
from the store.

Kept messages and data count in the region's buffer, and are refused above its bound.

Source: S3.59, S3.60, S3.63, S3.64, S3.68, S3.69, S3.75; docs/partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.handoff_modes import HandoffMode
from shardbus.sharding.handoff_phases import MovePhase
from shardbus.sharding.messages import CarriedEntity, Home, ShardMove
from shardbus.sharding.region.outgoing_moves import mode_of
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, BufferedMessage
from shardbus.sharding.region.routing import FLUSH_PATIENCE_S, Routing
from shardbus.sharding.timers import Timers

ACK_PATIENCE_S = FLUSH_PATIENCE_S
"""Seconds after which the messages of a sender without a MoveAck are handled: as long as a sender
waits for the echo of a Flush."""


CARRY_MAX = 2**26
"""Bytes, at most, that the shards of one type carry to this node before they start."""


class IncomingMove(msgspec.Struct):
    """One shard that this node takes over."""

    move: ShardMove
    mode: HandoffMode
    gates: dict[NodeId, list[BufferedMessage]]
    """By sender without an acknowledgement: the messages that it sent here."""
    first: list[BufferedMessage] = msgspec.field(default_factory=list)
    """The old home's messages that came before the shard ran."""
    others: list[BufferedMessage] = msgspec.field(default_factory=list)
    """Other nodes' messages that came before the shard ran."""
    carried: tuple[CarriedEntity, ...] = ()
    """The entities' in-memory data from the old home."""
    switched: bool = False
    runs: bool = False
    until: float = 0.0
    """When the wait for acknowledgements ends."""


class IncomingMoves:
    """The shards that this node takes over. Effects are appended to `out`.

    Args:
        start: starts a shard on this node, with its entities' in-memory data; `on_running` follows.
        drop: forgets a shard that was prepared and has not started.
    """

    __slots__ = (
        "_drop", "_me", "_moves", "_out", "_retry", "_routing", "_start", "_timers", "complete",
    )  # fmt: skip

    def __init__(
        self,
        me: NodeId | None,
        settings: ShardingSettings,
        routing: Routing,
        out: list[ev.RegionEffect],
        start: Callable[[str, tuple[CarriedEntity, ...]], None],
        drop: Callable[[str], None],
    ) -> None:
        self._me, self._routing, self._out = me, routing, out
        self._start, self._drop = start, drop
        self._retry = settings.retry_interval
        self._moves: dict[str, IncomingMove] = {}
        self._timers: Timers[str] = Timers()
        self.complete: dict[str, ShardMove] = {}
        """Moves to report as MoveComplete at the end of the turn."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards of these moves."""
        return tuple(self._moves)

    def phases(self) -> Iterator[MovePhase]:
        """Yield the moves with their phases."""
        for shard, incoming in self._moves.items():
            phase = "opening" if incoming.runs else "starting" if incoming.switched else "prepared"
            yield MovePhase(shard, phase, True, incoming.move.old.node, incoming.move.new.node)

    def __contains__(self, shard: str) -> bool:
        return shard in self._moves

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._timers.deadline()

    def has(self, home: Home) -> bool:
        """True if the shard comes to this home."""
        incoming = self._moves.get(home.shard)
        return incoming is not None and incoming.move.new == home

    def prepare(self, move: ShardMove, text: str, senders: tuple[NodeId, ...], now: float) -> None:
        """Take a shard that is about to come; the region keeps it as prepared."""
        mode = mode_of(text)
        gated = senders if mode.keeps_order else ()
        gates: dict[NodeId, list[BufferedMessage]] = {
            node: [] for node in gated if node != move.old.node
        }
        self._moves[move.new.shard] = IncomingMove(move, mode, gates)
        self._timers.set(move.new.shard, now + self._retry)
        self._out.append(ev.Send(move.old.node, msg.MovePrepared((move,), carries=True)))

    def on_carried(self, move: ShardMove, entities: tuple[CarriedEntity, ...]) -> None:
        """Keep the entities' in-memory data from the old home, until their shard starts."""
        incoming = self._moves.get(move.new.shard)
        if incoming is None or incoming.move != move or incoming.switched:
            self._out.append(ev.Note("carry_refused", f"shard {move.new.shard}: it comes too late"))
            return
        kept = sum(entity.size for other in self._moves.values() for entity in other.carried)
        if kept + sum(entity.size for entity in entities) > CARRY_MAX:
            self._out.append(ev.Note("carry_refused", f"shard {move.new.shard}: above {CARRY_MAX}"))
            return
        incoming.carried += entities

    def on_switch(self, move: ShardMove) -> bool:
        """Start the shard: it has stopped at its old home. False if it does not start now."""
        incoming = self._moves.get(move.new.shard)
        starts = incoming is not None and incoming.move == move and not incoming.switched
        if incoming is not None and starts:
            self._go(incoming)
        return starts

    def on_host(self, home: Home) -> bool:
        """Start a prepared shard at the coordinator's command: its old home is gone. False if it
        runs or starts already."""
        incoming = self._moves.get(home.shard)
        if incoming is None or incoming.switched:
            return False
        self._go(incoming)
        return True

    def _go(self, incoming: IncomingMove) -> None:
        if not incoming.switched:
            incoming.switched = True
            carried, incoming.carried = incoming.carried, ()
            self._start(incoming.move.new.shard, carried)

    def on_running(self, shard: str, now: float) -> bool:
        """Let in the waiting messages, in order. False if the shard does not come by a direct
        move."""
        incoming = self._moves.get(shard)
        if incoming is None:
            return False
        incoming.runs, incoming.until = True, now + ACK_PATIENCE_S
        if incoming.gates:
            self._routing.gate(shard, incoming.move.old.node)
        self._let_in(shard, incoming.first + incoming.others)
        incoming.first, incoming.others = [], []
        self._routing.on_shard_running(shard, incoming.move.new.fence)
        if incoming.gates:
            self._out.append(ev.SetArrivals(shard, True, via=incoming.move.old.node))
            self._timers.set(shard, now + self._retry)
        self._finish(incoming)
        return True

    def deliver(self, event: ev.Deliver) -> bool:
        """Let in or keep a message that came over a session. Returns False if it takes the way of
        any other message."""
        incoming = self._moves.get(event.shard)
        if incoming is None or event.via is None:
            return False
        queue: list[BufferedMessage] | None = incoming.gates.get(event.via)
        if queue is None and not incoming.runs:
            queue = incoming.first if event.via == incoming.move.old.node else incoming.others
        if queue is None:
            self._out.append(ev.Release(event.shard, incoming.move.new.node, (event.message,)))
        elif self._routing.waiting.take(event.message):
            queue.append(event.message)
        else:
            self._out.append(ev.Reject(event.shard, event.message, REJECT_BUFFER_FULL))
        return True

    # Acknowledgements.

    def on_ack(self, sender: NodeId, move: ShardMove, now: float) -> None:
        """Open the buffer of this sender: everything that it sent to the old home has come."""
        incoming = self._moves.get(move.new.shard)
        if incoming is not None and incoming.move == move:
            self._open(incoming, sender)
            self._finish(incoming)
        if sender == self._me:
            self._routing.on_own_ack(move, now)

    def _open(self, incoming: IncomingMove, sender: NodeId) -> None:
        kept = incoming.gates.pop(sender, [])
        if incoming.runs:
            self._let_in(incoming.move.new.shard, kept)
        else:
            incoming.others += kept

    def _let_in(self, shard: str, messages: list[BufferedMessage]) -> None:
        if messages and self._me is not None:
            self._routing.waiting.counts.remove(messages)
            self._out.append(ev.Release(shard, self._me, tuple(messages)))

    def _finish(self, incoming: IncomingMove) -> None:
        """End the move once nothing is kept."""
        shard = incoming.move.new.shard
        if not incoming.runs or incoming.gates:
            return
        self.forget(shard)
        self._routing.ungate(shard)
        self.complete[shard] = incoming.move

    # The end.

    def on_node_gone(self, node: NodeId) -> None:
        """Open every buffer that waits for messages by way of that node."""
        for incoming in list(self._moves.values()):
            if incoming.move.old.node == node:
                for sender in list(incoming.gates):
                    self._open(incoming, sender)
                self._finish(incoming)

    def on_cancelled(self, move: ShardMove, now: float) -> None:
        """Forget a shard that its old home keeps."""
        incoming = self._moves.get(move.new.shard)
        if incoming is not None and incoming.move == move and not incoming.switched:
            self.end(move.new.shard, now)
            self._drop(move.new.shard)

    def tick(self, now: float) -> None:
        """Ask again for late messages, and end waits that take too long."""
        for shard in self._timers.due(now):
            incoming = self._moves[shard]
            if not incoming.switched and self._routing.is_gone(incoming.move.old.node):
                self._out.append(ev.SendCoordinator(msg.GetShardHome((shard,))))
            elif not incoming.switched:
                again = msg.MovePrepared((incoming.move,), carries=True)
                self._out.append(ev.Send(incoming.move.old.node, again))
            elif incoming.runs and now >= incoming.until:
                late = ", ".join(map(str, incoming.gates))
                detail = f"shard {shard}: no MoveAck of {late}, order is not guaranteed"
                self._out.append(ev.Note("ack_given_up", detail))
                for sender in list(incoming.gates):
                    self._open(incoming, sender)
                self._finish(incoming)
                continue
            elif incoming.runs:
                for node in (*incoming.gates, incoming.move.old.node):
                    self._out.append(ev.Send(node, msg.AckWanted((incoming.move,))))
            self._timers.set(shard, now + self._retry)

    def end(self, shard: str, now: float) -> None:
        """Forget a shard that does not come, or stops; its kept messages take the way of any other
        message."""
        incoming = self._moves.get(shard)
        if incoming is None:
            return
        queues = (incoming.first, incoming.others, *incoming.gates.values())
        kept = [message for queue in queues for message in queue]
        self.forget(shard)
        self._routing.ungate(shard)
        self._routing.put_back(shard, kept, now)

    def forget(self, shard: str) -> None:
        """Remove the move."""
        self._moves.pop(shard, None)
        self._timers.cancel(shard)

    def kept(self) -> Iterator[BufferedMessage]:
        """Yield every message that is kept."""
        for incoming in self._moves.values():
            yield from incoming.first + incoming.others
            for queue in incoming.gates.values():
                yield from queue

    def check(self) -> None:
        """Check that every wait has a deadline; for tests."""
        for shard, incoming in self._moves.items():
            assert shard in self._timers, f"the coming of {shard} has no deadline"
            assert not incoming.runs or incoming.gates, f"{shard} is complete"
