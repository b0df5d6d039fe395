"""The smallest application, with a client."""

import asyncio

from shardbus import AsyncClient, Entity, ShardBus, handler

bus = ShardBus("shop")


@bus.entity(name="counter")
class Counter(Entity):
    def __init__(self) -> None:
        self.value = 0

    @handler
    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value


async def main() -> None:
    async with AsyncClient("tcp://127.0.0.1:7355", cluster="shop") as client:
        page = client.ref(Counter, "page-7")
        await page.add.tell(1)
        print(await page.add(2))


if __name__ == "__main__":
    asyncio.run(main())
