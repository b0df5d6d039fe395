"""Measure how long each mode of a hand-off makes asks wait, where nothing else does.

On real hosts most asks wait for a core while a node leaves (`benchmarks.handoff_modes`). Here three
nodes, a client and a store run in virtual time, where code takes no time: a frame takes `FRAME_S`
one way, a request of the store as long as given. One node leaves, and each of its entities is asked
every `EACH_S`. The figures depend on nothing else, so every run has the same.

    python -m benchmarks.handoff_waits                     asks of a node, and of a client
    python -m benchmarks.handoff_waits --homes gossip      nodes get homes from each other
    python -m benchmarks.handoff_waits --store-ms 1        a store that answers sooner

The wait of an entity is the time of its longest ask beyond an undisturbed one. The figure is the
99th percentile of the entities that moved, and `ratio` compares it with mode `buffer`. An
ask that is dropped fails, and has no wait; their number stands beside the figure.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from benchmarks.harness import emit, percentile
from shardbus import Entity, RequestError, ShardBus, handler
from shardbus.ids import shard_of
from shardbus.simulation.membership import network
from shardbus.simulation.nodes import stores
from shardbus.testing import TestCluster

BASE = "buffer"
MODES = (BASE, "ordered", "forward", "drop")
SHARDS = 300
FRAME_S, STORE_MS = 0.00025, 10.0
EACH_S, STEP_S = 0.002, 0.0002
BEFORE_S, AFTER_S, SETTLED_S = 0.5, 0.5, 5.0


class Asks:
    """Asks an entity of each shard in turn, and writes down the outcomes."""

    def __init__(self) -> None:
        homes: dict[str, str] = {}
        number = 0
        while len(homes) < SHARDS:
            homes.setdefault(shard_of(str(number), SHARDS), str(number))
            number += 1
        self.ids = list(homes.values())
        self.took: list[tuple[str, float, float]] = []
        """The entity, when it was asked, and how long that took."""
        self.failed: list[str] = []
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, refs: dict[str, Any]) -> None:
        """Send without an end, without waiting for answers."""
        loop = asyncio.get_running_loop()
        turn, each = 0, round(SHARDS * STEP_S / EACH_S)
        while True:
            for n in range(turn, turn + each):
                entity_id = self.ids[n % SHARDS]
                task = loop.create_task(self._ask(entity_id, refs[entity_id]))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            turn += each
            await asyncio.sleep(STEP_S)

    async def _ask(self, entity_id: str, ref: Any) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await ref.echo()
            self.took.append((entity_id, began, loop.time() - began))
        except RequestError:
            self.failed.append(entity_id)

    def waits_ms(self, entities: set[str]) -> list[float]:
        """Return the wait of each of these entities."""
        usual = 2 * FRAME_S
        longest = dict.fromkeys(entities, usual)
        for entity_id, _, took in self.took:
            if entity_id in entities:
                longest[entity_id] = max(longest[entity_id], took)
        return [1000 * (took - usual) for took in longest.values()]


def application(mode: Any, asks: Asks) -> ShardBus:
    """Return an application whose things move in this mode. A caller sends the asks from its
    node."""
    bus = ShardBus("bench")

    @bus.entity(name="thing", shards=SHARDS, handoff=mode)
    class Thing(Entity):
        @handler
        def echo(self) -> None: ...

    @bus.entity(name="caller", shards=SHARDS)
    class Caller(Entity):
        @handler
        async def call(self) -> None:
            await asks.run(
                {entity_id: self.context.ref(Thing, entity_id) for entity_id in asks.ids}
            )

        @handler
        def wake(self) -> None: ...

    return bus


async def leave(mode: str, homes: str, sender: str) -> tuple[float, int]:
    """Let one of three nodes leave. Returns the 99th percentile of the waits in milliseconds, and
    the number of asks that failed."""
    asks = Asks()
    bus = application(mode, asks)
    thing, caller = bus.types["thing"].cls, bus.types["caller"].cls
    async with TestCluster(bus, nodes=3, settings={"sharding.homes": homes}) as cluster:
        cluster.world.network.delay_s = FRAME_S
        client = cluster.client()
        refs: dict[str, Any] = {entity_id: client.ref(thing, entity_id) for entity_id in asks.ids}
        for entity_id in asks.ids:
            await refs[entity_id].echo()
        callers: list[Any] = [client.ref(caller, entity_id) for entity_id in asks.ids[:9]]
        await asyncio.gather(*(entity_id.wake() for entity_id in callers))
        await cluster.settle()
        await cluster.advance(SETTLED_S)
        victim = cluster.nodes[-1]
        moving = {entity_id for entity_id in asks.ids if cluster.where(thing, entity_id) is victim}
        if sender == "client":
            cluster.spawn(asks.run(refs))
        else:
            first = cluster.nodes[0]
            at = next(n for n in range(9) if cluster.where(caller, asks.ids[n]) is first)
            await callers[at].call.tell()
        await cluster.advance(BEFORE_S)
        await cluster.leave(victim)
        await cluster.advance(AFTER_S)
        waits = sorted(asks.waits_ms(moving))
        return percentile(waits, 0.99), len(asks.failed)


async def compare(homes: str, store_ms: float) -> None:
    """Let a node leave in each mode, asked by a node and by a client, and print a line for each."""
    network.SHORTEST_DELAY = FRAME_S
    stores.LATENCY_S = (store_ms / 2000, store_ms / 2000)
    for sender in ("node", "client"):
        base = 0.0
        for mode in MODES:
            wait, failed = await leave(mode, homes, sender)
            base = wait if mode == BASE else base
            emit(
                f"leave_{mode}_wait_p99",
                wait,
                "virtual ms",
                sender=sender,
                homes=homes,
                store_ms=store_ms,
                frame_ms=1000 * FRAME_S,
                ratio=round(wait / base, 3),
                asks_failed=failed,
            )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handoff_waits")
    parser.add_argument("--homes", choices=("ask", "gossip"), default="ask")
    parser.add_argument("--store-ms", type=float, default=STORE_MS)
    arguments = parser.parse_args()
    asyncio.run(compare(arguments.homes, arguments.store_ms))


if __name__ == "__main__":
    main()
