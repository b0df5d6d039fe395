"""Compare the hot path of this checkout with another checkout's, in short slices in turn.

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
    at_once         tells to a coroutine function that does not wait
    waiting         tells to a handler that waits for a turn of the loop
    saved           asks that save 100 bytes in Redis, 256 in flight

Both run with this checkout's libraries and benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import emit, median
from tests.redis_server import RedisServer

Ratios = dict[str, list[float]]
"""The ratios of the pairs, by work and figure."""
WORKS = ("ask1", "ask256", "tell", "activation", "at_once", "waiting", "saved")
HANDLERS = {"at_once": "at_once", "waiting": "waiting"}
"""The handler of a work, if it is not `hit`."""
WORKER = """
import asyncio, json, os, sys
from itertools import count
from benchmarks.harness import ENTITIES, asked, told
from benchmarks.saves import saving
from benchmarks.sides import Product

HANDLER, REDIS = sys.argv[1:]

def spent(pid):
    with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
        return int(file.read().split()[0])

def made():
    if not REDIS:
        return Product(handler=HANDLER)
    side = saving(REDIS)
    side.message = bytes(100)
    return side

async def main():
    fresh = count()
    async with made() as side:
        pids = os.getpid(), side.host.process.pid
        for line in sys.stdin:
            work, amount = line.split()
            before = [spent(pid) for pid in pids]
            if work.startswith("ask") or work == "saved":
                lanes = 256 if work == "saved" else int(work[3:])
                rate, taken = await asked(side, lanes, float(amount))
                n = len(taken)
            elif work != "activation":
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
    """A node and a producer of one checkout, whose handler is called `handler`; with a Redis at
    this URL, of the application that saves."""

    def __init__(self, root: Path, handler: str, redis: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, handler, redis],
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
    if work.startswith("ask") or work == "saved":
        for worker in workers:
            worker.run(work, seconds)
        return seconds
    first, each = (2_000, 1) if work == "activation" else (1, 10_000)
    rates = [worker.run(work, first)["rate"] for worker in workers for _ in range(3)]
    return max(1, round(median(rates) * seconds / each))


def compare(roots: Sequence[Path], work: str, pairs: int, seconds: float) -> Ratios:
    """Start both checkouts, run pairs of one kind of work, and end both."""
    ratios: Ratios = {}
    with ExitStack() as stack:
        urls = ["", ""]
        if work == "saved":
            urls = [stack.enter_context(running_redis()) for _ in roots]
        ours, theirs = (
            Worker(root, HANDLERS.get(work, "hit"), url)
            for root, url in zip(roots, urls, strict=True)
        )
        stack.callback(theirs.end)
        stack.callback(ours.end)
        amount = amount_of(work, (ours, theirs), seconds)
        for pair in range(pairs):
            order = (ours, theirs) if pair % 2 else (theirs, ours)
            rates = {worker: worker.run(work, amount) for worker in order}
            for what, value in rates[ours].items():
                ratios.setdefault(f"{work}_{what}", []).append(value / rates[theirs][what])
    return ratios


@contextmanager
def running_redis() -> Iterator[str]:
    """Run a Redis that keeps acknowledged writes; yield its URL."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        RedisServer(Path(folder)) as server,
    ):
        yield server.url()


@contextmanager
def measured(root: Path) -> Iterator[Path]:
    """Yield a folder with the product of a checkout, and these benchmarks."""
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, of in {"shardbus": root, "cli": root, "benchmarks": here, "tests": here}.items():
            (Path(folder) / name).symlink_to(of.resolve() / name)
        yield Path(folder)


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
    here, each = Path(__file__).resolve().parent.parent, -(-options.pairs // options.starts)
    ratios: Ratios = {}
    with measured(here) as ours, measured(options.other) as theirs:
        for _ in range(options.starts):
            for work in works:
                for name, rates in compare((ours, theirs), work, each, options.seconds).items():
                    ratios.setdefault(name, []).extend(rates)
    for name, rates in ratios.items():
        quartiles = [round(q, 3) for q in statistics.quantiles(rates, n=4)]
        emit(f"checkouts/{name}", median(rates), "x", pairs=len(rates), quartiles=quartiles)


if __name__ == "__main__":
    main()
