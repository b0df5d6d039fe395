"""The moves of one coordinator: handoffs under way, and the rest of the plan.

A rebalance is one plan. It is worked off as fast as a bound on the moves in flight per source and
per target allows; a drained region is not held back by it. A new plan replaces what has not begun,
and so does a time at which nothing may be rebalanced.

`handoff` has the phases of one move; here they meet messages and time.

Source: B.66; C.2-C.5, C.11; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardbus.ids import NodeId
from shardbus.settings import ShardingSettings
from shardbus.sharding.allocation import AllocationStrategy, Move
from shardbus.sharding.events import Note
from shardbus.sharding.handoff import Cue, Handoff, Phase, Purpose
from shardbus.sharding.messages import Home
from shardbus.sharding.outbox import Kind, Outbox
from shardbus.sharding.table import ShardTable
from shardbus.sharding.timers import Timers


class Moves:
    """Handoffs by shard, and moves that wait for their turn.

    Args:
        outbox: where the coordinator's messages go.
        settings: the bound on moves in flight, and how long the two phases may last.
    """

    __slots__ = (
        "_begin_timeout", "_outbox", "_planned", "_stop_timeout", "_timers", "bound", "handoffs",
        "notes",
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

    def deadline(self) -> float | None:
        """When the next phase has lasted too long."""
        return self._timers.deadline()

    def tick(self, now: float) -> None:
        """End the phases that have lasted too long."""
        for shard in self._timers.due(now):
            self._advance(self.handoffs[shard], Cue.DEADLINE, now)

    # The plan.

    def plan(
        self, strategy: AllocationStrategy, table: ShardTable, candidates: Sequence[NodeId]
    ) -> None:
        """Plan anew; what has not begun is forgotten."""
        self._planned = strategy.rebalance(table, candidates, self.in_flight())
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

    def ready(self, candidates: Iterable[NodeId]) -> list[Move]:
        """Take out the moves that may begin now: within the bound, to a target that still
        counts."""
        if not self._planned:
            return []
        fit = dict.fromkeys(candidates)
        leaving: dict[NodeId, int] = {}
        coming: dict[NodeId, int] = {}
        for move in self.in_flight().values():
            _count(leaving, move.source)
            _count(coming, move.target)
        ready: list[Move] = []
        later: list[Move] = []
        for move in self._planned:
            if move.target not in fit or move.shard in self.handoffs:
                continue
            if max(leaving.get(move.source, 0), coming.get(move.target, 0)) >= self.bound:
                later.append(move)
                continue
            _count(leaving, move.source)
            _count(coming, move.target)
            ready.append(move)
        self._planned = later
        return ready

    # One move.

    def begin(
        self,
        home: Home,
        purpose: Purpose,
        target: NodeId | None,
        told: Iterable[NodeId],
        now: float,
    ) -> None:
        """Everybody in `told` is told that the shard is about to leave its home."""
        handoff = Handoff.begin(home, purpose, target, told)
        self.handoffs[home.shard] = handoff
        for node in handoff.waiting:
            self._outbox.add(node, Kind.BEGIN_HANDOFF, (home,))
        self._timers.set(home.shard, now + self._begin_timeout)
        if not handoff.waiting:
            self._advance(handoff, Cue.ALL_ACKED, now)

    def on_ack(self, home: Home, node: NodeId, now: float) -> None:
        """`node` has nothing on the way to this home any more."""
        handoff = self.handoffs.get(home.shard)
        if handoff is not None and handoff.home.fence == home.fence and handoff.on_ack(node):
            self._advance(handoff, Cue.ALL_ACKED, now)

    def on_stopped(self, home: Home) -> Handoff | None:
        """The shard stopped there. Returns the handoff that this ends."""
        handoff = self.handoffs.get(home.shard)
        if handoff is None or handoff.home != home:
            return None
        return self._end(handoff, Cue.STOPPED)

    def bury(self, dead: Mapping[NodeId, None], now: float) -> list[Handoff]:
        """These nodes are gone: what waits for them goes on. Returns the handoffs that this
        ends."""
        owned = [handoff for handoff in self.handoffs.values() if handoff.home.node in dead]
        ended = [self._end(handoff, Cue.OWNER_GONE) for handoff in owned]
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
            assert handoff.phase is not Phase.FREED
            assert shard in self._timers, f"the move of {shard} has no deadline"

    def _advance(self, handoff: Handoff, cue: Cue, now: float) -> None:
        """Into STOPPING, or once more around it: the owner is told to stop."""
        home = handoff.home
        handoff.cue(cue)
        if cue is Cue.DEADLINE:
            late = ", ".join(map(str, handoff.waiting))
            what = f"asked {home.node} again" if handoff.overdue else f"not waiting for {late}"
            self.notes.append(Note("handoff_overdue", f"shard {home.shard}: {what}"))
        self._outbox.add(home.node, Kind.HANDOFF, (home,))
        self._timers.set(home.shard, now + self._stop_timeout)

    def _end(self, handoff: Handoff, cue: Cue) -> Handoff:
        handoff.cue(cue)
        self.forget(handoff.home.shard)
        self.notes.append(Note(f"handoff_{cue.name.lower()}", handoff.home.shard))
        return handoff


def _count(counts: dict[NodeId, int], node: NodeId) -> None:
    counts[node] = counts.get(node, 0) + 1
