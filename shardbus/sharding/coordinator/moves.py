"""The moves of one coordinator: handoffs under way, and the rest of the plan.

A rebalance is one plan. It is worked off as fast as a bound on the moves in flight per source and
per target allows: what a shard is sent waits while it is on the move, until the store has its new
home, and should not wait for all the others. A new plan replaces what has not begun, and so does a
time at which nothing may be rebalanced. A region that is drained keeps to the bound as well, but
not for longer than `SLOW` seconds: entities that take their time must not add up to more than its
patience.

A region that is late with its acknowledgement cannot take the shard, so the next plan would only
try again. It rests: plans leave it alone for a while, longer each time, until it is in time again.

`handoff` has the phases of one move; here they meet messages and time.

Source: B.66; C.2-C.5, C.11; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.coordinator.handoff import (
    Handoff,
    HandoffPhase,
    HandoffPurpose,
    HandoffTrigger,
)
from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.events import Note
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardTable
from shardbus.sharding.timers import Timers

SLOW = 1.0
"""Seconds after which a move holds no other back."""

REST_DOUBLINGS = 6
"""So often the rest of a late region doubles, from `rebalance_interval`."""


class Moves:
    """Handoffs by shard, and moves that wait for their turn.

    Args:
        outbox: where the coordinator's messages go.
        settings: the bound on moves in flight, and how long the two phases may last.
    """

    __slots__ = (
        "_begin_timeout", "_outbox", "_planned", "_rest", "_resting", "_stop_timeout", "_timers",
        "bound", "handoffs", "notes",
    )  # fmt: skip

    def __init__(self, outbox: Outbox, settings: ShardingSettings) -> None:
        self.handoffs: dict[str, Handoff] = {}
        self.notes: list[Note] = []
        self._planned: list[Move] = []
        self._timers: Timers[str] = Timers()
        self._outbox = outbox
        self.bound = settings.max_moves_in_flight
        """Moves of a plan that may be under way, per source and per target."""
        self._begin_timeout = settings.begin_handoff_timeout
        self._stop_timeout = settings.handoff_timeout
        self._rest = settings.rebalance_interval
        self._resting: dict[NodeId, tuple[float, int]] = {}
        """Late regions: until when they rest, and how often they were late in a row."""

    def deadline(self) -> float | None:
        """When the next phase has lasted too long."""
        return self._timers.deadline()

    def tick(self, now: float) -> None:
        """End the phases that have lasted too long."""
        for shard in self._timers.due(now):
            self._advance(self.handoffs[shard], HandoffTrigger.DEADLINE, now)

    # The plan.

    def plan(
        self,
        strategy: AllocationStrategy,
        table: ShardTable,
        candidates: Sequence[NodeId],
        now: float,
    ) -> None:
        """Plan anew; what has not begun is forgotten."""
        fit = [node for node in candidates if self._resting.get(node, (0.0, 0))[0] <= now]
        self._planned = strategy.rebalance(table, fit, self.in_flight())
        if planned := len(self._planned):
            self.notes.append(Note("rebalance", f"{planned} moves", planned))

    def drop_plan(self) -> None:
        """Forget what has not begun."""
        self._planned = []

    def in_flight(self) -> dict[str, Move]:
        """The handoffs that have a target, as the strategies see them."""
        return {
            shard: Move(shard, handoff.home.node, handoff.target)
            for shard, handoff in self.handoffs.items()
            if handoff.target is not None
        }

    @property
    def waiting(self) -> int:
        """Moves of the plan that have not begun."""
        return len(self._planned)

    def ready(
        self, candidates: Iterable[NodeId], arriving: Iterable[Move], most: int | None = None
    ) -> list[Move]:
        """Take out the moves that may begin now: within the bound and not above `most`, to a target
        that still counts. What is `arriving` has left its home and is on the move until the store
        has the next."""
        if not self._planned:
            return []
        fit = dict.fromkeys(candidates)
        leaving: dict[NodeId, int] = {}
        coming: dict[NodeId, int] = {}
        for move in (*self.in_flight().values(), *arriving):
            _count(leaving, move.source)
            _count(coming, move.target)
        ready: list[Move] = []
        later: list[Move] = []
        for move in self._planned:
            if move.target not in fit or move.shard in self.handoffs:
                continue
            busy = max(leaving.get(move.source, 0), coming.get(move.target, 0))
            if busy >= self.bound or len(ready) == most:
                later.append(move)
                continue
            _count(leaving, move.source)
            _count(coming, move.target)
            ready.append(move)
        self._planned = later
        return ready

    def may_leave(
        self, shards: Collection[str], settled: Callable[[str], Home | None], now: float
    ) -> list[str]:
        """Those of a drained region's shards that may leave now."""
        staying = [shard for shard in shards if settled(shard) is not None]
        begun = [self.handoffs[shard].begun for shard in shards if shard in self.handoffs]
        if begun and now - min(begun) >= SLOW:
            return staying
        return staying[: max(0, self.bound - (len(shards) - len(staying)))]

    # One move.

    def begin(
        self,
        home: Home,
        purpose: HandoffPurpose,
        target: NodeId | None,
        told: Iterable[NodeId],
        now: float,
    ) -> None:
        """Everybody in `told` is told that the shard is about to leave its home."""
        handoff = Handoff.begin(home, purpose, target, told, now)
        self.handoffs[home.shard] = handoff
        for node in handoff.waiting:
            self._outbox.add(node, HomeMessage.BEGIN_HANDOFF, (home,))
        self._timers.set(home.shard, now + self._begin_timeout)
        if not handoff.waiting:
            self._advance(handoff, HandoffTrigger.ALL_ACKED, now)

    def on_ack(self, home: Home, node: NodeId, now: float) -> None:
        """`node` has nothing on the way to this home any more."""
        handoff = self.handoffs.get(home.shard)
        if handoff is None or handoff.home.fence != home.fence:
            return
        if handoff.phase is HandoffPhase.BEGIN:
            self._resting.pop(node, None)
        if handoff.on_ack(node):
            self._advance(handoff, HandoffTrigger.ALL_ACKED, now)

    def on_stopped(self, home: Home) -> Handoff | None:
        """The shard stopped there. Returns the handoff that this ends."""
        handoff = self.handoffs.get(home.shard)
        if handoff is None or handoff.home != home:
            return None
        return self._end(handoff, HandoffTrigger.STOPPED)

    def bury(self, dead: Mapping[NodeId, None], now: float) -> list[Handoff]:
        """These nodes are gone: what waits for them goes on. Returns the handoffs that this
        ends."""
        owned = [handoff for handoff in self.handoffs.values() if handoff.home.node in dead]
        ended = [self._end(handoff, HandoffTrigger.OWNER_GONE) for handoff in owned]
        for node in dead:
            self._resting.pop(node, None)
        for handoff in list(self.handoffs.values()):
            for node in dead:
                self.on_ack(handoff.home, node, now)
        return ended

    def forget(self, shard: str) -> None:
        """The move is over, however it went."""
        self.handoffs.pop(shard, None)
        self._timers.cancel(shard)

    def check(self) -> None:
        """Audit: no handoff waits without a deadline."""
        for shard, handoff in self.handoffs.items():
            assert handoff.phase is not HandoffPhase.FREED
            assert shard in self._timers, f"the move of {shard} has no deadline"

    def _advance(self, handoff: Handoff, cue: HandoffTrigger, now: float) -> None:
        """Into STOPPING, or once more around it: the owner is told to stop."""
        home = handoff.home
        if cue is HandoffTrigger.DEADLINE and handoff.phase is HandoffPhase.BEGIN:
            self._let_rest(handoff.waiting, now)
        handoff.cue(cue)
        if cue is HandoffTrigger.DEADLINE:
            late = ", ".join(map(str, handoff.waiting))
            what = f"asked {home.node} again" if handoff.overdue else f"not waiting for {late}"
            self.notes.append(Note("handoff_overdue", f"shard {home.shard}: {what}"))
        self._outbox.add(home.node, HomeMessage.HANDOFF, (home,))
        self._timers.set(home.shard, now + self._stop_timeout)

    def _let_rest(self, late: Iterable[NodeId], now: float) -> None:
        for node in late:
            until, times = self._resting.get(node, (0.0, 0))
            if until <= now:
                wait = self._rest * 2.0 ** min(times, REST_DOUBLINGS)
                self._resting[node] = (now + wait, times + 1)

    def _end(self, handoff: Handoff, cue: HandoffTrigger) -> Handoff:
        handoff.cue(cue)
        self.forget(handoff.home.shard)
        self.notes.append(Note(f"handoff_{cue.name.lower()}", handoff.home.shard))
        return handoff


def _count(counts: dict[NodeId, int], node: NodeId) -> None:
    counts[node] = counts.get(node, 0) + 1
