"""Where shards go: pure strategies that make whole plans.

A strategy answers two questions, each for all shards at once:

- `allocate`: these shards have no home, and these regions may take one. Which region gets which?
- `rebalance`: which shards should move, from where, to where? `in_flight` has the moves under way.
  They count as done, so that a plan made during a rebalance continues it instead of undoing it.

The coordinator leaves out of `candidates` every region that leaves, drains or is cordoned, and for
`allocate` the regions of an older version of the application, so no shard moves twice in a row. It
calls `rebalance` only while all versions are equal. A strategy does not move shards of a region
that is no candidate. Ties go to the first region in address order, which is the same on every node.

- **LeastShard** gives each region floor(n/k) or ceil(n/k) shards, in one plan with the fewest moves
  that do it: the fullest regions keep the extra shards. Limits cut the plan to its most useful
  moves; the next plan continues. It cannot oscillate, since in balance it plans nothing.
- **LeastShardThreshold** is the strategy of Akka 2.4. It moves shards of one pair of regions at a
  time, the fullest and the emptiest, when their difference is *above* the threshold. Threshold 1
  moves one shard in a round and balances best. A higher threshold moves more shards in a round,
  which is quicker, and leaves a difference up to the threshold.
- **ConsistentHashing** needs no counts: a ring of virtual nodes hashed by address. A node that
  restarts gets its shards back, and a node that joins or leaves moves only the shards that it takes
  or held.
- **External** puts a shard where an operator or another program placed it. Without a place, or with
  one where no candidate is, the shard goes to the emptiest region, and stays there until its place
  has a candidate.

Not here: the strategy that goes by load (`least_load`), and how settings choose one (`selection`).

Source: S0.19, S0.27-S0.31, S2.25, S2.26, S2.63, S2.64, B.64-B.67, B.69.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol

from shardbus.ids import Address, NodeId
from shardbus.sharding.table import ShardTable

VIRTUAL_NODES = 10
"""Points of each node on the ring."""


Loads = Mapping[str, float]
"""The load of each shard where it is known."""


class Move(NamedTuple):
    """The move of one shard from `source` to `target`."""

    shard: str
    source: NodeId
    target: NodeId


class AllocationStrategy(Protocol):
    """Decides homes. It is pure: the same arguments give the same answer on every node."""

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return a candidate for each of `shards`.

        `loads` is the load per shard where it is known. `candidates` is not empty.
        """
        ...

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves that improve the table, the most useful first."""
        ...


def assignment(
    table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
) -> dict[NodeId, list[str]]:
    """Return the shards of each candidate, in address order, with the moves under way as done.

    Shards that move come first, so that those above a quota can still be moved.
    """
    plan: dict[NodeId, list[str]] = {node: [] for node in sorted(candidates)}
    for move in in_flight.values():
        if move.target in plan:
            plan[move.target].append(move.shard)
    for node, shards in plan.items():
        shards.extend(shard for shard in table.shards_at(node) if shard not in in_flight)
    return plan


def fill(counts: Mapping[NodeId, int], shards: Sequence[str]) -> dict[str, NodeId]:
    """Give each shard to the region with the fewest at that moment; `counts` has the start."""
    heap = [(count, node) for node, count in counts.items()]
    heapify(heap)
    homes: dict[str, NodeId] = {}
    for shard in shards:
        count, node = heap[0]
        homes[shard] = node
        heapreplace(heap, (count + 1, node))
    return homes


def to_fewest(
    self: object,
    table: ShardTable,
    loads: Loads,
    shards: Sequence[str],
    candidates: Collection[NodeId],
) -> dict[str, NodeId]:
    """Give each shard to the region with the fewest."""
    return fill({node: len(table.shards_at(node)) for node in candidates}, shards)


@dataclass(frozen=True, slots=True)
class LeastShard:
    """Plans the whole way to balance at once.

    Args:
        absolute_limit: shards that may move at a time, 0 for no limit.
        relative_limit: the same as a part of all shards; at least one may move.
    """

    absolute_limit: int = 0
    relative_limit: float = 1.0

    allocate = to_fewest

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the fewest moves that leave every region within one shard of every other."""
        if not candidates:
            return []
        plan = assignment(table, candidates, in_flight)
        quotas = self._quotas(plan)
        surplus = [
            (-(position + 1), node, shard)
            for node, shards in plan.items()
            for position, shard in enumerate(shards)
            if position >= quotas[node] and shard not in in_flight
        ]
        wanting = [
            (level, node)
            for node, shards in plan.items()
            for level in range(len(shards), quotas[node])
        ]
        surplus.sort()
        wanting.sort()
        moves = [
            Move(shard, source, target)
            for (_, source, shard), (_, target) in zip(surplus, wanting, strict=False)
        ]
        return moves[: self._limit(sum(map(len, plan.values())), len(in_flight))]

    def _limit(self, shards: int, in_flight: int) -> int:
        limit = max(1, int(self.relative_limit * shards))
        if self.absolute_limit:
            limit = min(limit, self.absolute_limit)
        return max(0, limit - in_flight)

    @staticmethod
    def _quotas(plan: Mapping[NodeId, Sequence[str]]) -> dict[NodeId, int]:
        """Return how many shards each region ends with: the fullest keep the extra ones."""
        base, extra = divmod(sum(map(len, plan.values())), len(plan))
        fullest = sorted(plan, key=lambda node: (-len(plan[node]), node))
        return {node: base + (rank < extra) for rank, node in enumerate(fullest)}


