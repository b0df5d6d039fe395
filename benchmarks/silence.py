"""Measure how long a silent node stays in the survivors' views, and how long a healed network needs
until all nodes agree, with default settings.

Five real nodes, each on a machine of its own. Again and again one goes silent: its process is
stopped (SIGSTOP), or all its packets are dropped. Measured from that moment: until a survivor calls
it unreachable, and until a survivor has removed it, each survivor by itself. It has been a member
for some seconds by then, as the detectors must have seen the network's rhythm: a node that falls
silent in its first second is found about two seconds later than one they know. Then the network is
split into three and two until every node has noticed, and heals; measured from there: until all
five see all five, reachable and converged. Views are read over HTTP every few milliseconds.

The splits come last: a node that wrongly called another node dead gives its own judgement less
weight for half a minute (`shardbus.membership.failure.local_health`), and would take up to three
seconds longer to find the next silent one.

    python -m benchmarks.silence [TRIALS]         of each kind, 10 by default; needs root
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.nodes import Node, emit_times, settled, wait
from tests.process.namespaces import Machine, Network, missing

NODES = 5
STEP_S = 0.02
ACQUAINTANCE_S = 10.0


def unreachable(node: Node) -> bool:
    return bool(node.view().get("unreachable"))


def converged(nodes: list[Node]) -> bool:
    """True if all nodes see all nodes, and have converged."""
    return settled(nodes) and all(node.view().get("converged") for node in nodes)


def machines_of(nodes: list[Node]) -> list[Machine]:
    """Return the machines of the nodes."""
    return [node.machine for node in nodes if node.machine is not None]


class Trials:
    """Hold the cluster and the measurements."""

    def __init__(self, folder: str, network: Network) -> None:
        self.folder, self.network = folder, network
        self.nodes: list[Node] = []
        self.taken: dict[str, list[float]] = {}

    async def fill(self) -> None:
        """Start the missing nodes on the free machines."""
        while len(self.nodes) < NODES:
            used = machines_of(self.nodes)
            free = [m for m in self.network.machines if m not in used]
            machine = free[0] if free else self.network.machine()
            seeds = [node.address for node in self.nodes]
            self.nodes.append(Node(self.folder, seeds, machine=machine))
            await wait(lambda: settled(self.nodes), "a full cluster", STEP_S)
        await asyncio.sleep(ACQUAINTANCE_S)

    async def silent(self, kind: str, n: int) -> None:
        """Silence one node; every fourth time the oldest."""
        await self.fill()
        victim = self.nodes.pop(0 if n % 4 == 3 else -1)
        begun = time.monotonic()
        if kind == "stopped":
            victim.process.send_signal(signal.SIGSTOP)
        else:
            self.network.split(machines_of([victim]), machines_of(self.nodes))
        await self._each(f"{kind}_unreachable", unreachable, begun)
        await self._each(f"{kind}_removed", self._removed, begun)
        victim.kill()
        self.network.heal()

    def _removed(self, node: Node) -> bool:
        return node.view().get("members") == NODES - 1

    async def heal(self) -> None:
        """Split the network and heal it before any node has decided."""
        await self.fill()
        machines = machines_of(self.nodes)
        self.network.split(machines[:2], machines[2:])
        await self._each("split_unreachable", unreachable, time.monotonic())
        self.network.heal()
        begun = time.monotonic()
        await wait(lambda: converged(self.nodes), "convergence", STEP_S)
        self.taken.setdefault("heal", []).append(time.monotonic() - begun)

    async def _each(self, name: str, holds: Callable[[Node], bool], begun: float) -> None:
        """Return when the condition first holds on each node."""

        async def on(node: Node) -> float:
            deadline = begun + 60
            while not await asyncio.to_thread(holds, node):
                if time.monotonic() > deadline:
                    raise TimeoutError(name)
                await asyncio.sleep(STEP_S)
            return time.monotonic() - begun

        self.taken.setdefault(name, []).extend(await asyncio.gather(*map(on, self.nodes)))


async def main(trials: int) -> None:
    """Measure and print."""
    if why := missing():
        sys.exit(f"benchmarks.silence: {why}")
    network = Network()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Trials(folder, network)
        try:
            for kind in ("stopped", "dropped"):
                for n in range(trials):
                    await run.silent(kind, n)
            for _ in range(trials):
                await run.heal()
        finally:
            for node in run.nodes:
                node.kill()
            network.close()
    for name, seconds in run.taken.items():
        emit_times(f"silence_{name}", seconds, trials=trials, nodes=NODES)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
