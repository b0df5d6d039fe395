"""A forecast: the moves that would follow if nodes came or went.

The strategy works on a copy of the table, which changes by the events that would change it in
earnest: regions register and terminate, shards without a home are allocated, and plans are made and
carried out until the strategy has none. A strategy that goes on planning is stopped after
`ROUNDS_MAX` rounds, and `settled` is then False.

Not here: messages, and how long the moves take.

Source: N.10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.sharding import table as tables
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.messages import Home

ROUNDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The shards per node before and after, in address order, and the moves between."""

    before: Mapping[NodeId, int]
    after: Mapping[NodeId, int]
    moved: Mapping[str, tuple[NodeId, NodeId]]
    """Shard to the node where it was and the node where it ends."""
    rounds: int
    """The number of plans."""
    settled: bool
    """False if the strategy still plans after `ROUNDS_MAX` rounds."""


def forecast(
    strategy: AllocationStrategy,
    table: tables.ShardTable,
    candidates: Sequence[NodeId],
    add: int = 0,
    remove: Sequence[NodeId] = (),
    loads: Mapping[str, float] | None = None,
) -> Forecast:
    """Return the moves in this table with `add` nodes more and without the nodes in `remove`.

    `candidates` are the regions that may take shards now, `loads` the known loads of shards.
    """
    first = table
    fit = [node for node in candidates if node not in remove]
    new = [NodeId(f"new-{i + 1}", 1, i) for i in range(add)]
    table = table.updated_all(tables.RegionRegistered(node) for node in new)
    fit = sorted([*fit, *new])
    if fit:
        homeless = [shard for node in remove for shard in table.shards_at(node)]
        gone = [tables.RegionTerminated(node) for node in remove if node in table.regions]
        table = table.updated_all(gone)
        table = _placed(
            table, strategy.allocate(table, loads or {}, homeless, fit) if homeless else {}
        )
    rounds, moves = 0, strategy.rebalance(table, fit, {}) if fit else []
    while moves and rounds < ROUNDS_MAX:
        rounds += 1
        freed: list[tables.TableEvent] = [tables.ShardHomeDeallocated(move.shard) for move in moves]
        table = _placed(table.updated_all(freed), {move.shard: move.target for move in moves})
        moves = strategy.rebalance(table, fit, {})
    moved = {
        shard: (home.node, table.homes[shard].node)
        for shard, home in first.homes.items()
        if shard in table.homes and table.homes[shard].node != home.node
    }
    return Forecast(_counts(first), _counts(table), moved, rounds, not moves)


def _placed(table: tables.ShardTable, homes: Mapping[str, NodeId]) -> tables.ShardTable:
    fence = table.next_fence
    return table.updated_all(
        tables.ShardHomeAllocated(Home(shard, node, fence + i))
        for i, (shard, node) in enumerate(homes.items())
    )


def _counts(table: tables.ShardTable) -> dict[NodeId, int]:
    return {node: len(shards) for node, shards in sorted(table.regions.items())}