@dataclass(frozen=True, slots=True)
class LeastShardThreshold:
    """Moves shards from the fullest to the emptiest region, the strategy of Akka 2.4.

    Args:
        threshold: the difference between most and least above which shards move, and the number
            of shards that one plan moves at most.
        max_simultaneous: shards that may move at a time.
    """

    threshold: int = 10
    max_simultaneous: int = 3

    allocate = to_fewest

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return moves of the fullest region's oldest shards to the emptiest region."""
        plan = assignment(table, candidates, in_flight)
        if not plan:
            return []
        most = max(plan, key=lambda node: len(plan[node]))
        least = min(plan, key=lambda node: len(plan[node]))
        difference = len(plan[most]) - len(plan[least])
        if difference <= self.threshold:
            return []
        room = self.max_simultaneous - len(in_flight)
        count = max(0, min(max(1, self.threshold), difference // 2, room))
        movable = [shard for shard in plan[most] if shard not in in_flight]
        return [Move(shard, most, least) for shard in movable[:count]]


@dataclass(frozen=True, slots=True)
class ConsistentHashing:
    """Puts a shard at the first virtual node at or after its hash on a ring.

    Args:
        virtual_nodes: points of each node on the ring; more spread better and cost more.
        max_moves: shards moved in one plan, 0 for no limit.
    """

    virtual_nodes: int = VIRTUAL_NODES
    max_moves: int = 0

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return the ring's answer, whatever the counts are."""
        ring = self._ring(candidates)
        return {shard: _at(ring, shard) for shard in shards}

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return a move for every shard that is not where the ring puts it."""
        if not candidates:
            return []
        ring = self._ring(candidates)
        moves = [
            Move(shard, node, target)
            for node in sorted(candidates)
            for shard in table.shards_at(node)
            if shard not in in_flight and (target := _at(ring, shard)) != node
        ]
        return moves[: max(0, self.max_moves - len(in_flight))] if self.max_moves else moves

    def _ring(self, candidates: Collection[NodeId]) -> list[tuple[int, NodeId]]:
        return sorted(
            (_point(f"{node.address}/{index}"), node)
            for node in candidates
            for index in range(self.virtual_nodes)
        )


@dataclass(frozen=True, slots=True)
class External:
    """Puts shards at places that operators or other programs set.

    Args:
        max_moves: shards moved in one plan, 0 for no limit.
        places: shard to the address of the node where it must be; the coordinator stores them.
    """

    max_moves: int = 0
    places: Mapping[str, Address] = field(default_factory=dict)

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Give each shard to its place; shards without a candidate there go to the regions with
        the fewest."""
        at: dict[Address | None, NodeId] = {node.address: node for node in candidates}
        homes = {s: at[place] for s in shards if (place := self.places.get(s)) in at}
        counts = {node: len(table.shards_at(node)) for node in candidates}
        for node in homes.values():
            counts[node] += 1
        return homes | fill(counts, [shard for shard in shards if shard not in homes])

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return a move for every shard that has a place with a candidate and is elsewhere."""
        at: dict[Address | None, NodeId] = {node.address: node for node in candidates}
        moves = [
            Move(shard, node, at[place])
            for node in sorted(candidates)
            for shard in table.shards_at(node)
            if shard not in in_flight
            and (place := self.places.get(shard)) in at
            and place != node.address
        ]
        return moves[: max(0, self.max_moves - len(in_flight))] if self.max_moves else moves


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _at(ring: Sequence[tuple[int, NodeId]], shard: str) -> NodeId:
    index = bisect_left(ring, _point(shard), key=lambda entry: entry[0])
    return ring[index % len(ring)][1]
