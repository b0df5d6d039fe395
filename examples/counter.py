"""The smallest application: counters that live somewhere in the cluster.

shardbus node start examples.counter:bus
shardbus ask counter page-7 add 2
"""

from __future__ import annotations

from shardbus import Entity, ShardBus, handler

bus = ShardBus("shop")


@bus.entity(name="counter")
class Counter(Entity):
    """Counts what it is told to, in memory: it starts from 0 after a move or a crash."""

    def __init__(self) -> None:
        self.value = 0

    @handler
    def add(self, amount: int = 1) -> int:
        """Add, and answer the new value."""
        self.value += amount
        return self.value

    @handler
    def total(self) -> int:
        """The value."""
        return self.value
