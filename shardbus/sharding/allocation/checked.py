"""A guard around a strategy, whose answers are checked before they count: it may be the user's own.

A coordinator must not stop because a strategy raises, leaves out a shard, or names a node that may
not host. A shard without a usable answer goes to the region with the fewest. A move that is not
possible is left out. Each fault names the method, and goes to the caller of the guard, which
reports it (`strategy_faults`).

A strategy is a plain function of its arguments. An answer that must be awaited is a fault like any
other.

Source: S0.19, S2.63.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple

from shardbus.error_text import shown, text_of, type_name
from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Loads, Move, fill, to_fewest
from shardbus.sharding.table import ShardTable
from shardbus.tasks.interrupts import raise_interrupt

WHY_MAX = 500
"""Characters of a fault."""
ALLOCATE, REBALANCE = "allocate", "rebalance"


class StrategyFault(NamedTuple):
    """A fault of a strategy's method. `kind` is the same for faults of one kind, and `detail`
    completes the sentence that begins with the method."""

    method: str
    kind: str
    detail: str = ""


def fault_of(method: str, error: BaseException) -> StrategyFault:
    """Return the fault of a method that raised this."""
    text = text_of(error, WHY_MAX)
    return StrategyFault(
        method, f"raised {type_name(error)}", f": {text}"[:WHY_MAX] if text else ""
    )


class CheckedStrategy:
    """Calls `strategy` and keeps the possible answers. `report` gets each fault."""

    __slots__ = ("_report", "calling", "strategy")

    def __init__(
        self, strategy: AllocationStrategy, report: Callable[[StrategyFault], None]
    ) -> None:
        self.strategy = strategy
        self.calling = ""
        """The method that is being called, for a reader in another thread."""
        self._report = report

    def allocate(
        self, table: ShardTable, loads: Loads, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        """Return a candidate for each of `shards`, whatever the strategy returns."""
        able = dict.fromkeys(candidates)
        homes: dict[str, NodeId] = {}
        self.calling = ALLOCATE
        try:
            nodes = _plain(self.strategy.allocate(table, loads, shards, candidates))
            homes = {s: node for s in shards if (node := nodes.get(s)) is not None and node in able}
        except BaseException as error:
            raise_interrupt(error)
            self._report(fault_of(ALLOCATE, error))
        else:
            if lost := [shard for shard in shards if shard not in homes]:
                self._complain(ALLOCATE, "gave no candidate", f" for shard {lost[0]!r}")
        self.calling = ""
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
        self.calling = REBALANCE
        try:
            for row in _plain(self.strategy.rebalance(table, candidates, in_flight)):
                move = Move(*row)
                home = table.homes.get(move.shard)
                fits = home is not None and home.node == move.source and move.target in able
                if fits and move.source != move.target and move.shard not in in_flight:
                    moves.setdefault(move.shard, move)
                else:
                    self._complain(REBALANCE, "returned an impossible move", f": {shown(move)}")
        except BaseException as error:
            raise_interrupt(error)
            self._report(fault_of(REBALANCE, error))
            moves = {}
        self.calling = ""
        return list(moves.values())

    def _complain(self, method: str, kind: str, detail: str) -> None:
        self._report(StrategyFault(method, kind, detail[:WHY_MAX]))


class FewestShards:
    """Stands in for a strategy that gives no answer: a shard without a home goes to the region with
    the fewest, and no other moves."""

    __slots__ = ()

    allocate = to_fewest

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        """Return no move."""
        return []


def _plain(answer: Any) -> Any:
    """Return an answer that need not be awaited.

    Raises:
        TypeError: it must be, so it is none.
    """
    if not isawaitable(answer):
        return answer
    close = getattr(answer, "close", None)
    if callable(close):
        close()
    raise TypeError(
        f"a {type_name(answer)} is no answer: write a plain function, which may block, because it"
        " runs in a thread"
    )
