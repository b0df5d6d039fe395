"""How long a killed node stays in the survivors' views: from the SIGKILL to its removal from each.

A cluster of three real nodes; a fourth joins, is Up everywhere, and is killed; again and again.
Every fourth time it is the oldest that dies, with the leader and the coordinators. Views are read
over HTTP, every few milliseconds, so the figures include that step.

    python -m benchmarks.detection [KILLS]        20 by default
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import emit, free_port, percentile

STEP_S = 0.004
PATIENCE_S = 60.0


class Node:
    """One process started by the command line."""

    def __init__(self, folder: str, seeds: list[str]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.http = free_port()
        start = "import sys; from shardbus_cli.main import main; sys.exit(main())"
        arguments = [
            *("node", "start", "benchmarks.counters:bus", "--port", self.address.split(":")[1]),
            *("--gossip-port", str(free_port()), "--http-port", str(self.http)),
            *("--store", f"sqlite:///{folder}/store.db"),
        ]
        for seed in seeds:
            arguments += ["--seed", seed]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def view(self) -> dict[str, object]:
        """What it says of the cluster; empty if it does not answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=2)
            connection.request("GET", "/v1/cluster")
            answer: dict[str, object] = json.load(connection.getresponse())
            return answer
        except (OSError, ValueError, http.client.HTTPException):
            return {}


def settled(nodes: list[Node]) -> bool:
    """Every node is Up and sees exactly these nodes."""
    views = [node.view() for node in nodes]
    return all(v.get("status") == "up" and v.get("members") == len(nodes) for v in views)


async def wait(condition, what: str) -> None:
    """Until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(STEP_S)


async def main(kills: int) -> None:
    """Measure and print."""
    nodes: list[Node] = []
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for _ in range(3):
                nodes.append(Node(folder, [n.address for n in nodes][:1]))
                await wait(lambda: settled(nodes), "a cluster of three")
            for n in range(kills):
                nodes.append(Node(folder, [node.address for node in nodes]))
                await wait(lambda: settled(nodes), "a fourth node")
                victim = nodes.pop(0 if n % 4 == 3 else -1)
                killed = time.monotonic()
                victim.process.kill()
                victim.process.wait()
                for node in nodes:
                    await wait(lambda node=node: node.view().get("members") == 3, "the removal")
                    taken.append(time.monotonic() - killed)
        finally:
            for node in nodes:
                node.process.kill()
                node.process.wait()
    taken.sort()
    for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        emit(f"detection_{name}", 1000 * percentile(taken, q), "ms", kills=kills, survivors=3)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
