"""Sessions of a web shop in memory. They move with their shard, in order, and are in no store:
a rolling upgrade keeps them.

shardbus node start examples.sessions:bus
python -m examples.sessions tcp://127.0.0.1:7355 ada tea
"""

import asyncio
import json
import sys

from shardbus import AsyncClient, Entity, ShardBus, handler

bus = ShardBus("sessions")


@bus.entity(name="session", shards=20, handoff="ordered", carry=True, passivate_after="30m")
class Session(Entity):
    """One visitor's basket. A crash of its node loses it; a move does not."""

    def __init__(self) -> None:
        self.basket: list[str] = []
        self.moves = 0

    @handler
    def put(self, item: str) -> int:
        self.basket.append(item)
        return len(self.basket)

    @handler
    def show(self) -> dict[str, object]:
        return {"basket": self.basket, "moves": self.moves, "node": self.context.node}

    def dehydrate(self) -> bytes:
        return json.dumps({"basket": self.basket, "moves": self.moves}).encode()

    def rehydrate(self, data: bytes) -> None:
        """Read a state of this version or of the one before: an older node may have sent it."""
        carried = json.loads(data)
        self.basket, self.moves = carried["basket"], carried.get("moves", 0) + 1


async def main(address: str, visitor: str, *items: str) -> None:
    async with AsyncClient(address, cluster="sessions") as client:
        session = client.ref(Session, visitor)
        for item in items:
            await session.put(item)
        shown = await session.show()
        print(shown["basket"], "after", shown["moves"], "moves")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
