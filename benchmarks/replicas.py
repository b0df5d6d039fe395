"""Measure saves in the replicas of `cluster://`, beside Redis and etcd of equal durability.

Three servers of each on this machine, all of them on the same disk; one client in this process,
which works on the stores themselves: no node, no entity and no mailbox.

    cluster   three replicas (`shardbus store serve`); a save ends once two have synced it
    redis     a Valkey or Redis with two replicas, `appendfsync always` on all; redis-py runs the
              script of `benchmarks.saves` for all waiting saves in one pipeline, then `WAIT 1`
    etcd      three members, one put a save by gRPC to the leader, as its clients do; with
              `pip install grpcio` and `etcd` on the PATH

States of 100 bytes, 10,000 keys; one save at a time and 384 in flight. `cpu` is the processor time
of all three servers for each save. `killed` is the longest of the saves during which a replica is
killed. The client collects garbage as seldom as a node does.

    python -m benchmarks.replicas                   cluster and redis
    python -m benchmarks.replicas etcd              and etcd
    python -m benchmarks.replicas keys=1000000      cluster of a million keys, beside 10,000

Source: the figures are in docs/measurements.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

from redis.asyncio import Redis

from benchmarks.harness import RUNS, SECONDS, Asks, asked, emit, free_port, median, percentile
from benchmarks.saves import BareRedis
from shardbus.ids import Address
from shardbus.node.run import GC_THRESHOLDS
from shardbus.store.entity_state import EntityStates
from shardbus.store.replicated import ReplicatedStore
from shardbus.transport.zmq.network import ZmqNetwork
from tests.redis_server import RedisServer

LANES = (1, 384)
SIZE = 100
CLUSTER, HOST, SHARDS = "replicas", "127.0.0.1", 64
WITHIN_S = 60.0


class Saver(Asks, Protocol):
    """A store that is measured: `ask` saves the state of an entity."""

    @property
    def name(self) -> str:
        """The store."""

    @property
    def pids(self) -> list[int]:
        """The processes of its servers."""


class Cluster:
    """The replicas of `cluster://`, each in a process of its own."""

    name = "cluster"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._versions: dict[str, int] = {}
        self._data = bytes(SIZE)

    @property
    def pids(self) -> list[int]:
        """The processes of the replicas."""
        return [process.pid for process in self._processes]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Cluster]:
        """Serve while the context lasts."""
        root = Path(__file__).parent.parent
        paths = os.pathsep.join(map(str, (root, root / "cli")))
        addresses = tuple(sorted(Address(HOST, free_port()) for _ in range(3)))
        url = "cluster://" + ",".join(f"{at.host}:{at.port}" for at in addresses)
        for at in addresses:
            words = (
                *("--cluster", CLUSTER, "--host", at.host, "--port", str(at.port)),
                *("--store", url, "--path", str(self._folder / str(at.port))),
            )
            main = "from shardbus_cli.main import main; main()"
            process = subprocess.Popen(
                [sys.executable, "-c", main, "store", "serve", *words],
                env=os.environ | {"PYTHONPATH": paths},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._processes.append(process)
        store = ReplicatedStore("cluster://", CLUSTER, addresses, ZmqNetwork, timeout=WITHIN_S)
        try:
            await store.start()
            self.states = EntityStates(store, 7)
            yield self
        finally:
            await store.close()
            for process in self._processes:
                process.kill()
                process.wait()

    def ask(self, entity_id: str) -> Any:
        """Save the state of an entity."""
        return self.states.save("cart", _shard(entity_id), entity_id, 1, self._data)

    def load(self, entity_id: str) -> Any:
        """Load the state of an entity."""
        return self.states.load("cart", _shard(entity_id), entity_id, 1)

    def kill(self) -> None:
        """Kill a replica."""
        process = self._processes.pop()
        process.kill()
        process.wait()


def _shard(entity_id: str) -> str:
    return str(sum(entity_id.encode()) % SHARDS)


class RedisWithReplicas(BareRedis):
    """The script of `benchmarks.saves`; each pipeline ends with `WAIT 1`."""

    def __init__(self, servers: list[RedisServer]) -> None:
        super().__init__(servers[0].url())
        self.name, self.message = "redis", bytes(SIZE)
        self.pids = [server.pid for server in servers]

    async def _do(self, ids: list[str]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        self._fill(pipeline, [f"bare:{{cart}}:{entity_id}" for entity_id in ids])
        pipeline.execute_command("WAIT", 1, 60_000)
        answers = await pipeline.execute()
        assert answers[-1] >= 1, "a save without a replica"

    async def linked(self) -> None:
        """Wait until both replicas follow."""
        async with asyncio.timeout(WITHIN_S), Redis.from_url(self._url) as client:
            while (await client.info("replication"))["connected_slaves"] < 2:
                await asyncio.sleep(0.1)


@contextlib.contextmanager
def redis_servers(folder: Path) -> Iterator[list[RedisServer]]:
    """One server and two that follow it."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(RedisServer(folder / "0", "--appendfsync", "always"))
        follows = ("--replicaof", HOST, str(first.port), "--appendfsync", "always")
        others = [
            stack.enter_context(
                RedisServer(folder / name, *follows, "--repl-diskless-load", "on-empty-db")
            )
            for name in "12"
        ]
        yield [first, *others]


