"""Measure the cost of instances for a sender, and the gain of `least-busy` beside a slow node.

    python -m benchmarks.instances

- Tells to one node: a type that runs once, and a type with `instances=3` by `nearest`, in turn.
  Both run on the one node, so that only the sender's part differs. The ratio is taken by pairs.
- Asks to three nodes, one of which takes 50 ms for each and the others 1 ms: p99 by `least-busy`,
  and by `round-robin`, in turn, 32 at a time.

BENCH_RUNS (3) and BENCH_SECONDS (4) make it shorter or longer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import (
    IDS,
    PAYLOAD,
    RUNS,
    SECONDS,
    emit,
    free_port,
    median,
    percentile,
    spawned,
)
from benchmarks.instances_app import Once, Thrice, bus
from shardbus import AsyncClient

START = "import sys; from shardbus_cli.main import main; sys.exit(main())"
CHUNK = 1_000
LANES = 32
ASKED = 64
"""Entities that are asked."""
PAUSES_MS = (1, 1, 50)
SETTLE_S = 120.0


@asynccontextmanager
async def cluster(pauses_ms: tuple[int, ...]) -> AsyncIterator[AsyncClient]:
    """Run one node for each pause, and a client of all."""
    seed = f"127.0.0.1:{free_port()}"
    address = seed
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
        for pause in pauses_ms:
            os.environ["BENCH_PAUSE_MS"] = str(pause)
            command = (
                f"node start benchmarks.instances_app:bus --port {address.rpartition(':')[2]}"
                f" --gossip-port {free_port()} --http-port {free_port()} "
                f" --store sqlite:///{folder}/store.db"
            )
            if address != seed:
                command += f" --seed {seed}"
            await stack.enter_async_context(spawned("-c", START, *command.split()))
            address = f"127.0.0.1:{free_port()}"
        client = AsyncClient(f"tcp://{seed}", cluster=bus.name, timeout=30.0)
        yield await stack.enter_async_context(client)


async def settled(client: AsyncClient, count: int) -> None:
    """Wait until every asked entity runs on that many nodes."""
    async with asyncio.timeout(SETTLE_S):
        for n in range(ASKED):
            ref: Any = client.ref(Thrice, f"asked-{n}")
            while True:
                answers = await ref.to("all").work()
                if len(answers) == count and all(isinstance(a, int) for a in answers.values()):
                    break
                await asyncio.sleep(0.1)


async def told(client: AsyncClient, cls: type) -> float:
    """Return tells a second, until a node has the last one."""
    refs: list[Any] = [client.ref(cls, entity_id) for entity_id in IDS]
    calls = [ref.hit for ref in refs]
    sent, begun = 0, time.perf_counter()
    end = begun + SECONDS
    while time.perf_counter() < end:
        for n, call in enumerate(calls, 1):
            await call.tell(PAYLOAD)
            if n % CHUNK == 0:
                await asyncio.sleep(0)
        sent += len(calls)
    await client.flush()
    return sent / (time.perf_counter() - begun)


async def p99(client: AsyncClient, router: str) -> float:
    """Return the 99th percentile of asks by this router, in ms."""
    refs: list[Any] = [client.ref(Thrice, f"asked-{n}") for n in range(ASKED)]
    calls = cycle([ref.to(router).work for ref in refs])
    times: list[float] = []
    end = time.perf_counter() + SECONDS

    async def lane() -> None:
        while (begun := time.perf_counter()) < end:
            await next(calls)()
            times.append(1000 * (time.perf_counter() - begun))

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return percentile(sorted(times), 0.99)


async def tells() -> None:
    """Compare tells to a type with instances and to one without."""
    async with cluster(PAUSES_MS[:1]) as client:
        for cls in (Once, Thrice):
            await told(client, cls)
        once: list[float] = []
        thrice: list[float] = []
        for _ in range(RUNS):
            once.append(await told(client, Once))
            thrice.append(await told(client, Thrice))
        emit("instances/tell", median(thrice), "msg/s", instances=3, router="nearest")
        emit("instances/tell", median(once), "msg/s", instances=1)
        pairs = [a / b for a, b in zip(thrice, once, strict=True)]
        emit("instances/tell ratio", median(pairs), "x", pairs=[round(p, 3) for p in pairs])


async def asks() -> None:
    """Compare `least-busy` and `round-robin` beside a slow node."""
    async with cluster(PAUSES_MS) as client:
        await settled(client, len(PAUSES_MS))
        waits: dict[str, list[float]] = {"least-busy": [], "round-robin": []}
        for _ in range(RUNS):
            for router, runs in waits.items():
                runs.append(await p99(client, router))
        for router, runs in waits.items():
            emit("instances/ask p99", median(runs), "ms", router=router, pauses_ms=PAUSES_MS)
        pairs = [a / b for a, b in zip(*waits.values(), strict=True)]
        emit("instances/ask p99 ratio", median(pairs), "x", pairs=[round(p, 3) for p in pairs])


async def main() -> None:
    """Measure and print."""
    await tells()
    await asks()


if __name__ == "__main__":
    asyncio.run(main())
