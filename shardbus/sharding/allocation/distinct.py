"""A guard around a strategy that keeps the rows of a shard on distinct nodes.

A type with instances has rows, `17~1` to `17~N`. Two of one shard on one node would be lost
together. So `allocate` offers the strategy, for each row, the candidates that host no other row of
its shard; a row for which there is none gets no home. `rebalance` leaves out the moves of the
strategy that would put a second row of a shard on a node, whether the first is there or on its way.

Rows are offered one by one, shard after shard. With a strategy that takes the node with the fewest,
each shard so gets the N emptiest nodes, and no node has two rows more than another.

Source: docs/partitions.md; S3.47.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.instances import split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardHomeAllocated, ShardTable


class DistinctRows:
    """Calls `strategy` for rows. It is a strategy itself."""

    __slots__ = ("strategy",)

    def __init__(self, strategy: AllocationStrategy) -> None:
        self.strategy = strategy

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        """Return a candidate for each row that can have one."""
        taken = nodes_by_shard(table)
        by_shard: dict[str, list[str]] = {}
        for row in shards:
            by_shard.setdefault(split_row(row)[0], []).append(row)
        homes: dict[str, NodeId] = {}
        for shard, rows in by_shard.items():
            there = taken.get(shard, {})
            able = [node for node in candidates if node not in there]
            found: dict[str, NodeId] = {}
            for row in rows[: len(able)]:
                found.update(self.strategy.allocate(table, loads, [row], able))
                able = [node for node in able if node != found.get(row)]
            fence = table.next_fence
            table = table.updated_all(
                ShardHomeAllocated(Home(row, node, fence)) for row, node in found.items()
            )
            homes.update(found)
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves of the strategy that keep rows on distinct nodes."""
        taken = nodes_by_shard(table)
        for move in in_flight.values():
            taken.setdefault(split_row(move.shard)[0], {})[move.target] = None
        moves: list[Move] = []
        for move in self.strategy.rebalance(table, candidates, in_flight):
            there = taken.setdefault(split_row(move.shard)[0], {})
            if move.target not in there:
                there[move.target] = None
                moves.append(move)
        return moves


def nodes_by_shard(table: ShardTable) -> dict[str, dict[NodeId, None]]:
    """Return the nodes that host a row of each shard."""
    taken: dict[str, dict[NodeId, None]] = {}
    for row, home in table.homes.items():
        taken.setdefault(split_row(row)[0], {})[home.node] = None
    return taken