class Etcd:
    """Three members of etcd, and a channel of gRPC to the leader."""

    name = "etcd"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._value = b"\x12" + bytes([SIZE]) + bytes(SIZE)

    @property
    def pids(self) -> list[int]:
        """The processes of the members."""
        return [process.pid for process in self._processes]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Etcd]:
        """Serve while the context lasts."""
        import grpc.aio  # type: ignore[import-not-found, import-untyped, unused-ignore]

        peers = {f"m{number}": (free_port(), free_port()) for number in range(3)}
        members = ",".join(f"{name}=http://{HOST}:{port}" for name, (_, port) in peers.items())
        for name, (client, peer) in peers.items():
            words = (
                *("--name", name, "--data-dir", str(self._folder / name), "--log-level", "error"),
                *("--listen-client-urls", f"http://{HOST}:{client}"),
                *("--advertise-client-urls", f"http://{HOST}:{client}"),
                *("--listen-peer-urls", f"http://{HOST}:{peer}"),
                *("--initial-advertise-peer-urls", f"http://{HOST}:{peer}"),
                *("--initial-cluster", members),
            )
            null = subprocess.DEVNULL
            self._processes.append(subprocess.Popen(["etcd", *words], stdout=null, stderr=null))
        try:
            for client, _ in peers.values():
                async with grpc.aio.insecure_channel(f"{HOST}:{client}") as channel:
                    call = channel.unary_unary("/etcdserverpb.Maintenance/Status")
                    await asyncio.wait_for(call(b"", wait_for_ready=True), WITHIN_S)
                    if _leads(await call(b"")):
                        self._put = channel.unary_unary("/etcdserverpb.KV/Put")
                        yield self
                        return
            raise RuntimeError("no member of etcd leads")
        finally:
            for process in self._processes:
                process.kill()
                process.wait()

    async def ask(self, entity_id: str) -> Any:
        """Put the state of an entity: a PutRequest is its key (1) and its value (2)."""
        key = entity_id.encode()
        return await self._put(b"\x0a" + bytes([len(key)]) + key + self._value)


def _leads(status: bytes) -> bool:
    """True if the member of this StatusResponse leads: its id (field 2 of the header, 1) is the
    leader (4)."""
    fields = dict(_fields(status))
    header = dict(_fields(fields[1]))
    return bool(fields.get(4)) and header.get(2) == fields.get(4)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers, by number: integers and bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        length = varint()
        if tag & 7 == 0:
            yield tag >> 3, length
        else:
            yield tag >> 3, data[at : at + length]
            at += length


