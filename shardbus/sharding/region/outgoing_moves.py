"""The old home of a direct move: how it gives a shard away.

    ──> PREPARING ──ready──> STOPPING ──stopped──> FORWARDING ──all acked, deadline──> DONE
         │  │                 ^    │ target gone,      ^   │ target gone                ^
         │  │                 │    │ superseded        │   │                            │
         │  └─────────────────┼────┼───ready, overlaps─┘   └────────────────────────────┤
         │ target gone, deadline,  └────────────> KEPT                                  │
         │ hand-off, superseded   │                ^                                    │
         └────────────────────────┼──────────────> ^                                    │
    ──────────────────────────────┘ during forward or drop                              │

- PREPARING: the shard runs on while the new home prepares. If that dies or gives no answer within
  `shard_start_timeout`, the shard stays. A new home that refuses, with MoveCancelled, is treated as
  one that is gone. A HandOff ends the move: its coordinator does not have it, for its store was set
  back. So does the news that the shard has a newer home (superseded), in the next phase too.
- STOPPING: no message is let in. Entities handle what is in their mailboxes and stop. Messages that
  come wait here, behind the entities' leftovers, or are dropped.
- FORWARDING: the shard was handed over. Switch and everything that waits have gone to the new home,
  and later messages follow on the same session, or are dropped. Every sender's MoveAck follows its
  messages there; a client sends none. The old home counts them; without all of them it stops
  counting after `FORWARD_S`. Messages that come later are forwarded as any that meet a wrong home.
  A new home that has not sent MovePrepared is asked again every `FORWARD_S`: if it refuses, the
  shard is reported as stopped. When the coordinator asks again, the shard is reported as moved: the
  news that the new home is gone may never reach this node, but reaches the coordinator.
- KEPT: the shard was not handed over. If it has stopped by then, it is reported as stopped.

The entities' in-memory data when they stopped (`carrying`) precedes Switch, in messages of bounded
size, if the mode keeps order and the new home takes it. It is sent once: with a lost session it is
lost, and the new home loads from the store.

In a mode that `overlaps` the shard is handed over before its entities have stopped: FORWARDING
begins with `ready`, and the entities' leftovers are sent on when they have stopped.

A sender that is gone sends no MoveAck: the old home forwards one for it, behind its messages. If it
was gone before the shard was handed over, or the session has lost that MoveAck, the new home asks
with AckWanted, and the old home answers for every sender that is gone.

An acknowledgement is not forwarded while messages for the shard wait here, as they do when a late
one has come from the new home itself and the coordinator is asked.

The old home begins no move while an earlier move that brought the shard here is not complete, or
while it waits for the echo of a Flush of its own: messages that wait here would be overtaken by the
acknowledgement behind them. It refuses, and the coordinator uses mode `buffer`.

Not here: the coordinator's part (`coordinator/direct_moves`), the new home's (`incoming_moves`).

Source: S3.57-S3.59, S3.61-S3.63, S3.65-S3.67, S3.70, S3.71, S3.74; docs/partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.handoff_modes import MODES, NAMED, HandoffMode
from shardbus.sharding.handoff_phases import MovePhase
from shardbus.sharding.messages import (
    CARRIED_BYTES_MAX,
    CARRIED_MAX,
    CarriedEntity,
    Home,
    ShardMove,
)
from shardbus.sharding.region.route import (
    REJECT_DROPPED_IN_MOVE,
    REJECT_STOPPED,
    BufferedMessage,
    Returned,
)
from shardbus.sharding.region.routing import Routing
from shardbus.sharding.timers import Timers
from shardbus.transitions import following

FORWARD_S = 5.0
"""Seconds that the old home counts acknowledgements."""
GONE_MAX = 1024
"""Nodes that are gone, of which the old home remembers at most this many."""


class OutgoingPhase(Enum):
    """The phase of a direct move at the old home."""

    PREPARING = "preparing"
    STOPPING = "stopping"
    FORWARDING = "forwarding"
    DONE = "done"
    KEPT = "kept"


class OutgoingTrigger(Enum):
    """The triggers of a direct move at the old home."""

    READY = "ready"
    READY_OVERLAPS = "ready, overlaps"
    STOPPED = "stopped"
    ALL_ACKED = "all acked"
    DEADLINE = "deadline"
    TARGET_GONE = "target gone"
    HAND_OFF = "hand-off"
    SUPERSEDED = "superseded"


_P, _T = OutgoingPhase, OutgoingTrigger

TRANSITIONS: dict[tuple[OutgoingPhase, OutgoingTrigger], OutgoingPhase] = {
    (_P.PREPARING, _T.READY): _P.STOPPING,
    (_P.PREPARING, _T.READY_OVERLAPS): _P.FORWARDING,
    (_P.PREPARING, _T.DEADLINE): _P.KEPT,
    (_P.PREPARING, _T.TARGET_GONE): _P.KEPT,
    (_P.PREPARING, _T.HAND_OFF): _P.KEPT,
    (_P.PREPARING, _T.SUPERSEDED): _P.KEPT,
    (_P.STOPPING, _T.STOPPED): _P.FORWARDING,
    (_P.STOPPING, _T.TARGET_GONE): _P.KEPT,
    (_P.STOPPING, _T.SUPERSEDED): _P.KEPT,
    (_P.FORWARDING, _T.ALL_ACKED): _P.DONE,
    (_P.FORWARDING, _T.DEADLINE): _P.DONE,
    (_P.FORWARDING, _T.TARGET_GONE): _P.DONE,
}


def mode_of(text: str) -> HandoffMode:
    """Return the mode that a message names; an unknown one keeps messages and their order."""
    return MODES.get(text) or NAMED["ordered"]


class OutgoingMove(msgspec.Struct):
    """One shard that this node gives away."""

    move: ShardMove
    mode: HandoffMode
    senders: tuple[NodeId, ...]
    unacked: dict[NodeId, None]
    phase: OutgoingPhase
    prepared: bool = False
    carries: bool = False
    """The new home takes the entities' in-memory data."""
    running: bool = True
    """Entities of the shard have not stopped."""
    reported: bool = False
    text: str = ""
    """The mode as messages name it."""

    def advance(self, trigger: OutgoingTrigger) -> OutgoingPhase:
        """Go to the next phase and return it.

        Raises:
            LocalProtocolError: the diagram has no such arrow. Nothing changed.
        """
        machine = f"move of shard {self.move.old.shard!r} to another node"
        self.phase = following(TRANSITIONS, self.phase, trigger, machine)
        return self.phase


