"""Split a cluster of real nodes again and again, and count the entities that live twice.

Five nodes, each on a machine of its own, and a Redis; a producer on each side that reaches only its
own side, and tells each of 100 pages five times a second. Every node records handled messages. A
cluster with each downing strategy in turn, its other settings the defaults, sees ten splits. Their
shapes, in a drawn order:

    two          nothing passes between three nodes and two
    unheard      messages of the two do not arrive at the three
    deaf         messages of the three do not arrive at the two
    alone        one node and four
    three        two nodes, two and one: no side has a majority
    bridged      two nodes and two, and one that reaches both
    flapping     three nodes and two; the wall falls and rises every few seconds
    heals        three nodes and two, for a few seconds only
    blocked      three nodes and two, whose handlers block both loops for longer than it takes
    stopped      one node's process is stopped (SIGSTOP) for longer than every timeout

Redis is reached from both sides, or from one of them. Once the cluster has decided, the network
heals, nodes that have ended start again, the producers rest, and the records are judged
(`splits_judge`) once they have stopped: a message that waits in a mailbox is not lost. Each split
is one JSON line, and the last line is their sum. Seconds count from the beginning of the split:

    ended_later    nodes that ended after the heal, if any: a loaded machine starves some
    overlaps       entities that two nodes handled in turn, and for how long at most
    suspend_s      the last message that a node handled that has ended or was interrupted
    failover_s     the first message that a survivor handled for an entity of such a node
    resume_s       after the heal, until a node that was interrupted and stayed handles messages
    woken          messages that a stopped process handled after it was continued, and how long
                   after that: the rest of a run that the stop had interrupted is handled at once
    lost           tells that no node handled; with their reasons. A node that ends takes
                   those that waited at it (`held_by_the_ended`, `relayed_by_the_ended`). A loss
                   without a reason and without an end is `unexplained`: a defect
    outcome_s      after the producers have rested, until the last message was handled
    failed         why a split came to no end; its cluster is replaced

    python -m benchmarks.splits [SPLITS] [--seed N] [--shape SHAPE ...] [--strategy NAME ...]
                                [--keep FOLDER]                                 needs root

With `--keep`, the logs and records of each split with an overlap, an unexplained loss or a failure
are copied to the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
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
    "two", "unheard", "deaf", "alone", "three", "bridged", "flapping", "heals", "blocked",
    "stopped",
)  # fmt: skip
STRATEGIES = ("keep-majority", "static-quorum", "keep-oldest", "lease-majority", "down-all")
QUORUM = 3
NODES, PAGES, RATE = 5, 100, 500
STEP_S = 0.05
PATIENCE_S = 300.0
"""Ends a wait that hangs."""
BEFORE_S, AFTER_S = 2.0, 2.5
"""Seconds of traffic before a split, and after each change that follows."""
QUIET_S = 5.0
"""Messages have their outcome once nothing was handled or dropped for so long. A message that
nothing explains gets twice the time."""
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

    async def rest(self) -> list[judge.Told]:
        """Stop sending; return the tells since the last time."""
        await self.ask("rest")
        rows = _rows(self._path, 24, self._read)
        self._read += len(rows)
        return [judge.Told(self.number, seq, page) for page, seq, _ in rows]

    async def dropped(self, *, final: bool = False) -> Counter[str]:
        """Return how many messages were dropped since the last final call, by reason."""
        report, before = await self.ask("count"), self.last
        if final:
            self.last = report
        dropped = Counter(report["refused"])
        dropped.subtract(before["refused"])
        dropped["unconfirmed_by_the_dead"] = report["lost"] - before["lost"]
        return +dropped


class Field:
    """The cluster, its producers, and the splits."""

    def __init__(
        self, folder: str, network: Network, dice: random.Random, strategy: str, keep: Path | None
    ) -> None:
        self.folder, self.network, self.dice, self.keep = folder, network, dice, keep
        self.strategy = strategy
        self.settings = [f"cluster.downing.strategy={strategy}"]
        if strategy == "static-quorum":
            self.settings.append(f"cluster.downing.static_quorum_size={QUORUM}")
        self.nodes: list[Node] = []
        """The nodes that run, the oldest first."""
        self.loads: list[Load] = []
        self.safe = network.machine()
        self.store = ""
        self._read: dict[str, int] = {}

    # ---- the cluster

    async def fill(self) -> set[int]:
        """Start the missing nodes on the free machines, and wait until all are one cluster. Return
        the process ids of those that ended meanwhile."""
        ended: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended |= {node.process.pid for node in self.nodes if not node.running}
            self.nodes = [node for node in self.nodes if node.running]
            used = [node.machine for node in self.nodes]
            for machine in [m for m in self.places if m not in used]:
                seeds = [node.address for node in self.nodes][:3]
                node = Node(self.folder, seeds, self.settings, machine, app=APP, store=self.store)
                self.nodes.append(node)
            with contextlib.suppress(TimeoutError):
                await wait(self._settled_or_ended, "a full cluster", STEP_S)
            if settled(self.nodes):
                return ended
            if time.monotonic() > deadline:
                raise TimeoutError(f"no full cluster:\n{self.picture()}")

    def _settled_or_ended(self) -> bool:
        return settled(self.nodes) or not all(node.running for node in self.nodes)

    def picture(self) -> str:
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
        """Let one split of this shape happen; return the observations."""
        nodes = list(self.nodes)
        order = self.dice.sample(nodes, len(nodes))
        for load in self.loads:
            await load.ask("go")
        await asyncio.sleep(BEFORE_S)
        begun = boot_ns()
        report: dict[str, Any] = {"shape": shape, "strategy": self.strategy, "healed_at": 0}
        if shape == "stopped":
            await self._stop(order[0], report)
        else:
            await self._wall(shape, order, report)
        gone = {node.process.pid for node in nodes if not node.running}
        self.nodes = [node for node in nodes if node.running]
        if stray := await self.fill():
            report["ended_later"] = len(stray)
            gone |= stray
        await asyncio.sleep(AFTER_S)
        tells = [
            row_
            for tells in await asyncio.gather(*(x.rest() for x in self.loads))
            for row_ in tells
        ]
        rested = boot_ns()
        rows, dropped = await self._outcomes(tells, gone)
        last = max((row.at for row in rows), default=rested)
        report["outcome_s"] = round(max(0, last - rested) / 1e9, 3)
        if shape != "stopped":
            report["oldest"] = (
                "few" if nodes[0] in order[: 1 if shape == "alone" else 2] else "many"
            )
        if "continued" in report:
            late = judge.handled(rows, *report.pop("continued"))
            report |= {"woken": len(late), "woken_s": _longest(late)}
        healed = report.pop("healed_at")
        report |= judged(rows, begun, healed, gone, nodes, tells, dropped)
        if report["overlaps"] or "unexplained" in report["lost_by_reason"]:
            self.save(judge.evidence(rows, tells, report))
        return report

    async def _outcomes(
        self, tells: list[judge.Told], gone: set[int]
    ) -> tuple[list[judge.Row], Counter[str]]:
        """Wait until each tell has its outcome. Return all records, and the number of
        dropped messages by reason."""
        rows, quiet_since, before = list(self._records()), time.monotonic(), (0, 0)
        while True:
            dropped: Counter[str] = Counter()
            for counts in await asyncio.gather(*(load.dropped() for load in self.loads)):
                dropped += counts
            missing = len(judge.missing(tells, rows))
            if missing <= dropped.total() and not gone:
                break
            now = time.monotonic()
            if (state := (len(rows), dropped.total())) != before:
                quiet_since, before = now, state
            if now - quiet_since > QUIET_S * (1 if gone or not missing else 2):
                break
            await asyncio.sleep(0.5)
            rows += self._records()
        await asyncio.gather(*(load.dropped(final=True) for load in self.loads))
        return rows, dropped

    def save(self, evidence: str) -> None:
        """Copy logs and records into a folder of their own."""
        if self.keep is not None:
            place = self.keep / f"{self.strategy}-{time.time_ns()}"
            shutil.copytree(self.folder, place, ignore=shutil.ignore_patterns("redis"))
            (place / "evidence").write_text(evidence)

    async def _wall(self, shape: str, order: list[Node], report: dict[str, Any]) -> None:
        """Split the network until the cluster has decided, or for the time that the shape says."""
        store = report["store"] = self.dice.choice(STORES)
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
        if shape == "blocked":
            for node in few:
                node.process.send_signal(signal.SIGUSR1)
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
        report["healed_at"] = boot_ns()
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

    async def _stop(self, victim: Node, report: dict[str, Any]) -> None:
        """Stop a process for longer than every timeout, and let it continue."""
        pid = victim.process.pid
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        report["continued"] = [pid, boot_ns()]
        victim.process.send_signal(signal.SIGCONT)

        def decided() -> bool:
            return not victim.running or settled([node for node in self.nodes if node.running])

        await wait(decided, "the end of the stopped node", STEP_S)

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
    tells: list[judge.Told],
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
    lost = judge.missing(tells, rows)
    without = max(0, len(lost) - dropped.total())
    theirs = judge.handled_by(rows, gone)
    held = sum(tell.entity in theirs for tell in lost)
    dropped["held_by_the_ended"] = min(held, without)
    dropped["relayed_by_the_ended" if gone else "unexplained"] = without - min(held, without)
    return {
        "ended": len(gone),
        "overlaps": len({overlap.entity for overlap in twice}),
        "overlap_s": round(max((overlap.seconds for overlap in twice), default=0.0), 3),
        "suspend_s": _longest(stops),
        "failover_s": _longest(taken.values()),
        "resume_s": _longest(resumes),
        "told": len(tells),
        "lost": len(lost),
        "lost_by_reason": dict(+dropped),
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
async def field(dice: random.Random, strategy: str, keep: Path | None) -> AsyncIterator[Field]:
    """Provide a running cluster with its producers."""
    network = Network()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        made = Field(folder, network, dice, strategy, keep)
        try:
            with redis_on(made.safe, Path(folder) / "redis") as made.store:
                await made.begin()
                yield made
        finally:
            made.end()
            network.close()


def summed(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of all splits."""
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons += Counter(report.get("lost_by_reason", {}))
    worst = {
        name: max(
            (report[name] for report in reports if report.get(name) is not None), default=None
        )
        for name in ("overlap_s", "suspend_s", "failover_s", "resume_s", "woken_s", "outcome_s")
    }
    sums = {
        name: sum(report.get(name, 0) for report in reports)
        for name in ("ended", "overlaps", "told", "lost", "repeated", "woken")
    }
    counts = {
        "failed": sum("failed" in report for report in reports),
        "shapes": Counter(report["shape"] for report in reports),
        "strategies": Counter(report["strategy"] for report in reports),
    }
    return {"splits": len(reports), **counts, **sums, **worst, "lost_by_reason": reasons}


