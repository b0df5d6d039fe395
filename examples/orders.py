"""Orders with items that live with them: an order and its items are on one node, and move together.

shardbus node start examples.orders:bus
python -m examples.orders tcp://127.0.0.1:7355 7 socks 2 hat 1
"""

import asyncio
import sys
from dataclasses import dataclass, field

from shardbus import AsyncClient, Entity, Rejection, ShardBus, handler

bus = ShardBus("orders")

PRICES = {"socks": 900, "hat": 2500}
"""Cents."""


class UnknownItem(Rejection):
    """The shop does not sell this item."""

    def __init__(self, item: str) -> None:
        super().__init__(item)
        self.item = item


@dataclass
class OrderState:
    items: list[str] = field(default_factory=list)


@dataclass
class ItemState:
    pieces: int = 0


@bus.entity(name="order", shards=20)
class Order(Entity):
    """Which items an order has."""

    state: OrderState

    @handler
    async def add(self, item: str, pieces: int) -> int:
        """Add pieces of an item; return how many of it there are."""
        if item not in PRICES:
            raise UnknownItem(item)
        if item not in self.state.items:
            self.state.items.append(item)
            await self.save()
        return await self.context.child(Item, item).add(pieces)

    @handler
    async def total(self) -> int:
        """Return the price of all items, in cents. No message leaves the node."""
        parts = (self.context.child(Item, item).price() for item in self.state.items)
        return sum(await asyncio.gather(*parts))


@bus.entity(name="item", within=Order)
class Item(Entity):
    """How many pieces of one item an order has. Its id is ORDER/ITEM."""

    state: ItemState

    @handler
    async def add(self, pieces: int) -> int:
        self.state.pieces += pieces
        await self.save()
        return self.state.pieces

    @handler
    def price(self) -> int:
        item = self.context.entity_id.rpartition("/")[2]
        return PRICES[item] * self.state.pieces


async def main(address: str, number: str, *words: str) -> None:
    async with AsyncClient(address, cluster="orders") as client:
        order = client.ref(Order, number)
        for item, pieces in zip(words[::2], words[1::2], strict=True):
            print(item, await order.add(item, int(pieces)))
        print("total", await order.total())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
