"""Measure the cost for a node while a client lists 1,000,000 stored ids, with a real Redis.

The node runs in the main thread, a blocking client in another one. Of every callback of the node's
loop the processor time is taken: no answer of the node is later than that because of the list. The
memory is the whole process's, which also holds the client, before and after.

    python -m benchmarks.listing                1,000,000 entities
    python -m benchmarks.listing 100000         another number
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from asyncio import events
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import emit
from shardbus import Client, Entity, ShardBus, handler
from shardbus.ids import shard_of
from shardbus.store.protocol import Save
from shardbus.store.redis import RedisStore
from shardbus.transport.environment import resident_bytes
from tests.loopback.nodes import Nodes
from tests.redis_server import RedisServer

ENTITIES = 1_000_000
SHARDS = 100
BATCH = 5000
PATIENCE_S = 600.0
bus = ShardBus("shop")


@dataclass
class CartState:
    total: int = 0


@bus.entity("cart", shards=SHARDS)
class Cart(Entity):
    state: CartState

    @handler
    def total(self) -> int:
        return self.state.total


class LongestCallback:
    """Takes the processor time of the callbacks that run in this thread."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self._thread = threading.get_ident()

    def __enter__(self) -> LongestCallback:
        plain = self._plain = events.Handle._run

        def run(handle: Any) -> None:
            if threading.get_ident() != self._thread:
                plain(handle)
                return
            began = time.thread_time()
            plain(handle)
            self.seconds = max(self.seconds, time.thread_time() - began)
            self.count += 1

        events.Handle._run = run  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: object) -> None:
        events.Handle._run = self._plain  # type: ignore[method-assign]


async def fill(url: str, count: int) -> None:
    """Store that many carts."""
    store = RedisStore(url, timeout=PATIENCE_S)
    await store.start()
    for first in range(0, count, BATCH):
        ids = [f"cart-{n:07}" for n in range(first, min(first + BATCH, count))]
        saves = [
            Save("cart", shard_of(key, SHARDS), key, 0, b"\x81\xa5total\x01", first + n + 1)
            for n, key in enumerate(ids)
        ]
        assert set(await store.save_states(saves)) == {None}
    await store.close()


def listed(address: str, count: int) -> tuple[int, int]:
    """List all ids. Returns how many came, and by how much the memory has grown at most."""
    with Client(address, cluster="shop", timeout=PATIENCE_S) as client:
        before = most = resident_bytes()
        number = 0
        for _ in client.stored(Cart):
            number += 1
            if number % 10_000 == 0:
                most = max(most, resident_bytes())
        assert number >= count
        return number, most - before


async def measure(count: int, folder: Path) -> None:
    """Fill a server, list it, and print the results."""
    with RedisServer(folder, "--save", "", "--appendonly", "no") as server:
        url = f"{server.url()}?durability=cache"
        await fill(url, count)
        async with Nodes() as nodes:
            nodes.open_store = lambda: RedisStore(url, timeout=PATIENCE_S)
            node = await nodes.start(bus)
            with LongestCallback() as idle:
                await asyncio.sleep(5)
            with LongestCallback() as longest:
                began, used = time.monotonic(), time.thread_time()
                address = f"tcp://{node.me.address}"
                seen, grown = await asyncio.to_thread(listed, address, count)
                taken, used = time.monotonic() - began, time.thread_time() - used
        parameters = {"entities": count, "seen": seen}
        emit("longest callback while a client lists", 1000 * longest.seconds, "ms", **parameters)
        emit("longest callback of the idle node", 1000 * idle.seconds, "ms", **parameters)
        emit("processor time of the node per id", 1e6 * used / seen, "us", **parameters)
        emit("ids listed", seen / taken, "1/s", **parameters)
        emit("memory grown in node and client", grown / 2**20, "MiB", **parameters)


if __name__ == "__main__":
    entities = int(sys.argv[1]) if len(sys.argv) > 1 else ENTITIES
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(measure(entities, Path(made)))
