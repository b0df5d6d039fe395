"""Two types on nodes of two roles, and a node that hosts neither of them nor a third.

Every node runs this same application. Orders live on nodes with the role `shop`, invoices on those
with the role `billing`. Visits could live anywhere; the node at the door is told to host none of
them either, and only sends:

    shardbus node start examples.office:bus --role shop
    shardbus node start examples.office:bus --role billing --seed ...
    shardbus node start examples.office:bus --proxy visit --seed ...

An order that is closed asks for its invoice. It does not know where that lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus import Entity, ShardBus, handler

bus = ShardBus("office")


@dataclass
class Lines:
    """What was ordered: article to how many."""

    lines: dict[str, int] = field(default_factory=dict)


@dataclass
class Bill:
    """What is to be paid, in cents; nothing before it is issued."""

    cents: int = 0


PRICES = {"desk": 25000, "chair": 9900, "lamp": 4500}


@bus.entity(name="invoice", role="billing", shards=20)
class Invoice(Entity):
    """Issued once; who asks again gets the same."""

    state: Bill

    @handler
    async def issue(self, lines: dict[str, int]) -> int:
        """The sum in cents."""
        if not self.state.cents:
            self.state.cents = sum(PRICES[article] * count for article, count in lines.items())
            await self.save()
        return self.state.cents

    @handler
    def where(self) -> str:
        """The node on which this invoice lives."""
        return self.context.node


@bus.entity(name="order", role="shop", shards=20)
class Order(Entity):
    """Collects articles."""

    state: Lines

    @handler
    async def add(self, article: str, count: int = 1) -> dict[str, int]:
        """So many more of an article."""
        lines = self.state.lines
        lines[article] = lines.get(article, 0) + count
        await self.save()
        return lines

    @handler
    async def close(self) -> int:
        """Has the invoice of the same number issued; answers its sum."""
        return await self.context.ref(Invoice, self.context.entity_id).issue(self.state.lines)

    @handler
    def where(self) -> str:
        """The node on which this order lives."""
        return self.context.node


@bus.entity(name="visit", shards=20)
class Visit(Entity):
    """Counts in memory how often somebody came."""

    def __init__(self) -> None:
        self.times = 0

    @handler
    def again(self) -> int:
        """One more."""
        self.times += 1
        return self.times

    @handler
    def where(self) -> str:
        """The node on which this visitor is counted."""
        return self.context.node