async def block(
    dice: random.Random, strategy: str, shapes: list[str], keep: Path | None
) -> list[dict[str, Any]]:
    """Split clusters with this strategy in these shapes, and print each."""
    reports: list[dict[str, Any]] = []
    while len(reports) < len(shapes):
        async with field(dice, strategy, keep) as made:
            for shape in shapes[len(reports) :]:
                begun = time.monotonic()
                try:
                    report = await made.split(shape)
                except TimeoutError as error:
                    report = {"shape": shape, "strategy": strategy, "failed": str(error)[:2000]}
                    made.save(made.picture())
                report["took_s"] = round(time.monotonic() - begun, 1)
                reports.append(report)
                print(json.dumps(report), flush=True)
                if "failed" in report:
                    break
    return reports


async def main(options: argparse.Namespace) -> None:
    """Split and print."""
    if why := missing():
        sys.exit(f"benchmarks.splits: {why}")
    dice, reports = random.Random(options.seed), list[dict[str, Any]]()
    shapes, strategies = itertools.cycle(options.shape), itertools.cycle(options.strategy)
    while len(reports) < options.splits:
        size = min(len(SHAPES), options.splits - len(reports))
        turn = [next(shapes) for _ in range(size)]
        dice.shuffle(turn)
        reports += await block(dice, next(strategies), turn, options.keep)
    print(json.dumps({"seed": options.seed, **summed(reports)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.splits")
    parser.add_argument("splits", type=int, nargs="?", default=len(SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--keep", type=Path)
    asyncio.run(main(parser.parse_args()))
