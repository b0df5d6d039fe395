"""Compare the hot path of this checkout with that of another one, in short slices in turn.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.checkouts /tmp/before [WORK ...] [--pairs 60] [--slice 0.3] [--starts 4]

A whole run of a benchmark takes many seconds, and a shared machine is another machine after each. A
slice takes a fraction of a second: each checkout runs one node and one producer all the time, one
of the two is at work, and which of them begins changes with every pair. Two processes of the same
code differ by some percent as long as they live, so all four start anew after some of the pairs.

Each value is the median of the pairs' ratios, this checkout to the other: of the rates, and of the
processor time that the event loops of node and producer take for a message. Half of the ratios lie
between the quartiles.

    ask1, ask256    asks, one at a time and 256 in flight
    tell            tells to 10,000 entities that run
    activation      tells to entities that do not run yet

Both run with this checkout's libraries, and each with its own `benchmarks.sides`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import emit, median

Ratios = dict[str, list[float]]
"""The ratios of the pairs, by work and figure."""
WORKS = ("ask1", "ask256", "tell", "activation")
WORKER = """
import asyncio, json, os, sys
from itertools import count
from benchmarks.harness import ENTITIES, asked, told
from benchmarks.sides import Product

def spent(pid):
    with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
        return int(file.read().split()[0])

async def main():
    fresh = count()
    async with Product() as side:
        pids = os.getpid(), side.host.process.pid
        for line in sys.stdin:
            work, amount = line.split()
            before = [spent(pid) for pid in pids]
            if work.startswith("ask"):
                rate, taken = await asked(side, int(work[3:]), float(amount))
                n = len(taken)
            elif work == "tell":
                n = int(amount) * ENTITIES
                rate = await told(side, int(amount))
            else:
                n = int(amount)
                await side.host.ask(f"expect {n}")
                await side.tell([f"fresh-{next(fresh)}" for _ in range(n)])
                rate = (n - 1) / await side.host.finished(n)
            producer, node = [(spent(pid) - old) / n for pid, old in zip(pids, before)]
            print(json.dumps({"rate": rate, "node": node, "producer": producer}), flush=True)

asyncio.run(main())
"""


class Worker:
    """A node and a producer of one checkout."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            cwd=root,
            env=os.environ | {"PYTHONPATH": f"{root}:{root / 'cli'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, work: str, amount: float) -> dict[str, float]:
        """Do one slice of work. Returns messages a second, and nanoseconds of processor time of
        both loops for each."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{work} {amount}\n")
        stdin.flush()
        figures: dict[str, float] = json.loads(stdout.readline())
        return figures

    def end(self) -> None:
        """End both processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def amount_of(work: str, workers: tuple[Worker, Worker], seconds: float) -> float:
    """Warm both up. Returns the amount of work that takes about this time."""
    if work.startswith("ask"):
        for worker in workers:
            worker.run(work, seconds)
        return seconds
    first, each = (1, 10_000) if work == "tell" else (2_000, 1)
    rates = [worker.run(work, first)["rate"] for worker in workers for _ in range(3)]
    return max(1, round(median(rates) * seconds / each))


def compare(here: Path, there: Path, works: list[str], pairs: int, seconds: float) -> Ratios:
    """Start both checkouts, run pairs of each kind of work, and end both."""
    workers = Worker(here), Worker(there)
    ratios: Ratios = {}
    try:
        for work in works:
            amount = amount_of(work, workers, seconds)
            for pair in range(pairs):
                order = workers if pair % 2 else workers[::-1]
                found = {worker: worker.run(work, amount) for worker in order}
                ours, theirs = (found[worker] for worker in workers)
                for what, value in ours.items():
                    ratios.setdefault(f"{work}_{what}", []).append(value / theirs[what])
    finally:
        for worker in workers:
            worker.end()
    return ratios


def main() -> None:
    """Compare, and print a line for each figure."""
    parser = argparse.ArgumentParser(description="Compare the hot path of two checkouts.")
    parser.add_argument("other", type=Path)
    parser.add_argument("works", nargs="*", metavar="WORK", default=[])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--slice", type=float, default=0.3, dest="seconds")
    parser.add_argument("--starts", type=int, default=4)
    options = parser.parse_args()
    works = options.works or list(WORKS)
    if unknown := set(works) - set(WORKS):
        parser.error(f"there is no work {', '.join(sorted(unknown))}: {', '.join(WORKS)}")
    here, there = Path(__file__).resolve().parent.parent, options.other.resolve()
    each = -(-options.pairs // options.starts)
    ratios: Ratios = {}
    for _ in range(options.starts):
        for name, found in compare(here, there, works, each, options.seconds).items():
            ratios.setdefault(name, []).extend(found)
    for name, found in ratios.items():
        quartiles = [round(q, 3) for q in statistics.quantiles(found, n=4)]
        emit(f"checkouts/{name}", median(found), "x", pairs=len(found), quartiles=quartiles)


if __name__ == "__main__":
    main()
