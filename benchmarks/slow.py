"""Measure a receiver that is much slower than its sender: memory of both processes, from outside,
and lost messages. One producer that awaits each `tell` and does nothing else, one node started by
the command line; every entity checks its numbers.

    python -m benchmarks.slow            three kinds of slowness, 20 seconds each
    python -m benchmarks.slow 5          shorter

    busy     100 entities, a handler that computes for 50 us: the node's loop is the bottleneck
    late     100 entities, a handler that waits for 20 ms: 5,000 messages a second
    one      one entity, a handler that waits for 1 ms: all messages go to one mailbox

`unread` at the end: messages that the producer had sent at its end and the node had not handled.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from benchmarks.cuts import START
from benchmarks.cuts_app import Line, bus
from benchmarks.harness import PAYLOAD, emit, spawned
from shardbus import AsyncClient
from tests.ports import free_port

KINDS: dict[str, tuple[int, str, float]] = {
    "busy": (100, "put_slowly", 0.000_05),
    "late": (100, "put_late", 0.02),
    "one": (1, "put_late", 0.001),
}
"""Name to entities, handler, seconds."""


def rss(pid: int) -> int:
    """Return the resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Watch:
    """Record the peak memory of processes above their first value."""

    def __init__(self, *pids: int) -> None:
        self._first = {pid: rss(pid) for pid in pids}
        self.most = dict.fromkeys(pids, 0)
        self._work = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            for pid, first in self._first.items():
                self.most[pid] = max(self.most[pid], rss(pid) - first)
            await asyncio.sleep(0.02)

    def end(self) -> list[float]:
        """Return the peaks in MiB, in the order of the processes."""
        self._work.cancel()
        return [round(most / 2**20, 1) for most in self.most.values()]


async def run(kind: str, seconds: float) -> dict[str, Any]:
    """Send for this time, then wait until all is handled."""
    entities, name, pause = KINDS[kind]
    port, gossip, http = free_port(), free_port(), free_port()
    os.environ["BENCH_APP"] = "cuts"
    arguments = (
        f"node start benchmarks.cuts_app:bus --port {port} --gossip-port {gossip}"
        f" --http-port {http} --store memory://"
    )
    async with (
        spawned("-c", START, *arguments.split()) as host,
        AsyncClient(f"tcp://127.0.0.1:{port}", cluster=bus.name) as client,
    ):
        refs = [client.ref(Line, f"line-{n}") for n in range(entities)]
        puts = [getattr(ref, name) for ref in refs]
        await asyncio.gather(*(ref.within(30).put(0) for ref in refs))  # type: ignore[attr-defined]
        await host.ask("expect 0")
        before = (await host.ask("seen"))["again"]
        watch = Watch(host.process.pid, os.getpid())
        begun, number = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            number += 1
            for put in puts:
                await put.tell(number, pause, PAYLOAD)
            await asyncio.sleep(0)
        sent = number * entities
        unread = sent - (await host.ask("seen"))["n"]
        await client.flush()
        seen = await host.settled(sent)
        host_mb, producer_mb = watch.end()
        return {
            "kind": kind,
            "sent": sent,
            "handled": seen["n"],
            "missed": seen["missed"],
            "again": seen["again"] - before,
            "unread": unread,
            "host_rss_mb": host_mb,
            "producer_rss_mb": producer_mb,
            "rate": round(sent / (time.monotonic() - begun)),
        }


async def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    for kind in KINDS:
        report = await run(kind, seconds)
        emit("slow/lost", report["sent"] - report["handled"], "messages", **report)
        emit("slow/host_rss_grown", report["host_rss_mb"], "MiB", kind=kind)
        emit("slow/producer_rss_grown", report["producer_rss_mb"], "MiB", kind=kind)


if __name__ == "__main__":
    asyncio.run(main())
