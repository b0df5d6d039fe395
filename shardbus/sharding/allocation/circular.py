"""The strategy circular: instances around the ring of nodes, each in the first available space.

The nodes form a ring in the order of their addresses. A row of a type with instances goes to the
least used node that it may have, and of several to the first one behind a place on the ring:

    the row has a predecessor (k - 1) with a home   behind that home
    another row of its shard has a home             behind the home of the highest one
    the table has homes                             behind the last listed home
    otherwise                                       behind the last row placed of any type

So rows of one shard are neighbours where there is room, shards follow each other around the ring,
and a row whose node died goes near its old place. No row moves for balance: when nodes come, only
new rows use them. `least-shards` also evens out the counts.

The types whose coordinators run on one node share the `Ring`: the rows of all of them count as use
of a node. So with 10 nodes and N = 4, 3 and 5, three types of one shard each are at

    A 1 2 3 4    B 5 6 7    C 8 9 10 1 2

and only 1 and 2 have two. A strategy has the other types' rows as of their last allocation or check
for balance; that decides where rows go, and never whether.

A shard of a type without instances is a row without siblings.

Source: docs/partitions.md; S3.50-S3.53.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Loads, Move
from shardbus.sharding.instances import row_of, split_row
from shardbus.sharding.table import ShardTable


class Ring:
    """The use of the nodes by the types that are placed on one ring."""

    __slots__ = ("_placed", "_tables", "last")

    def __init__(self) -> None:
        self._tables: dict[str, ShardTable] = {}
        self._placed: dict[str, dict[str, NodeId]] = {}
        """By type: the rows placed since, which its table may lack."""
        self.last: NodeId | None = None
        """The node of the last row placed."""

    def record(self, entity_type: str, table: ShardTable, *, settled: bool) -> None:
        """Record the table of a type. `settled`: rows placed earlier and not in it are given up."""
        placed = self._placed.get(entity_type, {})
        if settled:
            placed = {}
        elif self._tables.get(entity_type) is not table:
            placed = {row: node for row, node in placed.items() if row not in table.homes}
        self._tables[entity_type], self._placed[entity_type] = table, placed

    def place(self, entity_type: str, row: str, node: NodeId) -> None:
        """Record a row that was given a home."""
        self._placed[entity_type][row] = self.last = node

    def counts(self, entity_type: str, nodes: Iterable[NodeId]) -> dict[NodeId, int]:
        """Return how many rows each of the nodes has, for this type, of which the table counts."""
        used = {node: sum(len(t.shards_at(node)) for t in self._tables.values()) for node in nodes}
        for other, placed in self._placed.items():
            for node in placed.values() if other != entity_type else ():
                if node in used:
                    used[node] += 1
        return used


@dataclass(frozen=True, slots=True)
class Circular:
    """Gives each row of a type the first of the least used nodes on the ring."""

    entity_type: str = ""
    ring: Ring = field(default_factory=Ring)

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return a node for each row, one after the other."""
        self.ring.record(self.entity_type, table, settled=False)
        counts = self.ring.counts(self.entity_type, sorted(candidates))
        homes: dict[str, NodeId] = {}
        for row in shards:
            behind = _before(row, table, homes) or self.ring.last
            least = min(counts.values())
            usable = [node for node, count in counts.items() if count == least]
            later = (node for node in usable if behind is not None and node > behind)
            homes[row] = node = next(later, usable[0])
            self.ring.place(self.entity_type, row, node)
            counts[node] += 1
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return no move."""
        self.ring.record(self.entity_type, table, settled=True)
        return []


def _before(row: str, table: ShardTable, homes: dict[str, NodeId]) -> NodeId | None:
    """Return the node behind which the search for a place begins; None is the ring's end."""
    shard, instance = split_row(row)
    if instance:  # there are no more instances than nodes
        for other in (instance - 1, *range(len(table.regions), 0, -1)):
            sibling = row_of(shard, other)
            present = table.homes.get(sibling)
            node = homes.get(sibling) or (present.node if present is not None else None)
            if node is not None:
                return node
    last = [*homes.values()][-1:] or [home.node for home in [*table.homes.values()][-1:]]
    return last[0] if last else None
