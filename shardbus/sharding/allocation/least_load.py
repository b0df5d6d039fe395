"""The strategy least-load: shards go where they even out the load of regions, not their number.

A shard's weight is its load, in a unit of `shard_load`, plus a tenth of the mean load for being
there. So shards without load are spread too, and a type that is not used is balanced by number. A
region's weight is the sum of its shards, divided by its node's `spare` capacity: a node that is
half taken by other work is full with half of the shards.

    allocate    each shard to the region with the least weight at that moment
    rebalance   from the heaviest region to the lightest, the shard that evens the two out best,
                again and again

A move has a cost: messages for the shard wait meanwhile, and its entities start anew. So

- regions that differ by less than the *tolerance*, a part of the mean, count as even;
- a step must gain the *move cost*, a part of the mean weight of a shard, or of the tolerance if
  that is less;
- a shard that has just moved rests, until its load at the new home is known.

Together with smoothed loads (`coordinator.load_estimates`) this keeps shards from moving to and
fro. A shard that weighs more than the difference between two regions stays: it would only move the
imbalance. A shard that weighs more than a region's share cannot be balanced by any move; `hot`
returns it.

Without loads from every region that has shards nothing is rebalanced, for a table that is even in
load need not be even in numbers.

Source: docs/how-to/tune.md; N.9, S3.20, S3.49.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Loads, Move, assignment
from shardbus.sharding.table import ShardTable

PRESENCE = 0.1
"""The weight of a shard for being there, as a part of the mean load."""

MOVES_MAX = 1000
"""Moves of one plan if no setting has a lower limit; the next plan continues."""

STEPS = 4
"""Steps of a plan per move, at most. Each evens out a little more."""


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Evens out the load of regions.

    Args:
        tolerance: the difference between two regions that counts as even, as a part of the mean.
        max_moves: shards that may move at a time, 0 for `MOVES_MAX`.
        move_cost: the least gain of a step, as a part of the mean weight of a shard.
        loads: load of each shard; None while a region has not reported.
        spare: spare capacity of nodes, above 0 and at most 1; 1 where it is not known.
        resting: shards that have just moved.
    """

    tolerance: float = 0.2
    max_moves: int = 0
    move_cost: float = 0.25
    loads: Loads | None = field(default=None, compare=False)
    spare: Mapping[NodeId, float] = field(default_factory=dict, compare=False)
    resting: Collection[str] = field(default=(), compare=False)

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Give each shard, the heaviest first, to the region with the least weight."""
        weight = _weights(self.loads or {}, [*table.homes, *shards])
        rooms = {node: self.spare.get(node, 1.0) for node in candidates}
        heap = [(sum(weight[s] for s in table.shards_at(n)) / rooms[n], n) for n in candidates]
        heapify(heap)
        homes: dict[str, NodeId] = {}
        for shard in sorted(shards, key=lambda s: -weight[s]):
            total, node = heap[0]
            homes[shard] = node
            heapreplace(heap, (total + weight[shard] / rooms[node], node))
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves that even out the regions."""
        if self.loads is None or len(candidates) < 2:
            return []
        plan = assignment(table, candidates, in_flight)
        weight = _weights(self.loads, [shard for shards in plan.values() for shard in shards])
        whole, rooms = sum(weight.values()), {node: self.spare.get(node, 1.0) for node in plan}
        least = self.tolerance * whole / sum(rooms.values())
        gain = min(0.25 * least, self.move_cost * whole / max(1, len(weight)))
        most = max(0, self.max_moves - len(in_flight)) if self.max_moves else MOVES_MAX
        still = in_flight.keys() | set(self.resting)
        totals = {node: sum(weight[s] for s in shards) for node, shards in plan.items()}
        movable = {
            node: sorted((weight[shard], shard) for shard in shards if shard not in still)
            for node, shards in plan.items()
        }
        left: dict[str, NodeId] = {}
        goes: dict[str, NodeId] = {}
        sources = dict.fromkeys(totals)

        def level(node: NodeId) -> float:
            return totals[node] / rooms[node]

        for _ in range(STEPS * most):
            if not sources or len(left) >= most:
                break
            source, target = max(sources, key=level), min(totals, key=level)
            difference = level(source) - level(target)
            if difference <= least:
                break
            room, free = rooms[source], rooms[target]
            even = difference * room * free / (room + free)
            place = _best(movable[source], even, difference * free, gain)
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
        """Return the shards with more than a region's share of all load, and their part."""
        loads = self.loads or {}
        whole = sum(loads.values())
        if regions < 2 or not whole:
            return {}
        share = (1 + self.tolerance) / regions
        return {shard: load / whole for shard, load in loads.items() if load / whole > share}


def _weights(loads: Loads, shards: Iterable[str]) -> dict[str, float]:
    """Return the weights of these shards; a shard without a known load has the mean."""
    measured = [loads[shard] for shard in shards if shard in loads]
    mean = sum(measured) / len(measured) if measured else 0.0
    presence = PRESENCE * mean or 1.0
    return {shard: loads.get(shard, mean) + presence for shard in shards}


def _best(shards: Sequence[tuple[float, str]], even: float, most: float, gain: float) -> int | None:
    """Return the place of the shard whose move evens out best; None if no move gains enough.

    A move that evens out too little is preferred to one that does too much, since most messages
    wait during a move of the hottest shard. Among equals the first by name is taken.

    Args:
        shards: weight and name of each, the lightest first.
        even: the weight after whose move both regions are even; `most` only swaps them.
        gain: the least that a move must even out.
    """

    def weight(entry: tuple[float, str]) -> float:
        return entry[0]

    place = bisect_right(shards, even, key=weight)
    if place and shards[place - 1][0] >= gain:
        return bisect_left(shards, shards[place - 1][0], key=weight)
    if place < len(shards) and most - shards[place][0] >= gain:
        return place
    return None
