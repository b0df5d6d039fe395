"""Real nodes and a real Redis under faults that a seed draws, judged by a ledger.

Five nodes share a Redis. Two clients send numbered messages to every page, and each page writes
down what it handles. Meanwhile, one after the other:

    kill      SIGKILL of a node; another starts at its address
    pause     SIGSTOP of a node for some seconds, short or longer than its cluster waits
    leave     SIGTERM of a node, which hands off and ends; another starts at its address
    freeze    SIGSTOP of Redis for some seconds
    crash     SIGKILL of Redis; it starts again with what it had acknowledged

Then everything is healed, the nodes must agree, and every page must answer. The verdict:

- no page handles a message twice, or a producer's messages in another order
- of no page are two activations alive at once
- an ask that was answered was handled once; one that was refused for certain, never
- no node's descriptors, threads or memory exceed their bounds, and no node ends by itself, but one
  that was paused, which its cluster may have removed

A seed repeats the faults, not the instants at which they meet the load. Splits, rotations of the
secret and full disks are not drawn; `benchmarks/splits.py` and tests of their own have them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP

from shardbus import RequestError
from tests.process.app import Page
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_ledger import ASK, PAGES, TELL, Ledger, Load, Producer
from tests.redis_server import RedisServer
from tests.waiting import until

NODES = 5
ASK_TIMEOUT_S = 20.0
QUIET_S = 8.0
"""Seconds between two faults, at most."""
PAUSES_S = (0.5, 3.0, 8.0, 25.0)
"""Blinks, and pauses over the detector's patience and over `stable_after`."""
DESCRIPTORS_MAX, THREADS_MAX, MEMORY_MAX_MIB = 400, 60, 400
ACTIONS = ("kill", "kill", "pause", "pause", "leave", "freeze", "crash")


class SteadyProducer(Producer):
    """A producer that goes on when a message is refused."""

    async def run(self) -> None:
        refs = [self.client.ref(Page, f"page-{i}") for i in range(PAGES)]
        while not self.closing:
            self.rounds += 1
            for page, ref in enumerate(refs):
                if self.number == ASK:
                    task = asyncio.ensure_future(self._ask(page, ref, self.rounds))
                    self._asks.add(task)
                    task.add_done_callback(self._asks.discard)
                    continue
                try:
                    await ref.hit.tell(TELL, self.rounds)
                except RequestError:
                    self.outcomes[page, self.rounds] = "refused"
            await asyncio.sleep(0.2)
        await asyncio.gather(*self._asks)


@dataclass
class Verdict:
    """What a run showed."""

    seed: int
    timeline: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    handled: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        end = "; ".join(self.wrong) or "nothing wrong"
        facts = {**self.handled, **self.peaks}
        counts = ", ".join(f"{name} {count}" for name, count in facts.items())
        return "\n".join([*self.timeline, counts, f"seed {self.seed}: {end}"])


