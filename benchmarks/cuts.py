"""Messages through a proxy that cuts the connection again and again: the lost, repeated and
reordered ones. One producer, the public client, one node started by the command line that
advertises the proxy's port; each entity checks its numbers.

    python -m benchmarks.cuts                  10,000,000 messages, 1,000 cuts
    python -m benchmarks.cuts 200000 20        fewer

A number that is skipped at its entity counts as `missed`, one that comes when a later one has come
as `again`: nothing lost, repeated or reordered means that both are 0 and all have arrived.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.counters import resident
from benchmarks.cuts_app import Line, bus
from benchmarks.harness import emit, spawned
from shardbus import AsyncClient
from tests.ports import free_port

ENTITIES = 1_000
BYTES = 15
"""About the time of a message on the way."""
START = "import sys; from shardbus_cli.main import main; sys.exit(main())"


class ProxyProcess:
    """Run the proxy as a process of its own."""

    def __init__(self, target: int, cuts: int, mean: int, seed: int) -> None:
        arguments = ["--port", 0, "--target", target, "--cuts", cuts, "--bytes", mean]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proxy", *map(str, arguments), "--seed", str(seed)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._out: IO[bytes] = self._process.stdout
        self.port: int = json.loads(self._out.readline())["port"]

    def end(self) -> dict[str, int]:
        """Stop the proxy and return its counts."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        done: dict[str, int] = json.loads(self._out.readline())
        self._process.wait(60)
        return done


async def run(messages: int, cuts: int, seed: int = 1) -> dict[str, Any]:
    """Send `messages` through `cuts` and return the arrived ones."""
    rounds = messages // ENTITIES
    port, gossip, http = free_port(), free_port(), free_port()
    proxy = ProxyProcess(port, cuts, max(1, messages * BYTES // max(cuts, 1)), seed)
    os.environ["BENCH_APP"] = "cuts"
    arguments = (
        f"node start benchmarks.cuts_app:bus --port {port} --gossip-port {gossip}"
        f" --http-port {http} --advertise 127.0.0.1:{proxy.port} --store memory://"
    )
    async with spawned("-c", START, *arguments.split()) as host:
        await host.listens(port)  # before that, the proxy ends each connection that it takes
        address = f"tcp://127.0.0.1:{proxy.port}"
        async with AsyncClient(address, cluster=bus.name, connect_timeout=300) as client:
            refs = [client.ref(Line, f"line-{n}") for n in range(ENTITIES)]
            await host.ask(f"expect {rounds * ENTITIES}")
            begun = time.monotonic()
            for number in range(1, rounds + 1):
                for ref in refs:
                    await ref.put.tell(number)
                await asyncio.sleep(0)
            await client.flush()
            seconds = time.monotonic() - begun
            await host.settled(rounds * ENTITIES)  # a confirmed message may wait in a mailbox
            seen = await host.ask("rss")
            lost = client.lost_messages
    done = proxy.end()
    return {
        "sent": rounds * ENTITIES,
        "handled": seen["n"],
        "missed": seen["missed"],
        "again": seen["again"],
        "unconfirmed": lost,
        "cuts": done["cuts"],
        "connections": done["connections"],
        "seconds": round(seconds, 1),
        "host_rss_mb": round(seen["rss"] / 2**20),
        "producer_rss_mb": round(resident() / 2**20),
    }


async def main() -> None:
    """Measure and print."""
    arguments = [int(word) for word in sys.argv[1:]]
    messages = arguments[0] if arguments else 10_000_000
    counts = await run(messages, arguments[1] if len(arguments) > 1 else 1_000)
    lost = counts["sent"] - counts["handled"]
    emit("cuts/lost", lost, "messages", **counts)
    emit("cuts/missed_or_again", counts["missed"] + counts["again"], "messages")
    emit("cuts/rate", counts["sent"] / counts["seconds"], "msg/s")


if __name__ == "__main__":
    asyncio.run(main())
