"""Real nodes, one of which has an entity without room: the process that sends to it asks others
meanwhile, and waits no longer than the node lives."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shardbus import AsyncClient
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

APP = """
import asyncio
from shardbus import Entity, ShardBus, handler

bus = ShardBus("shop")

@bus.entity("device", shards=16, mailbox=100, mailbox_patience=300.0)
class Device(Entity):
    @handler
    async def event(self, number: int, payload: bytes) -> None:
        await asyncio.sleep(0.1)

    @handler
    def where(self) -> str:
        return self.context.node
"""


async def test_one_slow_entity_delays_no_other_and_its_sender_outlives_its_node(
    lab: Processes, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    nodes = await lab.cluster(2, app="shop.py")
    addresses = [f"tcp://{node.address}" for node in nodes]
    async with AsyncClient(
        *addresses, cluster="shop", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:

        async def place(entity_id: str) -> str:
            return str(await client.call("device", entity_id, "where")).partition("#")[0]

        homes = {f"d{n}": await place(f"d{n}") for n in range(60)}
        slow = "d0"
        node = next(node for node in nodes if node.address == homes[slow])
        neighbours = [name for name, home in homes.items() if home == node.address and name != slow]
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await client.tell("device", slow, "event", sent, bytes(200))
                sent += 1
                if sent % 20 == 0:  # while there is no home, a tell does not wait
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(flood())
        held = lambda: any(s.outbox.held for s in client._endpoint.sessions())  # noqa: E731
        await until(held, "no room")
        at_rest = sent
        for _ in range(20):
            answers = await asyncio.gather(*(place(name) for name in neighbours))
            assert set(answers) == {node.address}
        assert sent == at_rest, "the flood waits"
        await killed(node)
        await until(lambda: sent > at_rest, "the flood goes on at the next home")
        task.cancel()
        assert await place(neighbours[0]) != node.address
        assert client.refused_messages == {}
        assert client.lost_messages <= sent


async def killed(node: NodeProcess) -> None:
    await asyncio.to_thread(node.kill)
    assert not node.running
