"""Split a cluster of real nodes again and again, and count the entities that live twice.

Five nodes with default settings, each on a machine of its own, and a Redis; a producer on each side
that reaches only its own side, and tells each of 100 pages five times a second. Every node records
what it handles. In turn, in a drawn order:

    two          nothing passes between three nodes and two
    unheard      what the two send does not arrive at the three
    deaf         what the three send does not arrive at the two
    alone        one node and four
    three        two nodes, two and one: no side has a majority
    bridged      two nodes and two, and one that reaches both
    flapping     three nodes and two; the wall falls and rises every few seconds
    heals        three nodes and two, for a few seconds only
    stopped      one node's process is stopped (SIGSTOP) for longer than every timeout

Redis is reached from both sides, or from one of them. Once the cluster has decided, the network
heals, nodes that have ended start again, and the records are judged (`splits_judge`). Each split is
one JSON line, and the last line is their sum. Seconds count from the beginning of the split:

    ended_later    nodes that ended after the heal, if any: a loaded machine starves some
    overlaps       entities that two nodes handled in turn, and for how long at most
    suspend_s      the last message that a node handled that has ended or was interrupted
    failover_s     the first message that a survivor handled for an entity of such a node
    resume_s       after the heal, until a node that was interrupted and stayed handles messages
    woken          messages that a stopped process handled after it was continued
    lost           told messages that no node handled; with their reasons

    python -m benchmarks.splits [SPLITS] [--seed N] [--shape SHAPE ...]         needs root
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from benchmarks import splits_judge as judge
from benchmarks.nodes import Node, settled, wait
from benchmarks.splits_app import RECORD, boot_ns
from tests.process.namespaces import Machine, Network, missing, redis_on

SHAPES = (
    "two", "unheard", "deaf", "alone", "three", "bridged", "flapping", "heals", "stopped",
)  # fmt: skip
NODES, PAGES, RATE = 5, 100, 500
STEP_S = 0.05
PATIENCE_S = 300.0
"""Ends a wait that hangs."""
BEFORE_S, AFTER_S = 2.0, 2.5
"""Seconds of traffic before a split, and after each change that follows."""
FLAPS_S, FLAP_S = 15.0, (0.5, 5.0)
HEALS_S = (0.5, 9.0)
STOPPED_S = 30.0
STORES = ("both", "both", "both", "few", "many")
"""The sides that reach the store."""
APP = "benchmarks.splits_app:bus"


class Load:
    """A producer process on a machine of its own."""

    def __init__(self, folder: str, number: int, machine: Machine, nodes: list[Node]) -> None:
        self.number, self.machine = number, machine
        self.last: dict[str, Any] = {"told": 0, "lost": 0, "refused": {}, "not_told": {}}
        self._read = 0
        self._path = Path(folder) / f"told-{number}"
        addresses = [f"tcp://{node.address}" for node in nodes]
        root = Path(__file__).parent.parent
        self.process = subprocess.Popen(
            [
                *machine.enter,
                *(sys.executable, "-m", "benchmarks.splits_load"),
                *(folder, str(number), str(PAGES), str(RATE)),
                *addresses,
            ],
            cwd=root,
            env=os.environ | {"PYTHONPATH": f"{root}:{root / 'cli'}", "BENCH_FOLDER": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def ask(self, word: str) -> dict[str, Any]:
        """Give the producer a word, and return its answer."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        line = await asyncio.to_thread(process.stdout.readline)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def rest(self) -> tuple[list[tuple[int, int]], Counter[str]]:
        """Stop sending; return what was told since the last time, as (producer, seq), and how many
        messages were dropped, by reason."""
        report, before = await self.ask("rest"), self.last
        self.last = report
        dropped = Counter(report["refused"])
        dropped.subtract(before["refused"])
        dropped["unconfirmed_by_the_dead"] = report["lost"] - before["lost"]
        rows = _rows(self._path, 24, self._read)
        self._read += len(rows)
        return [(self.number, seq) for _, seq, _ in rows], +dropped