def processor_us(pids: list[int]) -> float:
    """Microseconds of processor time of these processes so far."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e3


async def compare(sides: list[Saver]) -> None:
    """Measure these stores in turn."""
    for lanes in LANES:
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        p50: dict[str, list[float]] = {side.name: [] for side in sides}
        cpu: dict[str, list[float]] = {side.name: [] for side in sides}
        for side in sides:
            await asked(side, lanes, 1.0)
        for _ in range(RUNS):
            for side in sides:
                before = processor_us(side.pids)
                rate, taken = await asked(side, lanes, SECONDS)
                cpu[side.name].append((processor_us(side.pids) - before) / len(taken))
                rates[side.name].append(rate)
                p50[side.name].append(percentile(taken, 0.5))
        name = f"replicas/{lanes}"
        for side in sides:
            emit(f"{name}/{side.name}", median(rates[side.name]), "saves/s")
            emit(f"{name}/{side.name}_p50", median(p50[side.name]), "us")
            emit(f"{name}/{side.name}_cpu", median(cpu[side.name]), "us", of="all servers")
        for side in sides[1:]:
            for what, values in (("rate", rates), ("p50", p50)):
                pairs = [a / b for a, b in zip(values["cluster"], values[side.name], strict=True)]
                shown = [round(pair, 3) for pair in pairs]
                emit(f"{name}/ratio_{what}", median(pairs), "x", of=side.name, pairs=shown)


async def loads(cluster: Cluster) -> None:
    """Measure loads beside saves, of the same keys."""

    class Loads:
        ask = staticmethod(cluster.load)

    for lanes in LANES:
        rates, p50 = [], []
        for _ in range(RUNS):
            saved, taken = await asked(cluster, lanes, SECONDS)
            read, waited = await asked(Loads(), lanes, SECONDS)
            rates.append(read / saved)
            p50.append(percentile(waited, 0.5) / percentile(taken, 0.5))
        emit(f"replicas/{lanes}/loads_ratio_rate", median(rates), "x", of="saves")
        emit(f"replicas/{lanes}/loads_ratio_p50", median(p50), "x", of="saves")


async def many(cluster: Cluster, keys: int) -> None:
    """Fill the replicas, and measure saves of all these keys beside 10,000 of them."""
    ids = iter(range(keys))

    async def fill() -> None:
        for number in ids:
            await cluster.ask(f"key-{number}")

    await asyncio.gather(*(fill() for _ in range(LANES[-1])))

    class Spread:
        at = 0

        def ask(self, _: str) -> Any:
            self.at = (self.at + 7_919) % keys
            return cluster.ask(f"key-{self.at}")

    pairs = []
    for _ in range(RUNS):
        all_keys, _ = await asked(Spread(), LANES[-1], SECONDS)
        few, _ = await asked(cluster, LANES[-1], SECONDS)
        pairs.append(all_keys / few)
    emit("replicas/keys_ratio_rate", median(pairs), "x", of="10,000 keys", keys=keys)
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in cluster.pids]
    emit("replicas/keys_memory", max(pages) * os.sysconf("SC_PAGE_SIZE") / keys, "bytes/key")


async def killed(cluster: Cluster) -> None:
    """Kill a replica under load."""
    saving = asyncio.ensure_future(asked(cluster, LANES[-1], SECONDS))
    await asyncio.sleep(SECONDS / 2)
    cluster.kill()
    _, taken = await saving
    emit(
        "replicas/killed_longest", taken[-1] / 1e3, "ms", p50=round(percentile(taken, 0.5) / 1e3, 1)
    )


async def main() -> None:
    """Measure and print."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    keys = next((int(word[5:]) for word in sys.argv[1:] if word.startswith("keys=")), 0)
    try:
        async with contextlib.AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(Cluster(folder / "c").opened())
            if keys:
                await many(cluster, keys)
                return
            servers = stack.enter_context(redis_servers(folder / "r"))
            redis = RedisWithReplicas(servers)
            await stack.enter_async_context(redis)
            await redis.linked()
            sides: list[Saver] = [cluster, redis]
            if "etcd" in sys.argv[1:]:
                sides.append(await stack.enter_async_context(Etcd(folder / "e").opened()))
            await compare(sides)
            await loads(cluster)
            await killed(cluster)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(main())
