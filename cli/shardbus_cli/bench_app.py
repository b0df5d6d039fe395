"""The application of `shardbus bench`: counters."""

from __future__ import annotations

from shardbus import Entity, ShardBus, handler

bus = ShardBus("bench")


@bus.entity(name="counter", shards=64, passivate_after=3600.0)
class HitCounter(Entity):
    """Counts the messages that it receives."""

    def __init__(self) -> None:
        self.value = 0

    @handler
    def hit(self, payload: bytes) -> int:
        """Count a message."""
        self.value += 1
        return self.value

    @handler
    def total(self) -> int:
        """Return the number of messages."""
        return self.value
