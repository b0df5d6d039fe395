"""What would move if nodes came or went: the strategy on paper.

The table is changed in thought, by the events that would change it in earnest: regions register and
end, homeless shards are allocated, and plans are made and carried out until the strategy has none.
A strategy that never comes to rest is stopped after a bound of rounds, and that is told.

Not here: messages, and how long it takes.

Source: C.11, C.22, N.10; T.SU rows of allocation strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    RegionRegistered,
    RegionTerminated,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
    TableEvent,
)

ROUNDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The counts of shards per node before and after, in address order, and what moved between."""

    before: Mapping[NodeId, int]
    after: Mapping[NodeId, int]
    moved: Mapping[str, tuple[NodeId, NodeId]]
    """Shard to where it was and where it is in the end."""
    rounds: int
    """Plans that it took."""
    settled: bool
    """False: the strategy still plans after the bound of rounds."""


def forecast(
    strategy: AllocationStrategy,
    table: ShardTable,
    candidates: Sequence[NodeId],
    add: int = 0,
    remove: Sequence[NodeId] = (),
) -> Forecast:
    """What becomes of this table with so many nodes more and without these. `candidates` are the
    regions that may take shards now."""
    first = table
    fit = [node for node in candidates if node not in remove]
    new = [NodeId(f"new-{i + 1}", 1, i) for i in range(add)]
    table = table.updated_all(RegionRegistered(node) for node in new)
    fit = sorted([*fit, *new])
    if fit:
        homeless = [shard for node in remove for shard in table.shards_at(node)]
        gone = [RegionTerminated(node) for node in remove if node in table.regions]
        table = table.updated_all(gone)
        table = _placed(table, strategy.allocate(table, {}, homeless, fit) if homeless else {})
    rounds, moves = 0, strategy.rebalance(table, fit, {}) if fit else []
    while moves and rounds < ROUNDS_MAX:
        rounds += 1
        freed: list[TableEvent] = [ShardHomeDeallocated(move.shard) for move in moves]
        table = _placed(table.updated_all(freed), {move.shard: move.target for move in moves})
        moves = strategy.rebalance(table, fit, {})
    moved = {
        shard: (home.node, table.homes[shard].node)
        for shard, home in first.homes.items()
        if shard in table.homes and table.homes[shard].node != home.node
    }
    return Forecast(_counts(first), _counts(table), moved, rounds, not moves)


def _placed(table: ShardTable, homes: Mapping[str, NodeId]) -> ShardTable:
    fence = table.next_fence
    return table.updated_all(
        ShardHomeAllocated(Home(shard, node, fence + i))
        for i, (shard, node) in enumerate(homes.items())
    )


def _counts(table: ShardTable) -> dict[NodeId, int]:
    return {node: len(shards) for node, shards in sorted(table.regions.items())}
