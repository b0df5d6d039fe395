"""A price cache that answers on every node: three instances of each price, asked at the nearest.

shardbus node start examples.prices:bus
python -m examples.prices tcp://127.0.0.1:7355
"""

import asyncio
import sys

from shardbus import AsyncClient, Entity, ShardBus, handler

bus = ShardBus("prices")


@bus.entity(name="price", shards=20, instances=3)
class Price(Entity):
    """One instance of a price. Each computes it once, and again after `forget`."""

    def __init__(self) -> None:
        self.cents: int | None = None
        self.computed = 0

    @handler
    def get(self) -> int:
        if self.cents is None:
            self.cents = self._compute()
        return self.cents

    @handler
    def forget(self) -> None:
        self.cents = None

    @handler
    def stats(self) -> int:
        return self.computed

    def _compute(self) -> int:
        """Stand for the query that the cache saves."""
        self.computed += 1
        return 100 * len(self.context.entity_id)


async def main(address: str) -> None:
    async with AsyncClient(address, cluster="prices") as client:
        price = client.ref(Price, "tea")
        print(await price.get(), await price.get())
        await price.to("all").forget.tell()
        print(await price.get())
        stats = await price.to("all").stats()
        print(sum(n for n in stats.values() if isinstance(n, int)), "computed")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
