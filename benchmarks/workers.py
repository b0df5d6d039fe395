"""One to four nodes on one machine: `node start --workers N`, and one producer for all of them.

    tell, ask256   handlers that only count: the throughput of producer and nodes together
    work           asks, 256 in flight, to handlers that keep a core busy for 200 us: the gain of
                   more cores

Shards are spread over the workers; the store is a SQLite file. More nodes help up to the number of
the machine's cores, of which the producer needs one: `cores` has the number. A tell is
timed from the first that is sent to the last that is handled, to 5 ms.

    python -m benchmarks.workers [N ...]         1 2 3 4 by default
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

from benchmarks.counters import Counter, bus
from benchmarks.harness import (
    ENTITIES,
    IDS,
    IN_FLIGHT,
    PAYLOAD,
    RUNS,
    SECONDS,
    STALL_S,
    Host,
    emit,
    median,
)
from benchmarks.nodes import wait
from shardbus import AsyncClient
from tests.ports import free_block

NODES = (1, 2, 3, 4)
WORK_US = 200
LOOK_S = 0.005
CHUNK = 1_000
START = "import sys; from shardbus_cli.main import main; sys.exit(main())"


class Unit:
    """Run several nodes as one unit, with a client of all of them."""

    def __init__(self, client: AsyncClient, hosts: list[Host]) -> None:
        self.hosts = hosts
        self._refs = [client.ref(Counter, entity_id) for entity_id in IDS]

    async def handled(self) -> int:
        """Return the messages that all nodes have handled since the last reset."""
        counts = await asyncio.gather(*(host.ask("seen") for host in self.hosts))
        return sum(seen["n"] for seen in counts)

    async def tell(self, rounds: int) -> float:
        """Tell every entity `rounds` times; return messages a second."""
        for host in self.hosts:
            await host.ask("expect 0")
        began, n = time.monotonic(), rounds * ENTITIES
        for _ in range(rounds):
            for i, ref in enumerate(self._refs):
                await ref.hit.tell(PAYLOAD)
                if i % CHUNK == 0:
                    await asyncio.sleep(0)
        async with asyncio.timeout(STALL_S):
            while await self.handled() < n:
                await asyncio.sleep(LOOK_S)
        return n / (time.monotonic() - began)

    async def ask(self, work: int, seconds: float) -> float:
        """Ask in closed loops over the entities; return asks a second."""
        refs, asked = cycle(self._refs), 0
        began = time.monotonic()

        async def lane() -> None:
            nonlocal asked
            while time.monotonic() < began + seconds:
                ref = next(refs)
                await (ref.work(work) if work else ref.hit(PAYLOAD))
                asked += 1

        await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
        return asked / (time.monotonic() - began)


@asynccontextmanager
async def started(workers: int) -> AsyncIterator[Unit]:
    """Start a unit of `nodes` nodes with every entity in memory."""
    port, http = free_block(2 * workers), free_block(workers + 1)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(__file__).parent.parent
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        environment |= {"BENCH_CONTROLS": folder, "PYTHONPATH": f"{root}:{root / 'cli'}"}
        arguments = f"node start benchmarks.counters:bus --workers {workers} --port {port}"
        arguments += f" --http-port {http} --store sqlite:///{folder}/store.db"
        process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments.split()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            ready = await asyncio.to_thread(process.stdout.readline)
            assert ready.startswith(b"ready: "), "the unit did not start"
            controls = [path for path in Path(folder).iterdir() if path.name.isdigit()]
            hosts = [Host(process, str(path)) for path in controls]
            for host in hosts:
                await host.connect()
            address = f"tcp://127.0.0.1:{port}"
            async with AsyncClient(address, cluster=bus.name, timeout=30.0) as client:
                unit = Unit(client, hosts)
                await unit.tell(1)
                yield unit
        finally:
            process.terminate()
            await wait(lambda: process.poll() is not None, "the end of the unit")


async def measure(workers: int) -> dict[str, float]:
    """Measure one number of nodes; return medians by name."""
    figures: dict[str, list[float]] = {"tell": [], "ask256": [], "work": []}
    async with started(workers) as unit:
        rounds = max(1, round(await unit.tell(5) * SECONDS / ENTITIES))
        for _ in range(RUNS):
            figures["tell"].append(await unit.tell(rounds))
            figures["ask256"].append(await unit.ask(0, SECONDS))
            figures["work"].append(await unit.ask(WORK_US, SECONDS))
    for name, rates in figures.items():
        unit_of, runs = ("msg/s" if name == "tell" else "req/s"), [round(r) for r in rates]
        cores = os.cpu_count()
        emit(f"workers/{name}", median(rates), unit_of, nodes=workers, cores=cores, runs=runs)
    return {name: median(rates) for name, rates in figures.items()}


async def main() -> None:
    """Measure and print, a fresh unit for each number of nodes."""
    first: dict[str, float] = {}
    for workers in map(int, sys.argv[1:] or NODES):
        rates = await measure(workers)
        first = first or rates
        for name, rate in rates.items():
            emit(f"workers/{name}_ratio", rate / first[name], "x", nodes=workers)


if __name__ == "__main__":
    asyncio.run(main())