class Chaos:
    """One run."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._random, self._verdict = Random(seed), Verdict(seed)
        self._began = time.monotonic()
        self._paused: set[str] = set()
        """Names of nodes that were paused: these may end by themselves."""

    def _note(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f}  {what}"
        self._verdict.timeline.append(line)
        print(line, flush=True)

    async def run(self) -> Verdict:
        """Run, heal and judge."""
        with RedisServer(self._folder / "redis") as redis:
            lab = Processes(self._folder, redis.url())
            try:
                await lab.cluster(NODES)
                self._note(f"{NODES} nodes agree")
                async with (
                    lab.client(timeout=ASK_TIMEOUT_S) as a,
                    lab.client(timeout=ASK_TIMEOUT_S) as b,
                ):
                    load = Load()
                    load.producers = [SteadyProducer(a, TELL), SteadyProducer(b, ASK)]
                    load.work = [asyncio.ensure_future(p.run()) for p in load.producers]
                    await load.rounds(3)
                    watch = asyncio.ensure_future(self._watch(lab))
                    end = time.monotonic() + self._seconds
                    while time.monotonic() < end:
                        await self._act(lab, redis)
                        await asyncio.sleep(self._random.uniform(1.0, QUIET_S))
                    await self._heal(lab)
                    await load.rounds(5)
                    await load.end()
                    watch.cancel()
                    await self._all_answer(lab)
                self._judge(load)
            except BaseException:
                print(lab.logs())
                raise
            finally:
                lab.close()
        return self._verdict

    # ---- faults

    async def _act(self, lab: Processes, redis: RedisServer) -> None:
        action, node = self._random.choice(ACTIONS), self._random.choice(lab.live)
        pause = self._random.choice(PAUSES_S)
        match action:
            case "kill":
                self._note(f"kill {node.name}")
                node.kill()
                await self._replace(lab, node)
            case "leave":
                self._note(f"leave {node.name}")
                code = await node.terminate()
                if code not in (0, 7):
                    self._verdict.wrong.append(f"{node.name} left with {code}")
                await self._replace(lab, node)
            case "pause":
                self._note(f"pause {node.name} for {pause:g} s")
                self._paused.add(node.name)
                node.signal(SIGSTOP)
                await asyncio.sleep(pause)
                node.signal(SIGCONT)
            case "freeze":
                self._note(f"freeze redis for {min(pause, 8.0):g} s")
                redis.pause()
                await asyncio.sleep(min(pause, 8.0))
                redis.resume()
            case "crash":
                self._note("crash redis")
                redis.kill()
                await asyncio.sleep(min(pause, 3.0))
                redis.restart()
        await self._return_removed(lab)

    async def _replace(self, lab: Processes, gone: NodeProcess) -> None:
        seeds = [node.address for node in lab.live]
        node = await lab.start(port=gone.port, seeds=seeds)
        self._note(f"{node.name} joins at the address of {gone.name}")

    async def _return_removed(self, lab: Processes) -> None:
        """Replace nodes that ended because their cluster had removed them during a pause."""
        taken = {node.port for node in lab.live}
        last = {node.port: node for node in lab.all}
        for port, node in last.items():
            if port in taken:
                continue
            if node.name not in self._paused:
                code = node.process.returncode
                self._verdict.wrong.append(f"{node.name} ended by itself with {code}")
            await self._replace(lab, node)

    async def _heal(self, lab: Processes) -> None:
        self._note("heal")

        async def whole() -> bool:
            await self._return_removed(lab)
            pages = await asyncio.gather(*(node.page("/v1/nodes") for node in lab.live))
            wanted = {node.address: "up" for node in lab.live}
            return len(wanted) == NODES and all(
                page and {row["address"]: row["status"] for row in page["nodes"]} == wanted
                for page in pages
            )

        await until(whole, f"agreement of {NODES} nodes")
        self._note("all nodes agree")

    async def _all_answer(self, lab: Processes) -> None:
        async with lab.client() as client:
            refs = [client.ref(Page, f"page-{i}") for i in range(PAGES)]
            await asyncio.gather(*(ref.where() for ref in refs))
        self._note("all pages answer")

    # ---- judging

    async def _watch(self, lab: Processes) -> None:
        while True:
            for node in lab.live:
                for name, value in _use(node.process.pid).items():
                    self._verdict.peaks[name] = max(self._verdict.peaks.get(name, 0), value)
            await asyncio.sleep(1.0)

    def _judge(self, load: Load) -> None:
        ledger, (_, asks), wrong = Ledger(self._folder), load.producers, self._verdict.wrong
        for what in ("reordered", "repeated", "overlaps"):
            found = getattr(ledger, what)
            if found:
                wrong.append(f"{len(found)} {what}: {found[:5]}")
        handled = {who: Counter(seqs) for who, seqs in ledger.handled.items()}
        for (page, seq), outcome in asks.outcomes.items():
            count = handled.get((page, ASK), Counter())[seq]
            if count not in {"ok": (1,), "refused": (0,), "unsure": (0, 1)}[outcome]:
                wrong.append(f"page {page} ask {seq} was {outcome}, handled {count} times")
        bounds = {"descriptors": DESCRIPTORS_MAX, "threads": THREADS_MAX, "MiB": MEMORY_MAX_MIB}
        for name, most in bounds.items():
            if self._verdict.peaks.get(name, 0) > most:
                wrong.append(f"{self._verdict.peaks[name]} {name}, at most {most}")
        outcomes = Counter(asks.outcomes.values())
        self._verdict.handled = {
            "tells handled": ledger.total(TELL),
            "of": load.producers[0].rounds * PAGES,
            **{f"asks {outcome}": count for outcome, count in sorted(outcomes.items())},
        }


def _use(pid: int) -> dict[str, int]:
    """Return what a process uses; nothing if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return {}
    rows = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "descriptors": descriptors,
        "threads": int(rows.get("Threads", "0")),
        "MiB": int(rows.get("VmRSS", "0 kB").split()[0]) // 1024,
    }
