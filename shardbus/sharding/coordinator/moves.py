"""The moves of one coordinator: hand-offs under way, and the rest of the plan.

A rebalance is one plan. It is carried out as fast as `max_moves_in_flight` allows, per source and
per target: messages for a shard wait while it moves, until the store has its new home, and must not
wait for all other moves too. A few moves keep the store and both nodes busy; more only make each of
them longer.

A new plan replaces the moves that have not begun, and the coordinator drops them when nothing may
be rebalanced. The shards of a region that leaves or drains keep to the bound as well, but a move
that takes longer than `SLOW_S` seconds holds none of them back: slow entities must not add up to
more than the region's patience.

A region that acknowledges late cannot take the shard, so the next plan would only try again. Plans
leave it out for a while, longer each time, until it acknowledges in time again.

`handoff` has the phases of one move. Here they meet messages and deadlines.

Source: S2.28, S2.66, B.66; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.quantities import counted
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.coordinator.direct_moves import DirectMoves
from shardbus.sharding.coordinator.handoff import (
    Handoff,
    HandoffPhase,
    HandoffPurpose,
    HandoffTrigger,
)
from shardbus.sharding.coordinator.move_plan import MovePlan
from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.events import Note
from shardbus.sharding.messages import Home
from shardbus.sharding.table import Shards, ShardTable
from shardbus.sharding.timers import Timers

SLOW_S = 0.25
"""Seconds after which a move holds no other back."""

REST_DOUBLINGS = 6
"""How often the pause of a late region doubles, from `rebalance_interval`."""


class Moves:
    """Hand-offs by shard, and planned moves that have not begun.

    Args:
        outbox: takes the coordinator's messages.
        settings: the bound on moves in flight, and the deadlines of the two phases.
        direct: the direct moves, which count as moves in flight.
    """

    __slots__ = (
        "_begin_timeout", "_direct", "_late", "_outbox", "_plan", "_rest", "_stop_timeout",
        "_timers", "bound", "handoffs", "notes",
    )  # fmt: skip

    def __init__(
        self, outbox: Outbox, settings: ShardingSettings, direct: DirectMoves | None = None
    ) -> None:
        self._direct = direct
        self.handoffs: dict[str, Handoff] = {}
        self.notes: list[Note] = []
        self._plan = MovePlan()
        self._timers: Timers[str] = Timers()
        self._outbox = outbox
        self.bound = settings.max_moves_in_flight
        """Moves of a plan that may be under way, per source and per target."""
        self._begin_timeout = settings.begin_handoff_timeout
        self._stop_timeout = settings.handoff_timeout
        self._rest = settings.rebalance_interval
        self._late: dict[NodeId, tuple[float, int]] = {}
        """Late regions: until when plans leave them out, and how often they were late in a row."""

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._timers.deadline()

    def tick(self, now: float) -> None:
        """End the phases whose deadline has passed."""
        for shard in self._timers.due(now):
            self._advance(self.handoffs[shard], HandoffTrigger.DEADLINE, now)

    # The plan.

    def question(
        self, table: ShardTable, candidates: Sequence[NodeId], now: float
    ) -> Callable[[AllocationStrategy], list[Move]]:
        """Return a function that asks a strategy for a plan. It reads nothing that changes."""
        fit = [node for node in candidates if self._late.get(node, (0.0, 0))[0] <= now]
        in_flight = self.in_flight()
        return lambda strategy: strategy.rebalance(table, fit, in_flight)

    def plan(self, moves: Iterable[Move]) -> None:
        """Take a plan in place of the moves that have not begun."""
        direct = self._direct or ()
        self._plan = MovePlan(
            move for move in moves if move.shard not in self.handoffs and move.shard not in direct
        )
        if planned := len(self._plan):
            self.notes.append(Note("rebalance", counted(planned, "move"), planned))

    def drop_plan(self) -> None:
        """Drop the moves that have not begun."""
        self._plan = MovePlan()

    def drop_planned(self, shard: str) -> None:
        """Drop the move of a shard from the plan: it begins to move, for whatever reason."""
        self._plan.discard(shard)

    def in_flight(self) -> dict[str, Move]:
        """Return the hand-offs that have a target, and the direct moves, as the strategies take
        them."""
        direct = self._direct.in_flight() if self._direct is not None else ()
        return {move.shard: move for move in direct} | {
            shard: Move(shard, handoff.home.node, handoff.target)
            for shard, handoff in self.handoffs.items()
            if handoff.target is not None
        }

    @property
    def planned(self) -> int:
        """The number of planned moves that have not begun."""
        return len(self._plan)

    def take_ready(
        self, candidates: Collection[NodeId], arriving: Iterable[Move], most: int | None = None
    ) -> list[Move]:
        """Take out the planned moves that may begin now: within the bound, at most `most`, and to a
        target that is still a candidate.

        A move that is `arriving` has left its home, and counts until the store has the next one.
        """
        if not self._plan:
            return []
        under_way = (*self.in_flight().values(), *arriving)
        return self._plan.take(candidates, under_way, self.bound, most)

    def may_leave(self, shards: Shards, changing: Iterable[str], now: float) -> list[str]:
        """Return the shards of a leaving or draining region whose move may begin now.

        Shards that move already count in the bound, and those whose home is `changing`: they have
        stopped, and the store does not have their next home yet.
        """
        direct = self._direct.moves if self._direct is not None else {}
        begun = [handoff.begun for shard, handoff in self.handoffs.items() if shard in shards]
        begun += [move.begun for shard, move in direct.items() if shard in shards]
        gone = {shard for shard in (*self.handoffs, *direct, *changing) if shard in shards}
        staying = (shard for shard in shards if shard not in gone)
        if begun and now - min(begun) >= SLOW_S:
            return list(staying)
        return list(islice(staying, max(0, self.bound - len(gone))))

    # One move.

    def begin(
        self,
        home: Home,
        purpose: HandoffPurpose,
        target: NodeId | None,
        nodes: Iterable[NodeId],
        now: float,
    ) -> None:
        """Begin a hand-off: send BeginHandOff to each of `nodes`."""
        handoff = Handoff.begin(home, purpose, target, nodes, now)
        self.handoffs[home.shard] = handoff
        for node in handoff.unacked:
            self._outbox.add(node, HomeMessage.BEGIN_HANDOFF, (home,))
        self._timers.set(home.shard, now + self._begin_timeout)
        if not handoff.unacked:
            self._advance(handoff, HandoffTrigger.ALL_ACKED, now)

    def on_ack(self, home: Home, node: NodeId, now: float) -> None:
        """Record that nothing from `node` is on its way to this home any more.

        An acknowledgement of an earlier hand-off of the shard names a lower fence. It does not
        count: messages to the present home may still be on their way.
        """
        handoff = self.handoffs.get(home.shard)
        if handoff is None or handoff.home.fence != home.fence:
            return
        if handoff.phase is HandoffPhase.BEGIN:
            self._late.pop(node, None)
        if handoff.on_ack(node):
            self._advance(handoff, HandoffTrigger.ALL_ACKED, now)

    def on_stopped(self, home: Home) -> Handoff | None:
        """End the hand-off of a shard that stopped at this home; return it if there was one."""
        handoff = self.handoffs.get(home.shard)
        if handoff is None or handoff.home != home:
            return None
        return self._end(handoff, HandoffTrigger.STOPPED)

    def on_nodes_gone(self, dead: Mapping[NodeId, None], now: float) -> list[Handoff]:
        """Wait for these nodes no longer; return the hand-offs of the shards they owned, which
        end."""
        owned = [handoff for handoff in self.handoffs.values() if handoff.home.node in dead]
        ended = [self._end(handoff, HandoffTrigger.OWNER_GONE) for handoff in owned]
        for node in dead:
            self._late.pop(node, None)
        for handoff in list(self.handoffs.values()):
            for node in dead:
                self.on_ack(handoff.home, node, now)
        return ended

    def forget(self, shard: str) -> None:
        """Remove the hand-off of the shard, however it ended."""
        self.handoffs.pop(shard, None)
        self._timers.cancel(shard)

    def check(self) -> None:
        """Check that every hand-off has a deadline; for tests."""
        for shard, handoff in self.handoffs.items():
            assert handoff.phase is not HandoffPhase.FREED
            assert shard in self._timers, f"the move of {shard} has no deadline"

    def _advance(self, handoff: Handoff, trigger: HandoffTrigger, now: float) -> None:
        """Go to STOPPING, or once more around it: send HandOff to the owner."""
        home = handoff.home
        if trigger is HandoffTrigger.DEADLINE and handoff.phase is HandoffPhase.BEGIN:
            self._leave_out(handoff.unacked, now)
        handoff.advance(trigger)
        if trigger is HandoffTrigger.DEADLINE:
            late = ", ".join(map(str, handoff.unacked))
            what = f"asked {home.node} again" if handoff.overdue else f"not waiting for {late}"
            text = f"shard {home.shard}: {what}"
            self.notes.append(Note("handoff_overdue", text, shard=home.shard))
        self._outbox.add(home.node, HomeMessage.HANDOFF, (home,))
        self._timers.set(home.shard, now + self._stop_timeout)

    def _leave_out(self, late: Iterable[NodeId], now: float) -> None:
        """Leave late regions out of plans, each time for twice as long."""
        for node in late:
            until, times = self._late.get(node, (0.0, 0))
            if until <= now:
                wait = self._rest * 2.0 ** min(times, REST_DOUBLINGS)
                self._late[node] = (now + wait, times + 1)

    def _end(self, handoff: Handoff, trigger: HandoffTrigger) -> Handoff:
        handoff.advance(trigger)
        self.forget(handoff.home.shard)
        self.notes.append(Note(f"handoff_{trigger.name.lower()}", handoff.home.shard))
        return handoff
