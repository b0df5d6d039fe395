"""How long a killed node stays in the survivors' views: from the SIGKILL to its removal from each.

A cluster of three real nodes; a fourth joins, is Up everywhere, and is killed; again and again.
Every fourth time it is the oldest that dies, with the leader and the coordinators. Views are read
over HTTP, every few milliseconds, so the figures include that step. How long the newcomers took to
be Up in every view is printed too: from the start of the process, and from its first answer over
HTTP, which is when it begins to join. The time between is Python's.

    python -m benchmarks.detection [KILLS]        20 by default
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from functools import partial

from benchmarks.nodes import Node, emit_times, settled, wait


def answers(node: Node) -> bool:
    """True if the node answers over HTTP."""
    return bool(node.view())


def removed(node: Node) -> bool:
    """True if the node sees the three live nodes and no other."""
    return node.view().get("members") == 3


async def main(kills: int) -> None:
    """Measure and print."""
    nodes: list[Node] = []
    taken: list[float] = []
    started: list[float] = []
    joined: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for _ in range(3):
                nodes.append(Node(folder, [n.address for n in nodes][:1]))
                await wait(lambda: settled(nodes), "a cluster of three")
            for n in range(kills):
                newcomer = Node(folder, [node.address for node in nodes])
                nodes.append(newcomer)
                await wait(partial(answers, newcomer), "its HTTP")
                joining = time.monotonic()
                await wait(lambda: settled(nodes), "a fourth node")
                joined.append(time.monotonic() - joining)
                started.append(time.monotonic() - newcomer.started)
                victim = nodes.pop(0 if n % 4 == 3 else -1)
                killed = time.monotonic()
                victim.kill()
                for node in nodes:
                    await wait(partial(removed, node), "the removal")
                    taken.append(time.monotonic() - killed)
        finally:
            for node in nodes:
                node.kill()
    emit_times("detection", taken, kills=kills, survivors=3)
    emit_times("start_to_up", started, joins=kills, members=4)
    emit_times("join_to_up", joined, joins=kills, members=4)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
