"""The moves of one coordinator: handoffs under way, and the rest of the plan.

A rebalance is one plan. It is worked off as fast as a bound on the moves in flight per source and
per target allows; a drained region is not held back by it. A new plan replaces what has not begun.

Source: B.66; C.11; DESIGN section 6, batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardbus.ids import NodeId
from shardbus.sharding.allocation import Move
from shardbus.sharding.handoff import Handoff, Purpose


class Moves:
    """Handoffs by shard, and moves that wait for their turn."""

    __slots__ = ("_bound", "_planned", "handoffs")

    def __init__(self, bound: int) -> None:
        self.handoffs: dict[str, Handoff] = {}
        self._planned: list[Move] = []
        self._bound = bound

    def plan(self, moves: Sequence[Move]) -> None:
        """Replace what has not begun."""
        self._planned = list(moves)

    def in_flight(self) -> dict[str, Move]:
        """The handoffs that have a target, as the strategies see them."""
        return {
            shard: Move(shard, handoff.home.node, handoff.target)
            for shard, handoff in self.handoffs.items()
            if handoff.target is not None
        }

    def ready(self, candidates: Iterable[NodeId]) -> list[Move]:
        """Take out the moves that may begin now: within the bound, to a target that still counts."""
        if not self._planned:
            return []
        fit = dict.fromkeys(candidates)
        leaving: dict[NodeId, int] = {}
        coming: dict[NodeId, int] = {}
        for handoff in self.handoffs.values():
            if handoff.purpose is Purpose.REBALANCE and handoff.target is not None:
                _count(leaving, handoff.home.node)
                _count(coming, handoff.target)
        ready: list[Move] = []
        later: list[Move] = []
        for move in self._planned:
            if move.target not in fit or move.shard in self.handoffs:
                continue
            if max(leaving.get(move.source, 0), coming.get(move.target, 0)) >= self._bound:
                later.append(move)
                continue
            _count(leaving, move.source)
            _count(coming, move.target)
            ready.append(move)
        self._planned = later
        return ready


def _count(counts: dict[NodeId, int], node: NodeId) -> None:
    counts[node] = counts.get(node, 0) + 1