class Field:
    """The cluster, its producers, and the splits."""

    def __init__(self, folder: str, network: Network, dice: random.Random) -> None:
        self.folder, self.network, self.dice = folder, network, dice
        self.nodes: list[Node] = []
        """The nodes that run, the oldest first."""
        self.loads: list[Load] = []
        self.safe = network.machine()
        self.store = ""
        self._read: dict[str, int] = {}

    # ---- the cluster

    async def fill(self) -> int:
        """Start the missing nodes on the free machines, and wait until all are one cluster. Return
        how many ended meanwhile."""
        ended, deadline = 0, time.monotonic() + PATIENCE_S
        while True:
            here = len(self.nodes)
            self.nodes = [node for node in self.nodes if node.running]
            ended += here - len(self.nodes)
            used = [node.machine for node in self.nodes]
            for machine in [m for m in self.places if m not in used]:
                seeds = [node.address for node in self.nodes][:3]
                node = Node(self.folder, seeds, machine=machine, app=APP, store=self.store)
                self.nodes.append(node)
            with contextlib.suppress(TimeoutError):
                await wait(self._settled_or_ended, "a full cluster", STEP_S)
            if settled(self.nodes):
                return ended
            if time.monotonic() > deadline:
                raise TimeoutError(f"no full cluster:\n{self._picture()}")

    def _settled_or_ended(self) -> bool:
        return settled(self.nodes) or not all(node.running for node in self.nodes)

    def _picture(self) -> str:
        """Describe each node: its view, and the end of its log."""
        said = [(node, node.log.read_text(errors="replace")[-1500:]) for node in self.nodes]
        return "\n".join(f"-- {n.address} {n.process.poll()} {n.view()}\n{log}" for n, log in said)

    async def begin(self) -> None:
        """Start nodes and producers."""
        self.places = [self.network.machine() for _ in range(NODES)]
        await self.fill()
        for number in (1, 2):
            load = Load(self.folder, number, self.network.machine(), self.nodes)
            self.loads.append(load)

    def end(self) -> None:
        """Kill all processes."""
        for node in self.nodes:
            node.kill()
        for load in self.loads:
            load.process.kill()
            load.process.wait()

    # ---- one split

    async def split(self, shape: str) -> dict[str, Any]:
        """Let one split of this shape happen; return what was seen."""
        nodes = list(self.nodes)
        order = self.dice.sample(nodes, len(nodes))
        for load in self.loads:
            await load.ask("go")
        await asyncio.sleep(BEFORE_S)
        begun = boot_ns()
        found: dict[str, Any] = {"shape": shape, "healed_at": 0}
        if shape == "stopped":
            await self._stop(order[0], found)
        else:
            await self._wall(shape, order, found)
        gone = {node.process.pid for node in nodes if not node.running}
        self.nodes = [node for node in nodes if node.running]
        if stray := await self.fill():
            found["ended_later"] = stray
        await asyncio.sleep(AFTER_S)
        told: list[tuple[int, int]] = []
        dropped: Counter[str] = Counter()
        for more, counts in await asyncio.gather(*(load.rest() for load in self.loads)):
            told += more
            dropped += counts
        rows = list(self._records())
        if shape != "stopped":
            found["oldest"] = "few" if nodes[0] in order[: 1 if shape == "alone" else 2] else "many"
        if "continued" in found:
            found["woken"] = judge.handled(rows, *found.pop("continued"))
        healed = found.pop("healed_at")
        return found | judged(rows, begun, healed, gone, nodes, told, dropped)

    async def _wall(self, shape: str, order: list[Node], found: dict[str, Any]) -> None:
        """Split the network until the cluster has decided, or for the time that the shape says."""
        store = found["store"] = self.dice.choice(STORES)
        few, many = order[:2], order[2:]
        if shape == "alone":
            few, many = order[:1], order[1:]
        groups = [_machines(few), _machines(many)]
        if shape == "three":
            groups = [_machines(order[:2]), _machines(order[2:4]), _machines(order[4:])]
        elif shape == "bridged":
            groups = [_machines(order[:2]), _machines(order[2:4])]
        groups[0].append(self.loads[0].machine)
        groups[1].append(self.loads[1].machine)
        if store != "both":
            groups[0 if store == "few" else 1].append(self.safe)
        if shape == "flapping":
            await self._flap(groups)
        elif shape == "heals":
            self.network.split(*groups)
            await asyncio.sleep(self.dice.uniform(*HEALS_S))
        else:
            if shape == "unheard":
                self.network.stop(groups[0], groups[1])
            elif shape == "deaf":
                self.network.stop(groups[1], groups[0])
            else:
                self.network.split(*groups)
            await self._decided(order)
            await asyncio.sleep(AFTER_S)
        found["healed_at"] = boot_ns()
        self.network.heal()
        await wait(lambda: settled([n for n in order if n.running]), "agreement", STEP_S)

    async def _flap(self, groups: list[list[Machine]]) -> None:
        ends = time.monotonic() + FLAPS_S
        while time.monotonic() < ends:
            self.network.split(*groups)
            await asyncio.sleep(self.dice.uniform(*FLAP_S))
            self.network.heal()
            await asyncio.sleep(self.dice.uniform(*FLAP_S))

    async def _decided(self, nodes: list[Node]) -> None:
        """Wait until some nodes have ended and the others agree."""

        def decided() -> bool:
            live = [node for node in nodes if node.running]
            return len(live) < len(nodes) and settled(live)

        await wait(decided, "a decision", STEP_S)

    async def _stop(self, victim: Node, found: dict[str, Any]) -> None:
        """Stop a process for longer than every timeout, and let it continue."""
        pid = victim.process.pid
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        found["continued"] = [pid, boot_ns()]
        victim.process.send_signal(signal.SIGCONT)
        await wait(lambda: not victim.running, "the end of the stopped node", STEP_S)

    def _records(self) -> Iterator[judge.Row]:
        """Return the records since the last call."""
        for path in Path(self.folder).glob("handled-*"):
            process = int(path.name.removeprefix("handled-"))
            rows = _rows(path, RECORD.size, self._read.get(path.name, 0))
            self._read[path.name] = self._read.get(path.name, 0) + len(rows)
            yield from (judge.Row(process, *row) for row in rows)


