"""The application of the process tests of states that instances share: a counter of a kind, and
votes that a function merges."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus import Entity, ShardBus, handler
from shardbus.data import Counter

bus = ShardBus("lab")


@bus.entity("hits", shards=12, instances=3)
class Hits(Entity):
    """Counts on three nodes at once."""

    state: Counter

    @handler
    async def hit(self) -> int:
        self.state.add(1)
        await self.save()
        return self.state.value

    @handler
    def total(self) -> int:
        return self.state.value

    @handler
    async def fresh_total(self) -> int:
        """Return the total with all that was saved before: a save without a change reads."""
        await self.save()
        return self.state.value


@dataclass
class Votes:
    by: dict[str, int] = field(default_factory=dict)
    """By voter, how often."""


@bus.entity("poll", shards=12, instances=3)
class Poll(Entity):
    """Has one entry for each voter, who votes at one instance at a time."""

    state: Votes

    @staticmethod
    def merge(first: Votes, other: Votes) -> Votes:
        names = first.by.keys() | other.by.keys()
        return Votes({name: max(first.by.get(name, 0), other.by.get(name, 0)) for name in names})

    @handler
    async def vote(self, voter: str) -> int:
        self.state.by[voter] = self.state.by.get(voter, 0) + 1
        await self.save()
        return self.state.by[voter]

    @handler
    async def votes(self) -> dict[str, int]:
        await self.save()
        return self.state.by
