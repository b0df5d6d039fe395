"""A guard around a strategy, whose answers are checked before they count: it may be the user's own.

A coordinator must not stop because a strategy raises, leaves out a shard, or names a node that may
not host. A shard without a usable answer goes to the region with the fewest. A move that is not
possible is left out. Both are noted, once until a different fault occurs.

Source: S0.19, S2.63.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from shardbus.error_text import described, shown
from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move, fill
from shardbus.sharding.events import Note
from shardbus.sharding.table import ShardTable

WHY_MAX = 500
"""Characters of a fault in a note."""


class CheckedStrategy:
    """Calls `strategy` and keeps the possible answers. `note` gets a note of each fault."""

    __slots__ = ("_last", "_note", "strategy")

    def __init__(self, strategy: AllocationStrategy, note: Callable[[Note], None]) -> None:
        self.strategy = strategy
        self._note = note
        self._last = ""

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        """Return a candidate for each of `shards`, whatever the strategy returns."""
        able = dict.fromkeys(candidates)
        homes: dict[str, NodeId] = {}
        try:
            found = self.strategy.allocate(table, loads, shards, candidates)
            homes = {s: node for s in shards if (node := found.get(s)) is not None and node in able}
        except BaseException as error:
            self._complain(f"allocate raised {described(error, WHY_MAX)}")
        else:
            if lost := [shard for shard in shards if shard not in homes]:
                self._complain(f"allocate gave no candidate for shard {lost[0]!r}")
        if len(homes) == len(shards):
            return homes
        counts = {node: len(table.shards_at(node)) for node in candidates}
        for node in homes.values():
            counts[node] += 1
        return homes | fill(counts, [shard for shard in shards if shard not in homes])

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return the possible moves of the strategy, one per shard."""
        able = dict.fromkeys(candidates)
        moves: dict[str, Move] = {}
        try:
            for found in self.strategy.rebalance(table, candidates, in_flight):
                move = Move(*found)
                home = table.homes.get(move.shard)
                fits = home is not None and home.node == move.source and move.target in able
                if fits and move.source != move.target and move.shard not in in_flight:
                    moves.setdefault(move.shard, move)
                else:
                    self._complain(f"rebalance returned an impossible move: {shown(move, WHY_MAX)}")
        except BaseException as error:
            self._complain(f"rebalance raised {described(error, WHY_MAX)}")
            return []
        return list(moves.values())

    def _complain(self, what: str) -> None:
        if what != self._last:
            self._last = what
            self._note(Note("strategy_failed", what[:WHY_MAX]))
