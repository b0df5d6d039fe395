"""The cluster and the load of `benchmarks.moves`: real nodes over one store, and a sender process.

    async with Lab.of(3, "redis") as lab:             three nodes, every shard has a home
        async with lab.load() as load: ...            something happens to the nodes
        load.tells, load.asks, load.handled           the messages of the meantime, and their
        outcomes

The store is a Redis server of one's own (append-only log, synced each second) or a SQLite file.
With `store_ms`, Redis takes that much longer to answer, as one in another place or one that syncs
its log with each write: a proxy in this process holds back its answers. Nodes have their settings
at their defaults. Each process is ended by its parent, and dies with the benchmark.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.moves_app import SHARDS, Thing, bus
from benchmarks.moves_counts import Asked, Handled, Told, one_per_shard
from benchmarks.nodes import Node, settled, wait
from shardbus import AsyncClient
from shardbus.ids import shard_of
from tests.ports import free_port
from tests.proxy import Proxy
from tests.redis_server import RedisServer

APP = "benchmarks.moves_app:bus"
TOKEN = "moves-of-the-benchmark"
WRITE = ("http.write=true", f"http.token={TOKEN}")
ENTITIES, RATE = 1_000, 5_000
LOOK_S = 0.1
"""Seconds between two questions about counts: nodes pay for the answers."""
FIRST_ASK_S = 30.0


class Load:
    """The sender: rows of its messages since its begin, complete once it has ended."""

    def __init__(
        self, lab: Lab, first: int, count: int, limit: int = 0, *, rate: int = RATE
    ) -> None:
        self._lab, self._what = lab, (first, count, rate, limit)
        self.tells: list[Told] = []
        self.asks: list[Asked] = []
        self.handled: dict[str, list[Handled]] = {}
        self.end: dict[str, Any] = {}
        """The sender's report at its end."""

    async def begin(self) -> None:
        """Start it; returns when it sends."""
        lab = self._lab
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.moves_load", lab.folder, *map(str, self._what)),
            *lab.addresses,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != b"running\n":
            raise RuntimeError("the sender did not start")
        self._begun = time.monotonic_ns()

    async def finish(self, *, stop: bool = True) -> None:
        """Have it stop, or wait until it has sent everything, and read its rows."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if stop:
            process.stdin.close()
        self.end = json.loads(await process.stdout.read())
        await process.wait()
        self.tells = rows(f"{self._lab.folder}/told", 2)
        self.asks = rows(f"{self._lab.folder}/asked", 3)
        for path in Path(self._lab.folder).glob("handled-*"):
            process_id = path.name.removeprefix("handled-")
            since = self._begun - 1_000_000_000
            self.handled[process_id] = [row for row in rows(str(path), 3) if row[1] > since]


class Lab:
    """See the module."""

    def __init__(self, folder: str, store: str, settings: tuple[str, ...]) -> None:
        self.folder, self.store, self.settings = folder, store, settings
        self.nodes: list[Node] = []
        """Those that run, the oldest first."""

    @staticmethod
    @contextlib.asynccontextmanager
    async def of(
        count: int, store: str, *settings: str, warm: bool = True, store_ms: float = 0.0
    ) -> AsyncIterator[Lab]:
        """Start a cluster of `count` nodes; `warm`: every shard has a home."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            url = f"sqlite:///{folder}/store.db"
            if store == "redis":
                server = RedisServer(Path(folder) / "redis", "--appendfsync", "everysec")
                url = stack.enter_context(server).url()
                if store_ms:
                    proxy = Proxy(server.port)
                    proxy.delay = store_ms / 2000
                    await proxy.listen()
                    stack.callback(proxy.refuse)
                    url = url.replace(str(server.port), str(proxy.port))
            lab = Lab(folder, url, settings)
            try:
                for _ in range(count):
                    await lab.add()
                if warm:
                    await lab.first_asks()
                yield lab
            finally:
                for node in lab.nodes:
                    node.kill()

    def begin(self, like: Node | None = None, seeds: list[str] | None = None) -> Node:
        """Start a node, at the addresses of another that has ended, or new ones."""
        ports = like.ports if like else (free_port(), free_port(), free_port())
        joins = [node.address for node in self.nodes][:3] if seeds is None else seeds
        node = Node(self.folder, joins, self.settings, app=APP, store=self.store, ports=ports)
        self.nodes.append(node)
        return node

    async def add(self, like: Node | None = None) -> Node:
        """Start a node and wait until all are Up."""
        node = self.begin(like)
        await wait(lambda: settled(self.nodes), f"{len(self.nodes)} nodes")
        return node

    @property
    def addresses(self) -> list[str]:
        """Where clients find the nodes."""
        return [f"tcp://{node.address}" for node in self.nodes]

    def client(self, timeout: float) -> AsyncClient:
        """A client in this process."""
        return AsyncClient(*self.addresses, cluster=bus.name, timeout=timeout)

    async def first_asks(self) -> float:
        """Ask one entity of each shard, all at once; seconds from the first message to the last
        answer."""
        numbers = one_per_shard(SHARDS, lambda n: shard_of(str(n), SHARDS))
        async with self.client(FIRST_ASK_S) as client:
            things = [client.ref(Thing, str(n)) for n in numbers]
            begun = time.monotonic()
            await asyncio.gather(*(thing.echo() for thing in things))
            return time.monotonic() - begun

    # ---- reports of nodes

    def counts(self, what: str) -> dict[str, int]:
        """Address to the `shards` or `entities` there, of every node that is asked and answers."""
        totals: defaultdict[str, int] = defaultdict(int)
        for row in self.nodes[0].page("/v1/nodes").get("nodes", []):
            totals[row["address"]] = row[what].get("thing", 0)
        return totals

    def even(self) -> bool:
        """Every node has as many shards as every other, give or take one, and none is missing."""
        counts = self.counts("shards")
        shards = [counts[node.address] for node in self.nodes]
        return sum(shards) == SHARDS and max(shards) - min(shards) <= 1

    async def level(self) -> None:
        """Wait until they are even."""
        await wait(self.even, "an even number of shards on every node", LOOK_S)

    def running(self) -> int:
        """Entities in memory, on all nodes."""
        counts = self.counts("entities")
        return sum(counts[node.address] for node in self.nodes)

    # ---- faults of nodes

    def take(self, which: str) -> Node:
        """The `oldest` node, which has the coordinator, or the `youngest`. It is no longer among
        the nodes."""
        return self.nodes.pop(0 if which == "oldest" else -1)

    @contextlib.asynccontextmanager
    async def load(
        self, first: int = 0, count: int = ENTITIES, *, rate: int = RATE
    ) -> AsyncIterator[Load]:
        """Asks and tells for as long as this lasts."""
        load = Load(self, first, count, rate=rate)
        await load.begin()
        try:
            yield load
        finally:
            await load.finish()

    async def messages(self, first: int, count: int, *, rate: int = RATE) -> Load:
        """One ask and one tell for each of these entities."""
        load = Load(self, first, count, count, rate=rate)
        await load.begin()
        await load.finish(stop=False)
        return load

    async def shut_down(self) -> None:
        """Stop the whole cluster, as `shardbus cluster shutdown` does. Needs `WRITE`."""
        self.nodes[0].page("/v1/cluster/shutdown", "POST", TOKEN)
        await wait(lambda: not any(node.running for node in self.nodes), "the end", LOOK_S)


def rows(path: str, columns: int) -> list[Any]:
    """The written rows, as tuples."""
    data = array.array("q", Path(path).read_bytes())
    return list(zip(*(data[i::columns] for i in range(columns)), strict=True))
