"""The questions to the strategy: the nodes of homeless shards, and of those that must leave a node.

A strategy that runs in a thread answers in a later turn (`strategy_calls`). Until then the shards
keep their homes, or go on waiting for one. A late answer may be for other shards, and name nodes
that are gone: its nodes are used as far as they may host, and if none may, it is asked again.

Not here: which shards need a home, and the write of their homes (`ledger`); when a shard must leave
(`coordinator`, `moves`).

Source: S0.19, S2.25, S2.63.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.coordinator.direct_moves import DirectMoves
from shardbus.sharding.coordinator.ledger import Homeless, Ledger, PendingWrite, no_hosts
from shardbus.sharding.coordinator.rebalancing import Rebalancing
from shardbus.sharding.coordinator.registry import Registry
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardHomeAllocated, ShardHomeDeallocated, TableEvent

HOMES = "homes"
"""The question for the homes of homeless shards."""


class Placing:
    """Asks the strategy of `rebalancing` for nodes."""

    __slots__ = ("_direct", "_ledger", "_rebalancing", "_registry")

    def __init__(
        self, registry: Registry, ledger: Ledger, direct: DirectMoves, rebalancing: Rebalancing
    ) -> None:
        self._registry, self._ledger = registry, ledger
        self._direct, self._rebalancing = direct, rebalancing

    def plan(self, now: float) -> PendingWrite | None:
        """Start one write of all pending changes, as `Ledger.plan`."""
        hosts = no_hosts if self._registry.why_not(now) else self._registry.hosts
        return self._ledger.plan(self._place, hosts)

    def _place(self, homeless: Homeless) -> Mapping[str, NodeId] | None:
        """Return the strategy's nodes for homeless shards, None if it has not answered yet."""
        loads = self._rebalancing.loads()

        def question(strategy: AllocationStrategy) -> tuple[Homeless, dict[str, NodeId]]:
            return homeless, homeless.place(strategy, loads)

        answer = self._rebalancing.ask(HOMES, question)
        if answer is None:
            return None
        placed, homes = answer
        if placed is homeless:
            return homes
        nodes, shards = homeless.able(), dict.fromkeys(placed.shards)
        fit = {shard: node for shard, node in homes.items() if node in nodes}
        complete = len(fit) == len(homes) and all(shard in shards for shard in homeless.shards)
        if not fit and not complete:
            self._rebalancing.ask(HOMES, question)
            return None
        return fit

    def leaving(self, shards: list[str], node: NodeId, now: float) -> dict[str, NodeId] | None:
        """Return where the strategy places shards that must leave a node; none if nowhere, None if
        it has not answered yet. Shards that are on their way count where they go."""
        nodes = tuple(other for other in self._registry.hosts((node,)) if other != node)
        if not shards or not nodes or self._registry.why_not(now):
            return {}
        table = self._ledger.table
        events: list[TableEvent] = [ShardHomeDeallocated(shard) for shard in shards]
        for move in self._direct.in_flight():
            if move.target in table.regions and move.shard in table.homes:
                there = Home(move.shard, move.target, table.homes[move.shard].fence)
                events += [ShardHomeDeallocated(move.shard), ShardHomeAllocated(there)]
        table, loads = table.updated_all(events), self._rebalancing.loads()
        homes = self._rebalancing.ask(
            ("leaving", node), lambda strategy: strategy.allocate(table, loads, shards, nodes)
        )
        return None if homes is None else {s: homes[s] for s in homes if homes[s] in nodes}
