"""Vector clocks: which of two states knows more.

A clock counts, per node, the changes that node made to the state. A state whose every counter is at
least the other's contains all the other's changes; if neither is, the two changed at the same time
and must be merged. Counters of removed nodes are pruned, otherwise the clock would grow with every
restart.

Source: S1.11, S3.12; T.U6.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from shardbus.ids import NodeId


class Order(Enum):
    """How a clock stands to another."""

    SAME = auto()
    BEFORE = auto()
    AFTER = auto()
    CONCURRENT = auto()


@dataclass(frozen=True, slots=True)
class VectorClock:
    """An immutable clock. A node that is not in `counters` counts as 0."""

    counters: Mapping[NodeId, int] = field(default_factory=dict)

    def bumped(self, node: NodeId) -> VectorClock:
        """One more change by `node`."""
        return VectorClock({**self.counters, node: self.counters.get(node, 0) + 1})

    def merge(self, other: VectorClock) -> VectorClock:
        """The smallest clock that is not before either."""
        merged = dict(self.counters)
        for node, count in other.counters.items():
            merged[node] = max(count, merged.get(node, 0))
        return VectorClock(merged)

    def without(self, nodes: Container[NodeId]) -> VectorClock:
        """The clock with these nodes' counters pruned."""
        if not any(node in nodes for node in self.counters):
            return self
        return VectorClock({n: c for n, c in self.counters.items() if n not in nodes})

    def compare(self, other: VectorClock) -> Order:
        """How this clock stands to the other: BEFORE means that the other knows more."""
        mine, theirs = self.counters, other.counters
        if mine is theirs or mine == theirs:
            return Order.SAME
        less = any(count and n not in mine for n, count in theirs.items())
        more = False
        for node, count in mine.items():
            counted = theirs.get(node, 0)
            less = less or count < counted
            more = more or count > counted
        match (less, more):
            case (False, False):
                return Order.SAME
            case (True, False):
                return Order.BEFORE
            case (False, True):
                return Order.AFTER
            case _:
                return Order.CONCURRENT
