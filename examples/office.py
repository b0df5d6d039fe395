"""Two types on nodes of two roles, and a node that only sends.

Every node runs this application. Orders live on nodes with the role `shop`, invoices on nodes with
the role `billing`. Visits may live on any node; the third node below has no role and hosts no
visits either, so it only sends:

    shardbus node start examples.office:bus --role shop
    shardbus node start examples.office:bus --role billing --seed ...
    shardbus node start examples.office:bus --proxy visit --seed ...

An order that is closed asks its invoice, without knowing where the invoice lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus import Entity, ShardBus, handler

bus = ShardBus("office")


@dataclass
class Lines:
    """The ordered quantity of each article."""

    lines: dict[str, int] = field(default_factory=dict)


@dataclass
class Bill:
    """The amount of an invoice, in cents; 0 until it is issued."""

    cents: int = 0


PRICES = {"desk": 25000, "chair": 9900, "lamp": 4500}


@bus.entity(name="invoice", role="billing", shards=20)
class Invoice(Entity):
    """An invoice is issued once; later asks get the same amount."""

    state: Bill

    @handler
    async def issue(self, lines: dict[str, int]) -> int:
        """Issue the invoice and return its amount in cents."""
        if not self.state.cents:
            self.state.cents = sum(PRICES[article] * count for article, count in lines.items())
            await self.save()
        return self.state.cents

    @handler
    def where(self) -> str:
        """Return the node on which this invoice lives."""
        return self.context.node


@bus.entity(name="order", role="shop", shards=20)
class Order(Entity):
    """Collects articles."""

    state: Lines

    @handler
    async def add(self, article: str, count: int = 1) -> dict[str, int]:
        """Add `count` of an article."""
        lines = self.state.lines
        lines[article] = lines.get(article, 0) + count
        await self.save()
        return lines

    @handler
    async def close(self) -> int:
        """Ask the invoice of the same number to be issued, and return its amount."""
        return await self.context.ref(Invoice, self.context.entity_id).issue(self.state.lines)

    @handler
    def where(self) -> str:
        """Return the node on which this order lives."""
        return self.context.node


@bus.entity(name="visit", shards=20)
class Visit(Entity):
    """Counts the visits of one visitor, in memory."""

    def __init__(self) -> None:
        self.times = 0

    @handler
    def again(self) -> int:
        """Count a visit."""
        self.times += 1
        return self.times

    @handler
    def where(self) -> str:
        """Return the node on which this visitor is counted."""
        return self.context.node
