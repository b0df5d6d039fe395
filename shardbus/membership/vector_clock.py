"""Vector clocks: which of two versions contains the changes of the other.

A clock counts, per node, the changes that node has made. If each counter of clock A is at least
clock B's, A contains all changes of B. If neither clock contains the other, the two versions
changed concurrently and must be merged. Counters of removed nodes are pruned; without that, the
clock would grow with every restart of a node.

Source: S1.11, S3.12.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import Enum, auto

import msgspec

from shardbus.ids import NodeId


class Order(Enum):
    """The relation of one clock to another."""

    SAME = auto()
    BEFORE = auto()
    AFTER = auto()
    CONCURRENT = auto()


class VectorClock(msgspec.Struct, frozen=True):
    """An immutable clock. A node that is not in `counters` counts as 0."""

    counters: Mapping[NodeId, int] = msgspec.field(default_factory=dict)

    def bumped(self, node: NodeId) -> VectorClock:
        """Return the clock with one more change by `node`."""
        return VectorClock({**self.counters, node: self.counters.get(node, 0) + 1})

    def merge(self, other: VectorClock) -> VectorClock:
        """Return the smallest clock that contains both."""
        merged = dict(self.counters)
        for node, count in other.counters.items():
            merged[node] = max(count, merged.get(node, 0))
        return VectorClock(merged)

    def without(self, nodes: Container[NodeId]) -> VectorClock:
        """Return the clock without the counters of these nodes."""
        if not any(node in nodes for node in self.counters):
            return self
        return VectorClock({n: c for n, c in self.counters.items() if n not in nodes})

    def compare(self, other: VectorClock) -> Order:
        """Compare this clock with `other`. BEFORE means that `other` contains changes this clock
        lacks."""
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
