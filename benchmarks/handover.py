"""Measure how long no coordinator decides while the oldest node leaves: from the last answer of its
coordinator to the first answer of the next one.

Three real nodes in this process, one store. The youngest requests the home of a fresh shard every
few milliseconds and writes down when which epoch answered, and the oldest leaves. Again and again,
each time a new cluster, so that tables do not grow. The figures include the slowest ask of each
leave, which is the delay of a sender to a fresh shard.

    python -m benchmarks.handover [LEAVES]        20 by default
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from typing import Any

from benchmarks.harness import emit, free_port, percentile
from shardbus import AskTimeout, Entity, ShardBus, handler
from shardbus.config.settings import NodeSettings, Settings
from shardbus.membership.member import Status
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.sharding import events, messages
from shardbus.store.opening import open_store

bus = ShardBus("handover")
NODES = 3
ASK_EVERY_S = 0.002
STEP_S = 0.01
PATIENCE_S = 60.0
AFTER = 50
"""Answers of the next coordinator after which a leave counts as over."""


@bus.entity("thing", shards=1_000_000)
class Thing(Entity):
    """Answer from a shard of its own."""

    @handler
    def touch(self) -> None:
        """Answer."""


async def wait(condition: Any, what: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(STEP_S)


async def started(url: str, nodes: list[Node]) -> Node:
    """Start one more node and wait until it is Up everywhere and registered."""
    seeds = tuple(str(node.me.address) for node in nodes[:1])
    settings = NodeSettings(port=free_port(), gossip_port=free_port(), seeds=seeds)
    node = Node(bus.name, bus.types, Settings(node=settings), open_store(url, cluster=bus.name))
    await node.start()
    node.join("127.0.0.1:0")
    nodes.append(node)

    def settled() -> bool:
        views = [n.view for n in nodes]
        up = [Status.UP] * len(nodes)
        agreed = all(v is not None and [m.status for m in v.members] == up for v in views)
        return agreed and all(n.regions["thing"].router.region.registered for n in nodes)

    await wait(settled, f"{len(nodes)} nodes")
    return node


class Prober:
    """Request the homes of fresh shards at one node and record which coordinator answers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heard: list[tuple[float, int]] = []
        """When an answer came, and under which epoch."""
        self.waits: list[float] = []
        self.unanswered = 0
        self._asks: set[asyncio.Task[None]] = set()
        router: Any = node.regions["thing"].router
        handle = router.handle

        def listen(event: events.RegionEvent) -> None:
            if isinstance(event, events.MessageReceived):
                message = event.message
                if isinstance(message, messages.ShardHomes) and message.homes:
                    self.heard.append((time.monotonic(), message.epoch))
            handle(event)

        router.handle = listen

    async def run(self) -> None:
        """Ask until cancelled, without waiting for the answers."""
        loop = asyncio.get_running_loop()
        while True:
            task = loop.create_task(self._ask(f"{time.monotonic_ns()}"))
            self._asks.add(task)
            task.add_done_callback(self._asks.discard)
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, entity: str) -> None:
        begun = time.monotonic()
        try:
            await self.node.ref("thing", entity).touch()
        except AskTimeout:
            self.unanswered += 1
        self.waits.append(time.monotonic() - begun)

    def answered(self, epoch: int) -> int:
        """Return the answers above this epoch."""
        return sum(e > epoch for _, e in self.heard)

    def gap(self, epoch: int) -> float:
        """Return the seconds between the last answer under this epoch and the first above it."""
        return min(t for t, e in self.heard if e > epoch) - max(
            t for t, e in self.heard if e == epoch
        )

    async def finish(self) -> None:
        """Wait until every ask has its answer."""
        await asyncio.gather(*self._asks)


async def leave(nodes: list[Node]) -> tuple[float, float, int]:
    """Let the oldest leave; return the gap, the slowest ask, and the asks without an answer in
    time."""
    prober = Prober(nodes[-1])
    asking = asyncio.ensure_future(prober.run())
    await wait(lambda: len(prober.heard) >= AFTER, "answers of the old coordinator")
    epoch = prober.heard[-1][1]
    await shutdown.leave(nodes[0], lambda text: None)
    await wait(lambda: prober.answered(epoch) >= AFTER, "answers of the new coordinator")
    asking.cancel()
    await prober.finish()
    return prober.gap(epoch), max(prober.waits), prober.unanswered


async def measured() -> tuple[float, float, int]:
    """Measure one leave in a cluster of its own."""
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:///{folder}/store.db"
        try:
            for _ in range(NODES):
                await started(url, nodes)
            return await leave(nodes)
        finally:
            await asyncio.gather(*(node.close() for node in nodes))


async def main(leaves: int) -> None:
    """Measure and print."""
    taken = [await measured() for _ in range(leaves)]
    for which, name in enumerate(("handover_gap", "handover_slowest_ask")):
        values = sorted(row[which] for row in taken)
        for suffix, q in (("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            value = 1000 * percentile(values, q)
            emit(f"{name}_{suffix}", value, "ms", leaves=leaves, nodes=NODES, store="sqlite")
    lost = sum(row[2] for row in taken)
    emit("handover_asks_unanswered", lost, "asks", leaves=leaves, nodes=NODES, store="sqlite")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
