"""A guard around a strategy that keeps the rows of a shard on distinct nodes and zones.

A type with instances has rows, `17~1` to `17~N`. Two of one shard on one node would be lost
together. So `allocate` offers the strategy, for each row, the candidates that host no other row of
its shard; a row for which there is none gets no home. `rebalance` leaves out the moves of the
strategy that would put a second row of a shard on a node, whether the first is there or on its way.

Rows are offered one by one, shard after shard. With a strategy that takes the node with the fewest,
each shard so gets the N emptiest nodes, and no node has two rows more than another.

**Zones.** Of the nodes that may have a row, those are offered whose zone has the fewest rows of its
shard. So N zones have one row each, and the nodes of a small zone have more rows than others. A
node without a zone is a zone of its own; where no node has one, nothing changes. `rebalance` leaves
out moves to a zone with more other rows of the shard than the zone of the source, and adds moves:
rows that share a zone go to one with fewer, which may have come later. Each of these moves makes
the zones of its shard more even and no other move makes them less so, so they come to an end.

Source: docs/partitions.md; S3.47.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Loads, Move
from shardbus.sharding.instances import split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardHomeAllocated, ShardTable

ZONE_MOVES_MAX = 1000
"""Moves between zones in one plan; the next plan continues."""


class DistinctRows:
    """Calls `strategy` for rows. It is a strategy itself. `zones`: of the nodes that have one."""

    __slots__ = ("strategy", "zones")

    def __init__(
        self, strategy: AllocationStrategy, zones: Mapping[NodeId, str] | None = None
    ) -> None:
        self.strategy = strategy
        self.zones: Mapping[NodeId, str] = zones or {}

    def around(self, strategy: AllocationStrategy) -> DistinctRows:
        """Return this guard around another strategy. It keeps the present zones."""
        return DistinctRows(strategy, self.zones)

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return a candidate for each row that can have one."""
        taken = nodes_by_shard(table)
        by_shard: dict[str, list[str]] = {}
        for row in shards:
            by_shard.setdefault(split_row(row)[0], []).append(row)
        homes: dict[str, NodeId] = {}
        for shard, rows in by_shard.items():
            there = dict(taken.get(shard, {}))
            able = [node for node in candidates if node not in there]
            placed: dict[str, NodeId] = {}
            for row in rows[: len(able)]:
                offered = self._in_emptiest_zones(able, there)
                placed.update(self.strategy.allocate(table, loads, [row], offered))
                there |= dict.fromkeys([placed[row]] if row in placed else [])
                able = [node for node in able if node not in there]
            fence = table.next_fence
            table = table.updated_all(
                ShardHomeAllocated(Home(row, node, fence)) for row, node in placed.items()
            )
            homes.update(placed)
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves that spread rows over zones, and the moves of the strategy that keep
        rows on distinct nodes and zones."""
        taken = nodes_by_shard(table)
        for move in in_flight.values():
            taken.setdefault(split_row(move.shard)[0], {})[move.target] = None
        moves = self._spread(table, candidates, in_flight, taken)
        moving = {move.shard for move in moves}
        for move in self.strategy.rebalance(table, candidates, in_flight):
            there = taken.setdefault(split_row(move.shard)[0], {})
            if move.target in there or move.shard in moving:
                continue
            if self._gain(move.source, move.target, there) >= 0:
                there[move.target] = None
                moves.append(move)
        return moves

    def _spread(
        self,
        table: ShardTable,
        candidates: Collection[NodeId],
        in_flight: Mapping[str, Move],
        taken: Mapping[str, dict[NodeId, None]],
    ) -> list[Move]:
        """Return the moves of rows to zones with fewer rows of their shard, to the candidate with
        the fewest rows. A shard moves one row at a time. `taken` gets the targets."""
        if not self.zones:
            return []
        counts = {node: len(table.shards_at(node)) for node in sorted(candidates)}
        busy = {split_row(row)[0] for row in in_flight}
        moves: list[Move] = []
        for row, home in table.homes.items():
            shard, instance = split_row(row)
            if not instance or shard in busy or home.node not in counts:
                continue
            there = taken[shard]
            rows = self._rows_by_zone(node for node in there if node != home.node)
            rows_here = rows[self._zone(home.node)]
            if not rows_here:
                continue
            better = [n for n in counts if n not in there and rows[self._zone(n)] < rows_here]
            if better and len(moves) < ZONE_MOVES_MAX:
                target = min(self._in_emptiest_zones(better, there), key=counts.__getitem__)
                moves.append(Move(row, home.node, target))
                counts[target] += 1
                counts[home.node] -= 1
                there[target] = None
                busy.add(shard)
        return moves

    def _zone(self, node: NodeId) -> str | NodeId:
        return self.zones.get(node) or node

    def _rows_by_zone(self, nodes: Iterable[NodeId]) -> Counter[str | NodeId]:
        return Counter(map(self._zone, nodes))

    def _in_emptiest_zones(
        self, able: Sequence[NodeId], there: Collection[NodeId]
    ) -> Sequence[NodeId]:
        """Return the nodes whose zone has the fewest rows of a shard; `there`: the nodes that have
        one."""
        if not self.zones:
            return able
        rows = self._rows_by_zone(there)
        least = min((rows[self._zone(node)] for node in able), default=0)
        return [node for node in able if rows[self._zone(node)] == least]

    def _gain(self, source: NodeId, target: NodeId, there: Collection[NodeId]) -> int:
        """Return how many rows of a shard the zone of the source has more than the target's zone,
        without the row that would move."""
        if not self.zones:
            return 0
        rows = self._rows_by_zone(node for node in there if node != source)
        return rows[self._zone(source)] - rows[self._zone(target)]


def nodes_by_shard(table: ShardTable) -> dict[str, dict[NodeId, None]]:
    """Return the nodes that host a row of each shard."""
    taken: dict[str, dict[NodeId, None]] = {}
    for row, home in table.homes.items():
        taken.setdefault(split_row(row)[0], {})[home.node] = None
    return taken