def judged(
    rows: list[judge.Row],
    begun: int,
    healed: int,
    gone: set[int],
    nodes: list[Node],
    told: list[tuple[int, int]],
    dropped: Counter[str],
) -> dict[str, Any]:
    """Return the figures of one split."""
    twice = judge.overlaps(rows)
    until = healed or begun + int(STOPPED_S * 1e9)
    stops, resumes = [], []
    for process in (node.process.pid for node in nodes):
        paused = judge.pause(rows, process, begun, until)
        if paused is not None:
            stops.append((paused[0] - begun) / 1e9)
            if healed and paused[1] > healed and process not in gone:
                resumes.append((paused[1] - healed) / 1e9)
    survivors = {node.process.pid for node in nodes} - gone
    taken = judge.takeovers(rows, begun, survivors)
    lost = judge.missing(told, rows)
    if gone and lost > dropped.total():
        dropped["held_by_the_ended"] = lost - dropped.total()
    return {
        "ended": len(gone),
        "overlaps": len({overlap.entity for overlap in twice}),
        "overlap_s": round(max((overlap.seconds for overlap in twice), default=0.0), 3),
        "suspend_s": _longest(stops),
        "failover_s": _longest(taken.values()),
        "resume_s": _longest(resumes),
        "told": len(told),
        "lost": lost,
        "lost_by_reason": dict(dropped),
        "repeated": judge.repeated(rows),
    }


def _longest(seconds: Any) -> float | None:
    return round(max(seconds), 3) if seconds else None


def _machines(nodes: list[Node]) -> list[Machine]:
    return [node.machine for node in nodes if node.machine is not None]


def _rows(path: Path, size: int, skip: int) -> list[tuple[int, ...]]:
    """Return the rows of 64-bit integers in a file after the first `skip`."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(skip * size)
        data = file.read()
        numbers = memoryview(data[: len(data) // size * size]).cast("q")
        width = size // 8
        return [tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)]
    return []


@contextlib.asynccontextmanager
async def field(seed: int) -> AsyncIterator[Field]:
    """Provide a running cluster with its producers."""
    network = Network()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        made = Field(folder, network, random.Random(seed))
        try:
            with redis_on(made.safe, Path(folder) / "redis") as made.store:
                await made.begin()
                yield made
        finally:
            made.end()
            network.close()


def summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of all splits."""
    reasons: Counter[str] = Counter()
    for one in found:
        reasons += Counter(one["lost_by_reason"])
    worst = {
        name: max((one[name] for one in found if one.get(name) is not None), default=None)
        for name in ("overlap_s", "suspend_s", "failover_s", "resume_s")
    }
    sums = {
        name: sum(one.get(name, 0) for one in found)
        for name in ("ended", "overlaps", "told", "lost", "repeated", "woken")
    }
    shapes = Counter(one["shape"] for one in found)
    return {"splits": len(found), "shapes": shapes, **sums, **worst, "lost_by_reason": reasons}


async def main(splits: int, seed: int, shapes: list[str]) -> None:
    """Split and print."""
    if why := missing():
        sys.exit(f"benchmarks.splits: {why}")
    found = []
    async with field(seed) as made:
        turns = itertools.cycle(shapes)
        order = [next(turns) for _ in range(splits)]
        made.dice.shuffle(order)
        for shape in order:
            begun = time.monotonic()
            one = await made.split(shape)
            one["took_s"] = round(time.monotonic() - begun, 1)
            found.append(one)
            print(json.dumps(one), flush=True)
    print(json.dumps({"seed": seed, **summed(found)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.splits")
    parser.add_argument("splits", type=int, nargs="?", default=len(SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    given = parser.parse_args()
    asyncio.run(main(given.splits, given.seed, given.shape))
