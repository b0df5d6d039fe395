"""How long a test of a minute of a cluster takes: the kit's virtual time against real time.

    python -m benchmarks.kit [--rounds 5]

Three nodes, one client and 30 entities. In 60 virtual seconds each entity is asked once a second; a
node is killed after 20 s and replaced after 40 s. `scenario` is the time of all of it, the start of
the cluster included; `start` the time of the start alone. Neither has a baseline: they are compared
with the 60 s that they stand for.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from benchmarks.harness import emit, median
from shardbus import Entity, NodeLost, ShardBus, handler
from shardbus.testing import TestCluster

ENTITIES, SECONDS = 30, 60
bus = ShardBus("kit")


@bus.entity("counter", shards=24)
class Counter(Entity):
    """Counts its asks."""

    def __init__(self) -> None:
        self.total = 0

    @handler
    def add(self) -> int:
        """Count one."""
        self.total += 1
        return self.total


async def ask_for_a_minute(cluster: TestCluster) -> int:
    """Ask every entity once a second; return the number of answers."""
    answers = 0
    refs = [cluster.client().ref(Counter, f"c{number}") for number in range(ENTITIES)]
    for _ in range(SECONDS):
        outcomes = await asyncio.gather(*(ref.add() for ref in refs), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, NodeLost):
                raise outcome
        answers += sum(isinstance(outcome, int) for outcome in outcomes)
        await asyncio.sleep(1.0)
    return answers


async def scenario(seed: int) -> tuple[float, float]:
    """Return the seconds of the start and of the whole scenario."""
    began = time.perf_counter()
    async with TestCluster(bus, nodes=3, seed=seed) as cluster:
        started = time.perf_counter() - began
        asking = cluster.spawn(ask_for_a_minute(cluster))
        await cluster.advance(20)
        await cluster.kill(cluster.nodes[1])
        await cluster.advance(20)
        await cluster.add()
        answers = await asking
        await cluster.settle()
        assert answers > ENTITIES * (SECONDS - 5)
    return started, time.perf_counter() - began


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    asyncio.run(scenario(0))  # imports, and code that runs for the first time
    times = [asyncio.run(scenario(seed)) for seed in range(1, rounds + 1)]
    parameters = {"nodes": 3, "entities": ENTITIES, "seconds": SECONDS, "rounds": rounds}
    emit("kit_start", 1e3 * median([start for start, _ in times]), "ms", **parameters)
    emit("kit_scenario", 1e3 * median([whole for _, whole in times]), "ms", **parameters)


if __name__ == "__main__":
    main()
