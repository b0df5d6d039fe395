"""The strategy least-load: shards go where they even out the load of regions, not their number.

A shard's weight is its load, in messages per second, plus a tenth of the mean load for being there.
So shards without messages are spread too, and a type that is not used is balanced by number.

    allocate    each shard to the region with the least weight at that moment
    rebalance   from the heaviest region to the lightest, the shard that evens the two out best,
                again and again

A move has a cost: messages for the shard wait meanwhile. So there is a *tolerance*: regions that
differ by less than this part of the mean count as even, and a step must gain a quarter of that, or
of the mean weight of a shard. Together with smoothed loads (`coordinator/rebalancing`) this keeps
shards from moving to and fro. A shard that weighs more than the difference between two regions
stays: it would only move the imbalance. A shard that weighs more than a region's share cannot be
balanced by any move; `hot` returns it.

Without loads from every region that has shards nothing is rebalanced, for a table that is even in
load need not be even in numbers.

Source: N.9, S3.20, S3.49.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Move, assignment
from shardbus.sharding.table import ShardTable

PRESENCE = 0.1
"""The weight of a shard for being there, as a part of the mean load."""

MOVES_MAX = 1000
"""Moves of one plan if no setting has a lower limit; the next plan continues."""

STEPS = 4
"""Steps of a plan per move, at most. Each evens out a little more."""

GAIN = 0.25
"""What a step must gain, as a part of the tolerance or of the mean weight of a shard."""


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Evens out the load of regions.

    Args:
        tolerance: the difference between two regions that counts as even, as a part of the mean.
        max_moves: shards that may move at a time, 0 for `MOVES_MAX`.
        loads: messages per second and shard; None while a region has not reported.
    """

    tolerance: float = 0.2
    max_moves: int = 0
    loads: Mapping[str, float] | None = field(default=None, compare=False)

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        """Give each shard, the heaviest first, to the region with the least weight."""
        weight = _weights(self.loads or {}, [*table.homes, *shards])
        heap = [(sum(weight[s] for s in table.shards_at(n)), n) for n in candidates]
        heapify(heap)
        homes: dict[str, NodeId] = {}
        for shard in sorted(shards, key=lambda s: -weight[s]):
            total, node = heap[0]
            homes[shard] = node
            heapreplace(heap, (total + weight[shard], node))
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves that even out the regions."""
        if self.loads is None or len(candidates) < 2:
            return []
        plan = assignment(table, candidates, in_flight)
        weight = _weights(self.loads, [shard for shards in plan.values() for shard in shards])
        totals = {node: sum(weight[s] for s in shards) for node, shards in plan.items()}
        movable = {
            node: sorted((weight[shard], shard) for shard in shards if shard not in in_flight)
            for node, shards in plan.items()
        }
        whole = sum(totals.values())
        least = self.tolerance * whole / len(totals)
        gain = GAIN * min(least, whole / max(1, len(weight)))
        most = max(0, self.max_moves - len(in_flight)) if self.max_moves else MOVES_MAX
        left: dict[str, NodeId] = {}
        goes: dict[str, NodeId] = {}
        sources = dict.fromkeys(totals)
        for _ in range(STEPS * most):
            if not sources or len(left) >= most:
                break
            source = max(sources, key=lambda node: totals[node])
            target = min(totals, key=lambda node: totals[node])
            difference = totals[source] - totals[target]
            if difference <= least:
                break
            place = _best(movable[source], difference, gain)
            if place is None:
                del sources[source]
                continue
            load, shard = movable[source].pop(place)
            insort(movable[target], (load, shard))
            totals[source] -= load
            totals[target] += load
            left.setdefault(shard, source)
            goes[shard] = target
        moves = (Move(shard, source, goes[shard]) for shard, source in left.items())
        return [move for move in moves if move.source != move.target]

    def hot(self, regions: int) -> dict[str, float]:
        """Return the shards with more than a region's share of all messages, and their part."""
        loads = self.loads or {}
        whole = sum(loads.values())
        if regions < 2 or not whole:
            return {}
        share = (1 + self.tolerance) / regions
        return {shard: load / whole for shard, load in loads.items() if load / whole > share}


def _weights(loads: Mapping[str, float], shards: Iterable[str]) -> dict[str, float]:
    """Return the weights of these shards; a shard without a known load has the mean."""
    known = [loads[shard] for shard in shards if shard in loads]
    mean = sum(known) / len(known) if known else 0.0
    presence = PRESENCE * mean or 1.0
    return {shard: loads.get(shard, mean) + presence for shard in shards}


def _best(shards: Sequence[tuple[float, str]], difference: float, gain: float) -> int | None:
    """Return the place of the shard whose move evens out best; None if no move gains enough.

    A move that evens out too little is preferred to one that does too much, since most messages
    wait during a move of the hottest shard. Among equals the first by name is taken.
    """

    def weight(entry: tuple[float, str]) -> float:
        return entry[0]

    place = bisect_right(shards, difference / 2, key=weight)
    if place and shards[place - 1][0] >= gain:
        return bisect_left(shards, shards[place - 1][0], key=weight)
    if place < len(shards) and difference - shards[place][0] >= gain:
        return place
    return None