class OutgoingMoves:
    """The shards that this node gives away. Effects are appended to `out`.

    Args:
        stop: stops a shard of this node; `on_stopped` follows.
    """

    __slots__ = (
        "_draining", "_gone", "_me", "_moved", "_moves", "_out", "_prepare_s", "_routing", "_stop",
        "_timers", "refused", "reports",
    )  # fmt: skip

    def __init__(
        self,
        me: NodeId | None,
        settings: ShardingSettings,
        routing: Routing,
        out: list[ev.RegionEffect],
        stop: Callable[[str, float], None],
    ) -> None:
        self._me, self._routing, self._out, self._stop = me, routing, out, stop
        self._prepare_s = settings.shard_start_timeout
        self._moves: dict[str, OutgoingMove] = {}
        self._draining: dict[str, OutgoingMove] = {}
        """Moves that are done although entities have not stopped."""
        self._moved: dict[str, OutgoingMove] = {}
        """The last move of each shard that was handed over, in case its report is lost."""
        self._gone: dict[NodeId, None] = {}
        """Nodes that send nothing any more."""
        self._timers: Timers[str] = Timers()
        self.reports: dict[str, ShardMove] = {}
        """Moves to report as ShardMoved at the end of the turn."""
        self.refused: dict[str, ShardMove] = {}
        """Moves to report as MoveRefused."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards of these moves."""
        return tuple(self._moves)

    def phases(self) -> Iterator[MovePhase]:
        """Yield the moves with their phases."""
        for shard, outgoing in self._moves.items():
            move = outgoing.move
            yield MovePhase(shard, outgoing.phase.value, True, move.old.node, move.new.node)

    def __contains__(self, shard: str) -> bool:
        return shard in self._moves

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._timers.deadline()

    def has_moved(self, move: ShardMove) -> bool:
        """True if this node has handed the shard over, or is about to, in this very move."""
        outgoing = self._moves.get(move.old.shard)
        if outgoing is not None and outgoing.move == move:
            if outgoing.phase is OutgoingPhase.FORWARDING:
                outgoing.reported = True
                self.reports[move.old.shard] = move
            return True
        if self._has_handed_over(move):
            self.reports[move.old.shard] = move
            return True
        return False

    def _has_handed_over(self, move: ShardMove) -> bool:
        last = self._moved.get(move.old.shard)
        return last is not None and last.move == move

    def has_left(self, home: Home) -> bool:
        """True if this node has handed over the shard that lived at this home. Reports that
        again."""
        last = self._moved.get(home.shard)
        if last is None or last.move.old != home:
            return False
        self.reports[home.shard] = last.move
        return True

    def begin(self, move: ShardMove, text: str, senders: tuple[NodeId, ...], now: float) -> None:
        """Give away a shard that runs here: step 2 of the move."""
        mode, shard = mode_of(text), move.old.shard
        if move.new.node in self._gone:
            self.refused[shard] = move
            return
        keeps = mode.during == "keep"
        phase = OutgoingPhase.PREPARING if keeps else OutgoingPhase.STOPPING
        unacked = dict.fromkeys(senders)
        self._moves[shard] = OutgoingMove(move, mode, senders, unacked, phase, text=text)
        self._out.append(ev.Send(move.new.node, msg.PrepareMove(text, senders, (move,))))
        if keeps:
            self._timers.set(shard, now + self._prepare_s)
        else:
            self._timers.cancel(shard)  # the shard has moved away before, and has come back since
            self._stop(shard, now)

    def on_prepared(self, move: ShardMove, now: float, *, carries: bool = False) -> None:
        """Go on: the new home is ready. One that reports it again has not received Switch."""
        outgoing = self._moves.get(move.old.shard)
        if outgoing is None or outgoing.move != move:
            again: msg.Message = msg.MoveCancelled((move,))
            if self._has_handed_over(move):
                again = msg.Switch((move,))
            self._out.append(ev.Send(move.new.node, again))
            return
        if outgoing.prepared and outgoing.phase is OutgoingPhase.FORWARDING:
            self._out.append(ev.Send(move.new.node, msg.Switch((move,))))
        outgoing.prepared, outgoing.carries = True, carries
        if outgoing.phase is OutgoingPhase.FORWARDING:
            self._report(outgoing)
        elif outgoing.phase is OutgoingPhase.PREPARING and outgoing.mode.overlaps:
            outgoing.advance(OutgoingTrigger.READY_OVERLAPS)
            self._stop(move.old.shard, now)
            self._hand_over(outgoing, (), now)
        elif outgoing.phase is OutgoingPhase.PREPARING:
            outgoing.advance(OutgoingTrigger.READY)
            self._timers.cancel(move.old.shard)
            self._stop(move.old.shard, now)

    def on_refused(self, move: ShardMove) -> bool:
        """Give up a move that the new home refuses. True if the shard runs nowhere now."""
        shard = move.old.shard
        outgoing = self._moves.get(shard)
        if outgoing is None or outgoing.move != move or outgoing.prepared:
            return False
        if outgoing.phase is OutgoingPhase.PREPARING:
            self.refused[shard] = move
        nowhere = outgoing.phase is OutgoingPhase.FORWARDING
        if nowhere:
            del self._moved[shard]
        outgoing.advance(OutgoingTrigger.TARGET_GONE)
        self._moves.pop(shard)
        self._timers.cancel(shard)
        return nowhere

    def on_handoff(self, shard: str) -> bool:
        """Give up the move of a shard that still runs. False if the shard leaves already."""
        outgoing = self._moves[shard]
        if outgoing.phase is not OutgoingPhase.PREPARING:
            return False
        self._give_up(outgoing, OutgoingTrigger.HAND_OFF)
        return True

    def on_superseded(self, shard: str) -> None:
        """Give up the move of a shard that has a newer home, if it was not handed over."""
        outgoing = self._moves.get(shard)
        if outgoing is not None and outgoing.phase is not OutgoingPhase.FORWARDING:
            self._give_up(outgoing, OutgoingTrigger.SUPERSEDED)

    def _give_up(self, outgoing: OutgoingMove, trigger: OutgoingTrigger) -> None:
        outgoing.advance(trigger)
        self._forget(outgoing.move.old.shard)
        self._out.append(ev.Send(outgoing.move.new.node, msg.MoveCancelled((outgoing.move,))))

    def on_stopped(
        self,
        shard: str,
        left: tuple[BufferedMessage, ...],
        now: float,
        carried: tuple[CarriedEntity, ...] = (),
    ) -> bool:
        """Hand over a shard whose entities have stopped; `left` are their unhandled messages, and
        `carried` their in-memory data. Returns False if the shard stopped for another reason."""
        outgoing = self._moves.get(shard) or self._draining.pop(shard, None)
        if outgoing is None or not outgoing.running:
            return False
        outgoing.running = False
        if outgoing.phase in (OutgoingPhase.FORWARDING, OutgoingPhase.DONE):
            self._send_left(outgoing, left)
            return True
        if outgoing.phase is not OutgoingPhase.STOPPING:
            self._forget(shard)  # it stopped by itself
            self._out.append(ev.Send(outgoing.move.new.node, msg.MoveCancelled((outgoing.move,))))
            return False
        outgoing.advance(OutgoingTrigger.STOPPED)
        if outgoing.mode.during == "drop":
            self._reject(shard, left)
            left = ()
        if carried and outgoing.carries and outgoing.mode.keeps_order:
            self._carry(outgoing.move, carried)
        self._hand_over(outgoing, left, now)
        return True

    def _carry(self, move: ShardMove, carried: tuple[CarriedEntity, ...]) -> None:
        """Send the entities' in-memory data, in messages of bounded size."""
        part: list[CarriedEntity] = []
        size = 0
        for entity in carried:
            if part and (len(part) == CARRIED_MAX or size + entity.size > CARRIED_BYTES_MAX):
                self._out.append(ev.Send(move.new.node, msg.Carry(move, tuple(part))))
                part, size = [], 0
            part.append(entity)
            size += entity.size
        self._out.append(ev.Send(move.new.node, msg.Carry(move, tuple(part))))

    def _hand_over(
        self, outgoing: OutgoingMove, left: tuple[BufferedMessage, ...], now: float
    ) -> None:
        """Send Switch, and everything that waits behind it."""
        move = outgoing.move
        self._moved[move.old.shard] = outgoing
        self._out.append(ev.Send(move.new.node, msg.Switch((move,))))
        self._routing.hand_over(move.new, left, now)
        if not outgoing.mode.keeps_order:
            self._routing.note_unordered(move, outgoing.text)
        self._timers.set(move.old.shard, now + FORWARD_S)
        if outgoing.prepared:
            self._report(outgoing)

    def _report(self, outgoing: OutgoingMove) -> None:
        if not outgoing.reported:
            outgoing.reported = True
            self.reports[outgoing.move.old.shard] = outgoing.move

    def _send_left(self, outgoing: OutgoingMove, left: tuple[BufferedMessage, ...]) -> None:
        """Send on, or drop, the entities' leftovers after the shard was handed over."""
        if outgoing.mode.after == "drop":
            self._reject(outgoing.move.old.shard, left)
        elif left:
            self._out.append(ev.Release(outgoing.move.old.shard, outgoing.move.new.node, left))

    def deliver(self, event: ev.Deliver) -> bool:
        """Forward or drop a message for a shard that leaves. Returns False if it takes the way of
        any other message."""
        if self._is_overtaken(event):
            self._reject(event.shard, (event.message,), REJECT_STOPPED)
            return True
        outgoing = self._moves.get(event.shard)
        if outgoing is None or outgoing.phase is OutgoingPhase.PREPARING:
            return False
        mode = outgoing.mode
        if outgoing.phase is OutgoingPhase.STOPPING:
            drops = mode.during == "drop"
        else:
            from_new = event.via == outgoing.move.new.node and event.via in outgoing.unacked
            if from_new and mode.after == "forward":
                self._out.append(ev.Release(event.shard, outgoing.move.new.node, (event.message,)))
                return True  # no circle: the new home may send here until it has acknowledged
            drops = mode.after == "drop" or (mode.during == "drop" and not outgoing.prepared)
        if drops and not event.message.is_marker:
            self._reject(event.shard, (event.message,))
            return True
        return False

    def _is_overtaken(self, event: ev.Deliver) -> bool:
        """True for a message of a sender that has not acknowledged, if the shard has left the new
        home by a death: the home after that may have later messages of this sender."""
        last = self._moved.get(event.shard)
        if last is None or event.via not in last.unacked or event.message.is_marker:
            return False
        newest = self._routing.home_of(event.shard)
        left = newest is not None and newest.fence > last.move.new.fence
        return last.mode.keeps_order and (left or last.move.new.node in self._gone)

    def _reject(
        self, shard: str, messages: tuple[BufferedMessage, ...], why: str = REJECT_DROPPED_IN_MOVE
    ) -> None:
        self._out.extend(ev.Reject(shard, message, why) for message in messages)

    # Acknowledgements.

    def on_ack(self, sender: NodeId, move: ShardMove) -> None:
        """Count the acknowledgement, and forward it behind the messages before it. While messages
        for the shard wait here it would overtake them: the new home requests it again."""
        if sender != self._me and move.new.node not in self._gone:
            if self._routing.keeps(move.old.shard):
                return
            self._out.append(ev.Send(move.new.node, msg.MoveAck(sender, (move,))))
        outgoing = self._moved.get(move.old.shard)
        if outgoing is not None and outgoing.move == move:
            self._count(outgoing, sender)

    def on_running(self, shard: str) -> None:
        """Await no acknowledgement of an earlier move: the shard runs here again."""
        if shard in self._moved and shard not in self._moves:
            self._moved[shard].unacked.clear()

    def on_ack_wanted(self, move: ShardMove) -> None:
        """Forward a MoveAck for each sender that is gone: everything that it sent has been
        forwarded."""
        last = self._moved.get(move.old.shard)
        if last is not None and last.move == move:
            for sender in last.senders:
                if sender in self._gone:
                    self.on_ack(sender, move)

    def _count(self, outgoing: OutgoingMove, sender: NodeId) -> None:
        waited = sender in outgoing.unacked
        outgoing.unacked.pop(sender, None)
        if waited and not outgoing.unacked and outgoing.phase is OutgoingPhase.FORWARDING:
            outgoing.advance(OutgoingTrigger.ALL_ACKED)
            self._forget(outgoing.move.old.shard)

    # The end.

    def refuse_returned(self, node: NodeId, returned: Returned) -> Returned:
        """Refuse the messages that this old home had forwarded to a new one that has died, in a
        mode that keeps order: its senders may have sent later ones there, and go on to the next
        home by themselves. Returns the rest: a Flush, which its sender waits for, and this node's
        own messages."""
        rest = []
        for shard, message in returned:
            last = self._moved.get(shard)
            to_it = last is not None and last.mode.keeps_order and last.move.new.node == node
            if to_it and message.hops and not message.is_marker:
                self._reject(shard, (message,), REJECT_STOPPED)
            else:
                rest.append((shard, message))
        return tuple(rest)

    def on_node_gone(self, node: NodeId) -> None:
        """Keep the shards that this node was to get; forward an acknowledgement in its name."""
        self._gone[node] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        for shard, outgoing in list(self._moves.items()):
            if outgoing.move.new.node != node:
                if node in outgoing.unacked and outgoing.phase is OutgoingPhase.FORWARDING:
                    self.on_ack(node, outgoing.move)
                outgoing.unacked.pop(node, None)
                continue
            if outgoing.phase is OutgoingPhase.PREPARING:
                self.refused[shard] = outgoing.move
            elif outgoing.phase is OutgoingPhase.FORWARDING:
                self._report(outgoing)
            outgoing.advance(OutgoingTrigger.TARGET_GONE)
            self._moves.pop(shard)
            self._timers.cancel(shard)

    def tick(self, now: float) -> None:
        """End overdue moves."""
        for shard in self._timers.due(now):
            outgoing = self._moves[shard]
            if outgoing.phase is OutgoingPhase.FORWARDING and not outgoing.reported:
                again = msg.PrepareMove(outgoing.text, outgoing.senders, (outgoing.move,))
                self._out.append(ev.Send(outgoing.move.new.node, again))
                self._timers.set(shard, now + FORWARD_S)
                continue
            if outgoing.phase is OutgoingPhase.PREPARING:
                self.refused[shard] = outgoing.move
                cancelled = msg.MoveCancelled((outgoing.move,))
                self._out.append(ev.Send(outgoing.move.new.node, cancelled))
            elif outgoing.unacked:
                late = ", ".join(map(str, outgoing.unacked))
                self._out.append(ev.Note("ack_late", f"shard {shard}: no MoveAck of {late}"))
            outgoing.advance(OutgoingTrigger.DEADLINE)
            self._forget(shard)

    def forwards(self) -> bool:
        """True if a shard was handed over and not every sender has acknowledged."""
        return any(outgoing.phase is OutgoingPhase.FORWARDING for outgoing in self._moves.values())

    def check(self) -> None:
        """Check that every wait has a deadline; for tests."""
        for shard, outgoing in self._moves.items():
            waits = outgoing.phase in (OutgoingPhase.PREPARING, OutgoingPhase.FORWARDING)
            assert not waits or shard in self._timers, f"the move of {shard} has no deadline"

    def _forget(self, shard: str) -> None:
        outgoing = self._moves.pop(shard)
        self._timers.cancel(shard)
        if outgoing.running and outgoing.phase is OutgoingPhase.DONE:
            self._draining[shard] = outgoing
