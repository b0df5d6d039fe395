"""The strategy circular: instances around the ring of nodes, each in the first available space.

The nodes form a ring in the order of their addresses. A row of a type with instances goes to the
least used node that it may have, and of several to the first one behind a place on the ring:

    the row has a predecessor (k - 1) with a home   behind that home
    another row of its shard has a home             behind that of the highest one
    otherwise                                       behind the home that the table lists last

So rows of one shard are neighbours where there is room, shards follow each other around the ring,
and a row whose node died goes near its old place. No row moves for balance: when nodes come, only
new rows use them. `least-shards` also evens out the counts.

With 10 nodes and N = 4, 3 and 5, three shards are at

    A 1 2 3 4    B 5 6 7    C 8 9 10 1 2

A shard of a type without instances is a row without siblings.

Source: docs/partitions.md; S3.50-S3.53.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.instances import row_of, split_row
from shardbus.sharding.table import ShardTable


@dataclass(frozen=True, slots=True)
class Circular:
    """Gives each row the first of the least used nodes on the ring."""

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        """Return a node for each row, one after the other."""
        counts = {node: len(table.shards_at(node)) for node in sorted(candidates)}
        homes: dict[str, NodeId] = {}
        for row in shards:
            behind = _before(row, table, homes)
            least = min(counts.values())
            usable = [node for node, count in counts.items() if count == least]
            later = (node for node in usable if behind is not None and node > behind)
            homes[row] = node = next(later, usable[0])
            counts[node] += 1
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return no move."""
        return []


def _before(row: str, table: ShardTable, homes: dict[str, NodeId]) -> NodeId | None:
    """Return the node behind which the search for a place begins; None is the ring's end."""
    shard, instance = split_row(row)
    if instance:  # there are no more instances than nodes
        for other in (instance - 1, *range(len(table.regions), 0, -1)):
            sibling = row_of(shard, other)
            known = table.homes.get(sibling)
            node = homes.get(sibling) or (known.node if known is not None else None)
            if node is not None:
                return node
    last = [*homes.values()][-1:] or [home.node for home in [*table.homes.values()][-1:]]
    return last[0] if last else None
