"""Share among the benchmarks the work, the counters of a host, and the lines printed.

The work: 10,000 keyed counters in one host process, one producer process, 64-byte payloads, ids in
a fixed stride so that each round visits each counter once, all on the loopback. A result is one
JSON line: name, value, unit, parameters, versions. Product and baseline run in turn, A B A B, and
the ratio is taken pair by pair, because shared machines drift.

    python -m benchmarks.tell          tells a second
    python -m benchmarks.ask           asks one at a time and 256 in flight
    python -m benchmarks.activation    first messages to new entities, and their memory
    python -m benchmarks.typed         the same work with dataclasses for bytes
    python -m benchmarks.storm         first messages to very many entities at once
    python -m benchmarks.sizes         payloads of 16 bytes to 64 KiB
    python -m benchmarks.entities      100 to 1,000,000 entities in one process
    python -m benchmarks.workers       one to four nodes on one machine
    python -m benchmarks.scraped       the cost of reads of /metrics
    python -m benchmarks.metered       metrics and their reader beside no samples and no reader
    python -m benchmarks.traced        the cost of tracing
    python -m benchmarks.home          asks and tells of a node to its own entities
    python -m benchmarks.checkouts     this checkout beside another one, in slices
    python -m benchmarks.instances     tells to instances, and asks beside a slow node
    python -m benchmarks.balance       loads by Zipf's law, simulated
    python -m benchmarks.saves         asks that save, beside a bare client of the store
    python -m benchmarks.replicas      saves in the replicas of cluster://, beside Redis and etcd
    python -m benchmarks.deliveries    deliveries beside asks of the same handlers
    python -m benchmarks.durable       durable asks beside DBOS and Restate
    python -m benchmarks.projections   a projection, beside bare reads of the journals
    python -m benchmarks.queues        queues of work, and their items in a saved state
    python -m benchmarks.loads         first asks of stored entities, beside bare reads
    python -m benchmarks.listing       1,000,000 stored ids, listed by a client
    python -m benchmarks.reminders     a day of 1,000,000 reminders, in virtual time
    python -m benchmarks.transfer      100,000 states, exported and imported
    python -m benchmarks.redis_cluster saves over one master and over three, in virtual time
    python -m benchmarks.kit           a test of a minute of a cluster, in virtual time

    python -m benchmarks.report        their output, as tables; so does `make report`

BENCH_RUNS (3) and BENCH_SECONDS (4) make them shorter or longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import zmq

ENTITIES = 10_000
STRIDE = 7_919
IN_FLIGHT = 256
FRESH = 100_000
PAYLOAD = bytes(i % 251 for i in range(64))
IDS = [f"entity-{i * STRIDE % ENTITIES}" for i in range(ENTITIES)]
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
STALL_S = 20.0
DIGITS = {"x": 3, "us": 2}
VERSIONS = {
    "python": sys.version.split()[0],
    "pyzmq": zmq.pyzmq_version(),
    "libzmq": zmq.zmq_version(),
    "msgspec": msgspec.__version__,
}


def emit(name: str, value: float, unit: str, **parameters: object) -> None:
    """Print one result."""
    line = {
        "name": name,
        "value": round(value, DIGITS.get(unit, 1)),
        "unit": unit,
        "parameters": parameters,
        "versions": VERSIONS,
    }
    print(json.dumps(line), flush=True)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
START_S = 300.0
"""Ends a wait for a host that does not start, however busy the machine is."""


class Host:
    """Hold a host process and the socket that reports its counters."""

    def __init__(self, process: subprocess.Popen[bytes], control: str) -> None:
        self.process = process
        self._control = control

    async def connect(self) -> None:
        """Wait until the host answers."""
        self._reader, self._writer = await self._opened(
            lambda: asyncio.open_unix_connection(self._control)
        )

    async def listens(self, port: int) -> None:
        """Wait until the host takes connections there."""
        _, writer = await self._opened(lambda: asyncio.open_connection("127.0.0.1", port))
        writer.close()

    async def _opened(self, connect: Callable[[], Awaitable[Pipe]]) -> Pipe:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                return await connect()
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the host did not start")
            await asyncio.sleep(0.05)

    async def ask(self, word: str) -> dict[str, int]:
        """Send one question: `expect N`, `seen`, `cpu` or `rss`."""
        self._writer.write(f"{word}\n".encode())
        answer: dict[str, int] = json.loads(await self._reader.readline())
        return answer

    async def settled(self, n: int) -> dict[str, int]:
        """Wait until the host has handled `n` messages, or none for `STALL_S`; return its
        counters."""
        last, since = -1, time.monotonic()
        while (seen := await self.ask("seen"))["n"] < n:
            if seen["n"] != last:
                last, since = seen["n"], time.monotonic()
            elif time.monotonic() - since > STALL_S:
                break
            await asyncio.sleep(0.05)
        return seen

    async def finished(self, n: int) -> float:
        """Wait until the host has handled `n` messages; return the seconds from first to last."""
        seen = await self.settled(n)
        if seen["n"] < n:
            raise RuntimeError(f"{n - seen['n']} of {n} messages never arrived")
        return (seen["last"] - seen["first"]) / 1e9

    def end(self) -> None:
        """Stop the host."""
        self._writer.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Side(contextlib.AbstractAsyncContextManager["Side"]):
    """Describe one side of a comparison: a running host and a connected producer."""

    name: str
    host: Host
    tell: Callable[[Iterable[str]], Awaitable[None]]
    ask: Callable[[str], Awaitable[object]]


class Asks(Protocol):
    """Something that has asks, or a call like one."""

    @property
    def ask(self) -> Callable[[str], Awaitable[object]]:
        """Ask the entity of this id."""


@contextlib.asynccontextmanager
async def spawned(*args: str) -> AsyncIterator[Host]:
    """Start a host as `python ARGS`, with its control socket in `BENCH_CONTROL`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        control = f"{folder}/control"
        root = Path(__file__).parent.parent
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        environment |= {"BENCH_CONTROL": control, "BENCH_FOLDER": folder}
        environment["PYTHONPATH"] = f"{root}:{root / 'cli'}"
        process = subprocess.Popen(
            [sys.executable, *args],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        host = Host(process, control)
        try:
            await host.connect()
            yield host
        finally:
            if process.poll() is None:
                host.end() if hasattr(host, "_writer") else process.kill()
                process.wait()


async def told(side: Side, rounds: int) -> float:
    """Tell every entity `rounds` times; return messages a second between the first and the last
    handled."""
    n = rounds * ENTITIES
    await side.host.ask(f"expect {n}")
    for _ in range(rounds):
        await side.tell(IDS)
    return (n - 1) / await side.host.finished(n)


class Cost(NamedTuple):
    """Hold messages a second, and microseconds of processor time for each, at both ends."""

    rate: float
    host: float
    producer: float


async def costed(side: Side, rounds: int) -> Cost:
    """Measure as `told` does. On a shared machine, processor time is the better figure."""
    before, mine = (await side.host.ask("cpu"))["cpu"], time.process_time_ns()
    rate = await told(side, rounds)
    after, n = (await side.host.ask("cpu"))["cpu"], 1000 * rounds * ENTITIES
    return Cost(rate, (after - before) / n, (time.process_time_ns() - mine) / n)


async def warmed(side: Side, seconds: float = SECONDS) -> int:
    """Warm a side up and return the number of rounds that take about this time."""
    rounds = 1
    while True:
        rate = await told(side, rounds)
        if rounds * ENTITIES / rate > seconds / 8:
            return max(1, round(rate * seconds / ENTITIES))
        rounds *= 4


async def asked(side: Asks, lanes: int, seconds: float) -> tuple[float, list[float]]:
    """Ask in `lanes` closed loops; return asks a second and sorted latencies in microseconds."""
    keys, taken = cycle(IDS), []
    begun = time.monotonic()
    end = begun + seconds

    async def lane() -> None:
        while time.monotonic() < end:
            t = time.monotonic_ns()
            await side.ask(next(keys))
            taken.append((time.monotonic_ns() - t) / 1e3)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return len(taken) / (time.monotonic() - begun), sorted(taken)


def percentile(ordered: list[float], q: float) -> float:
    """Return the value below which a part `q` of the values lies."""
    return ordered[max(0, math.ceil(len(ordered) * q) - 1)]


def median(values: Iterable[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)
