"""A guard around a strategy that keeps shards at the places that operators have set.

A *pinned* shard has a place, the address of a node, and a candidate there. It is allocated there,
and moves there. The strategy does not see it: it gets the table without pinned shards, and places
and balances the others among all candidates. So a strategy that counts shards gives a node with
three pinned shards as many others as any node.

A shard whose place has no candidate, because its node is away, leaves or is cordoned, is not pinned
at that moment, and the strategy decides about it as about any other.

Source: S3.19; docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shardbus.ids import Address, NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Loads, Move
from shardbus.sharding.table import ShardTable


class PinnedShards:
    """Calls `strategy` for the shards that are not pinned. It is a strategy itself. `places`: the
    places by shard."""

    __slots__ = ("places", "strategy")

    def __init__(
        self, strategy: AllocationStrategy, places: Mapping[str, Address] | None = None
    ) -> None:
        self.strategy = strategy
        self.places: Mapping[str, Address] = places or {}

    def around(self, strategy: AllocationStrategy) -> PinnedShards:
        """Return this guard around another strategy. It keeps the present places."""
        return PinnedShards(strategy, self.places)

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return its place for each pinned shard, and the strategy's choice for the others."""
        pinned = self._pinned(candidates)
        homes = {shard: pinned[shard] for shard in shards if shard in pinned}
        rest = [shard for shard in shards if shard not in pinned]
        if rest:
            seen = without(table, pinned)
            homes |= self.strategy.allocate(seen, loads, rest, candidates)
        return homes

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the moves of pinned shards to their places, then the strategy's moves."""
        pinned = self._pinned(candidates)
        moves = [
            Move(shard, home.node, target)
            for shard, target in pinned.items()
            if (home := table.homes.get(shard)) is not None
            and home.node != target
            and home.node in candidates
            and shard not in in_flight
        ]
        others = {shard: move for shard, move in in_flight.items() if shard not in pinned}
        return moves + self.strategy.rebalance(without(table, pinned), candidates, others)

    def _pinned(self, candidates: Collection[NodeId]) -> dict[str, NodeId]:
        """Return the node of each pinned shard."""
        if not self.places:
            return {}
        at: dict[Address | None, NodeId] = {node.address: node for node in candidates}
        return {shard: at[place] for shard, place in self.places.items() if place in at}


def without(table: ShardTable, shards: Collection[str]) -> ShardTable:
    """Return the table without these shards."""
    if not any(shard in table.homes for shard in shards):
        return table
    homes = {shard: home for shard, home in table.homes.items() if shard not in shards}
    regions = {
        node: {shard: None for shard in hosted if shard not in shards}
        for node, hosted in table.regions.items()
    }
    return replace(table, homes=homes, regions=regions)
