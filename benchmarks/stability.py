"""Count removals of healthy nodes: five nodes beside stalls and processes that burn every core.

Two busy processes are pinned to each core. Every few seconds a random node is stopped for two
seconds (SIGSTOP, SIGCONT), as a collector's pause or a moved virtual machine would. No process
dies, so every removal is a mistake.

    python -m benchmarks.stability [--minutes 30]

    removed        nodes that ended, or that a node marked Down: must be 0
    unreachable    times that a node was marked unreachable, in the log of any node
    starved        times that a node noticed by its own late timer that it had been stopped
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import emit
from benchmarks.nodes import Node, settled, wait

NODES = 5
HOGS_PER_CORE = 2
STALL_S = 2.0
PAUSE_S = (1.0, 4.0)
BURN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
while os.getppid() == int(sys.argv[2]):
    pass
"""


def hogs() -> list[subprocess.Popen[bytes]]:
    """Start busy processes for each core."""
    cores = sorted(os.sched_getaffinity(0)) * HOGS_PER_CORE
    command = [sys.executable, "-c", BURN]
    return [subprocess.Popen([*command, str(core), str(os.getpid())]) for core in cores]


def said(nodes: list[Node], words: str) -> int:
    """Return the number of log lines with these words."""
    return sum(node.log.read_text(errors="replace").count(words) for node in nodes)


async def stall(nodes: list[Node], minutes: float, dice: random.Random) -> int:
    """Stop random nodes until the time is over or one has ended; return the number of stalls."""
    end, stalls = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end and all(node.running for node in nodes):
        victim = dice.choice(nodes)
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        victim.process.send_signal(signal.SIGCONT)
        stalls += 1
        await asyncio.sleep(dice.uniform(*PAUSE_S))
    return stalls


async def main(minutes: float) -> None:
    """Run and count."""
    nodes: list[Node] = []
    burning: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for _ in range(NODES):
                nodes.append(Node(folder, [n.address for n in nodes][:2]))
                await wait(lambda: settled(nodes), "a cluster of five")
            burning = hogs()
            begun = time.monotonic()
            stalls = await stall(nodes, minutes, random.Random(minutes))
            lasted = round(time.monotonic() - begun)
            ended = sum(not node.running for node in nodes)
            if not ended:
                await wait(lambda: settled(nodes), "an end in peace")
            removed = max(ended, said(nodes, "downing: "))
            parameters = {"nodes": NODES, "seconds": lasted, "stalls": stalls, "hogs": len(burning)}
            emit("stability_removed", removed, "nodes", **parameters)
            emit("stability_unreachable", said(nodes, " is unreachable"), "marks", **parameters)
            emit("stability_starved", said(nodes, " was starved"), "times", **parameters)
            if removed:
                print("\n".join(node.log.read_text()[-4000:] for node in nodes), file=sys.stderr)
        finally:
            for process in (*burning, *(node.process for node in nodes)):
                process.kill()
                process.wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="benchmarks.stability")
    arguments.add_argument("--minutes", type=float, default=30.0)
    asyncio.run(main(arguments.parse_args().minutes))
