"""The application: its entity types."""

from dataclasses import dataclass

from shardbus import Entity, ShardBus, handler

bus = ShardBus("demo")


@dataclass
class Tally:
    """The stored state of a counter. Every field has a default."""

    total: int = 0


@bus.entity(name="counter")
class Counter(Entity):
    """Counts. There is one counter for each id; it handles one message at a time."""

    state: Tally

    @handler
    async def add(self, amount: int = 1) -> int:
        """Add, save, and return the total. An awaited save is in the store."""
        self.state.total += amount
        await self.save()
        return self.state.total

    @handler
    def total(self) -> int:
        """Return the total."""
        return self.state.total

    @handler
    async def reset(self) -> None:
        """Begin at 0 again."""
        self.state.total = 0
        await self.save()
