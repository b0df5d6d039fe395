"""Measure asks to idle entities while the same process tells entities that are much slower: how
long they take with the slow ones and without, in slices in turn. One client, one node started by
the command line; mailboxes of 200 messages.

    python -m benchmarks.neighbours [SLICES] [SECONDS] [KIND ...]

    paced    one slow entity, 500 tells a second, each awaited; it handles ten a second
    tight    the same, at the speed of awaited tells
    many     twenty slow entities, each with tells as in `paced`
    large    one slow entity, tells of 256 KiB at the speed of awaited tells

Each slice with slow entities uses new ones, and begins with empty mailboxes, which are full after
half a second at most. A ratio compares the 99th percentiles of all slices with and without.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from itertools import count
from typing import Any

from benchmarks.cuts import START
from benchmarks.cuts_app import Line, bus
from benchmarks.harness import PAYLOAD, emit, spawned
from shardbus import AsyncClient
from tests.ports import free_port

IDLE, ASKERS, MAILBOX, PAUSE_S = 200, 4, 200, 0.1
KINDS: dict[str, tuple[int, int, bytes]] = {
    "paced": (1, 50, PAYLOAD),
    "tight": (1, 0, PAYLOAD),
    "many": (20, 50, PAYLOAD),
    "large": (1, 0, bytes(256 * 1024)),
}
"""Name to slow entities, tells in a tenth of a second (0: as many as possible), payload."""


async def flood(client: AsyncClient, entity_id: str, burst: int, payload: bytes) -> None:
    """Tell a slow entity for ever, and await each tell."""
    put = client.ref(Line, entity_id).put_late
    for number in count(1):
        await put.tell(number, PAUSE_S, payload)
        if burst and number % burst == 0:
            await asyncio.sleep(0.1)
        elif not burst and number % 50 == 0:
            await asyncio.sleep(0)


def idle(client: AsyncClient, n: int) -> Any:
    """Return a reference to an idle entity."""
    ref: Any = client.ref(Line, f"idle-{n}")
    return ref.within(30)


async def asked(client: AsyncClient, seconds: float) -> list[float]:
    """Ask idle entities for this time, some at once; return how long each ask took."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def ask(at: int) -> None:
        while (begun := time.perf_counter()) < end:
            await idle(client, at % IDLE).put(0)
            took.append(time.perf_counter() - begun)
            at += ASKERS
            await asyncio.sleep(0.001)

    await asyncio.gather(*map(ask, range(ASKERS)))
    return took


def quantile(values: list[float], part: float) -> float:
    """Return the value that this part of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def is_held(client: AsyncClient, entity_id: str) -> bool:
    """True if the node has no room for an entity."""
    sessions = client._endpoint.sessions()
    return not all(session.outbox.has_room_for(("line", entity_id)) for session in sessions)


async def run(kind: str, slices: int, seconds: float) -> dict[str, Any]:
    """Measure one kind in slices."""
    slow, burst, payload = KINDS[kind]
    port, gossip, http = free_port(), free_port(), free_port()
    os.environ["BENCH_APP"] = "cuts"
    arguments = (
        f"node start benchmarks.cuts_app:bus --port {port} --gossip-port {gossip}"
        f" --http-port {http} --store memory:// --set sharding.mailbox={MAILBOX}"
    )
    fresh, quiet, beside = count(), list[float](), list[float]()
    async with (
        spawned("-c", START, *arguments.split()) as host,
        AsyncClient(f"tcp://127.0.0.1:{port}", cluster=bus.name) as client,
    ):
        await host.ask("expect 0")
        await asyncio.gather(*(idle(client, n).put(0) for n in range(IDLE)))
        await asked(client, 0.5)
        for _ in range(slices):
            quiet += await asked(client, seconds)
            names = [f"slow-{next(fresh)}" for _ in range(slow)]
            tasks = [asyncio.ensure_future(flood(client, n, burst, payload)) for n in names]
            beside += await asked(client, seconds)
            assert all(is_held(client, name) for name in names), "a mailbox is not full"
            for task in tasks:
                task.cancel()
    return {
        "kind": kind,
        "asks": len(beside),
        "p50_without_us": round(quantile(quiet, 0.5) * 1e6),
        "p50_us": round(quantile(beside, 0.5) * 1e6),
        "p99_without_us": round(quantile(quiet, 0.99) * 1e6),
        "p99_us": round(quantile(beside, 0.99) * 1e6),
        "ratio": round(quantile(beside, 0.99) / quantile(quiet, 0.99), 2),
    }


async def main() -> None:
    """Measure and print."""
    slices = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    for kind in sys.argv[3:] or KINDS:
        report = await run(kind, slices, seconds)
        emit("neighbours/p99_ratio", report["ratio"], "", **report)


if __name__ == "__main__":
    asyncio.run(main())
