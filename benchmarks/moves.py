"""Measure the effect on entities and their callers when hosts leave, die and join.

    python -m benchmarks.moves homes                          1,000 shards find their homes
    python -m benchmarks.moves kill [oldest | youngest]       SIGKILL of one of three hosts
    python -m benchmarks.moves leave [oldest | youngest]      SIGTERM of one of three hosts
    python -m benchmarks.moves join                           a third host joins two
    python -m benchmarks.moves rolling                        five hosts restart, one by one
    python -m benchmarks.moves remember                       100,000 remembered entities come back

Hosts are processes started by the command line with their settings at their defaults, 1,000 shards,
over one store: `--store redis` (by default) or `--store sqlite`. Meanwhile a sender asks 5,000
times a second, with a timeout of 1 s, and tells as often, 1,000 entities in turn. So each is asked
every 200 ms, and 0.2 s is the gap of an undisturbed entity (`moves_counts`). Answers
are times at the sender, so that its own lateness is in them; the worst of it stands beside them.

A time is the median of the rounds, a count their sum; `rounds` has each. `--rounds N` sets another
number. `load` is the machine's load average before and after: above its number of cores, the
longest times describe the machine rather than shardbus.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from benchmarks import moves_counts as counts
from benchmarks.harness import emit, median, percentile
from benchmarks.moves_app import SHARDS
from benchmarks.moves_lab import ENTITIES, LOOK_S, RATE, WRITE, Lab, Load
from benchmarks.nodes import Node, settled, wait

BEFORE_S, AFTER_S = 3.0, 5.0
REMEMBERED, FRESH = 100_000, 90_000
SPREAD = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


class Sheet:
    """Collect the results of the rounds of one measurement."""

    def __init__(self, what: str, **parameters: object) -> None:
        self._what, self._parameters = what, parameters
        self._before = os.getloadavg()[0]
        self._failures: list[dict[str, int]] = []
        self._values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def time(self, name: str, seconds: float) -> None:
        """Add a duration of one round."""
        self._values[name, "ms"].append(1000 * seconds)

    def times(self, name: str, seconds: Iterable[float]) -> None:
        """Add the median, the 99th percentile and the worst value of one round."""
        ordered = sorted(seconds)
        for suffix, q in SPREAD if ordered else ():
            self.time(f"{name}_{suffix}", percentile(ordered, q))

    def count(self, name: str, value: int, unit: str) -> None:
        """Add a count of one round."""
        self._values[name, unit].append(value)

    def traffic(self, load: Load) -> counts.Tally:
        """Add the lost, repeated, reordered and failed messages, and the sender's lateness."""
        handled = [row for rows in load.handled.values() for row in rows]
        tally = counts.tally(load.tells, handled)
        for name, value in (
            ("asks", len(load.asks)),
            ("asks_failed", counts.failed(load.asks)),
            ("tells", len(load.tells)),
            ("tells_refused", load.end["refused"]),
            ("tells_lost", len(tally.lost)),
            ("tells_duplicated", tally.duplicated),
            ("tells_reordered", tally.reordered),
        ):
            self.count(name, value, name.partition("_")[0])
        self.time("sender_late", load.end["late_ms"] / 1000)
        if load.end["outcomes"]:
            self._failures.append(load.end["outcomes"])
        return tally

    def print(self) -> None:
        """Print one line for each figure."""
        parameters = {
            **self._parameters,
            "load": [round(self._before, 1), round(os.getloadavg()[0], 1)],
        }
        for (name, unit), values in self._values.items():
            if name == "asks_failed" and self._failures:
                parameters["failures"] = self._failures
            value = median(values) if unit == "ms" else sum(values)
            rounds = [round(v, 1) for v in values]
            emit(f"{self._what}_{name}", value, unit, **parameters, rounds=rounds)
            parameters.pop("failures", None)


# ---- the measurements


async def homes(rounds: int, store: str, _which: str) -> Sheet:
    """Start a new cluster each time; measure from the first messages, one for each shard, to the
    last answer."""
    sheet = Sheet("homes", hosts=3, shards=SHARDS, store=store)
    for _ in range(rounds):
        async with Lab.of(3, store, warm=False) as lab:
            sheet.time("last_answer", await lab.first_asks())
    return sheet


async def kill(rounds: int, store: str, which: str) -> Sheet:
    """Kill a host; measure the gaps of its entities, and of the others."""
    sheet = Sheet("kill", victim=which, **parameters(3, store))
    async with Lab.of(3, store) as lab:
        for _ in range(rounds):
            await lab.level()
            async with lab.load() as load:
                await asyncio.sleep(BEFORE_S)
                victim, at = lab.take(which), time.monotonic_ns()
                victim.kill()
                await asyncio.sleep(AFTER_S)
            orphans = lived_at(victim, load, at)
            longest = counts.gaps(load.asks, at)
            sheet.times("gap", (s for e, s in longest.items() if e in orphans))
            sheet.times("gap_elsewhere", (s for e, s in longest.items() if e not in orphans))
            others = counts.of(longest.keys() - orphans, load.asks)
            sheet.count("asks_failed_elsewhere", counts.failed(others), "asks")
            lost = sheet.traffic(load).lost
            sheet.count("tells_lost_elsewhere", sum(e not in orphans for e, _ in lost), "tells")
            sheet.count("entities", len(orphans), "entities")
            sheet.time("last_lost_tell", (max(n for _, n in lost) - at) / 1e9 if lost else 0)
            await lab.add()
    return sheet


async def leave(rounds: int, store: str, which: str) -> Sheet:
    """Let a host leave; measure the callers' waits until the process has ended."""
    sheet = Sheet("leave", victim=which, **parameters(3, store))
    async with Lab.of(3, store) as lab:
        for _ in range(rounds):
            await lab.level()
            async with lab.load() as load:
                await asyncio.sleep(BEFORE_S)
                victim, at = lab.take(which), time.monotonic_ns()
                await ended(victim)
                over = time.monotonic_ns()
                await asyncio.sleep(AFTER_S)
            sheet.time("ended_after", (over - at) / 1e9)
            sheet.times("wait", counts.waits(load.asks, at, over))
            moved = counts.of(lived_at(victim, load, at), load.asks)
            sheet.times("wait_moved", counts.waits(moved, at, over))
            sheet.times("gap", counts.gaps(moved, at).values())
            sheet.traffic(load)
            await lab.add()
    return sheet


async def join(rounds: int, store: str, _which: str) -> Sheet:
    """Let a third host join; measure the time from Up to an even spread, and the callers' waits."""
    sheet = Sheet("join", **parameters(2, store))
    for _ in range(rounds):
        async with Lab.of(2, store) as lab:
            async with lab.load() as load:
                await asyncio.sleep(BEFORE_S)
                await wait(partial(up, lab.begin()), "Up")
                at = time.monotonic_ns()
                await lab.level()
                over = time.monotonic_ns()
                await asyncio.sleep(AFTER_S)
            sheet.time("even_after", (over - at) / 1e9)
            sheet.times("wait", counts.waits(load.asks, at, over))
            before = counts.homes(load.handled, at)
            after = counts.homes(load.handled, time.monotonic_ns())
            moved = counts.of([e for e in after if after[e] != before.get(e)], load.asks)
            sheet.times("wait_moved", counts.waits(moved, at, over))
            sheet.times("gap", counts.gaps(moved, at).values())
            sheet.traffic(load)
    return sheet


async def rolling(rounds: int, store: str, _which: str) -> Sheet:
    """Restart five hosts one by one: each gets SIGTERM and starts anew at its address, the oldest
    first, so that the coordinator moves each time. The next one goes once all are Up."""
    sheet = Sheet("rolling", **parameters(5, store))
    for _ in range(rounds):
        async with Lab.of(5, store) as lab:
            await lab.level()
            async with lab.load() as load:
                await asyncio.sleep(BEFORE_S)
                at = time.monotonic_ns()
                for _ in range(5):
                    victim = lab.take("oldest")
                    await ended(victim)
                    await lab.add(like=victim)
                over = time.monotonic_ns()
                await asyncio.sleep(AFTER_S)
            sheet.time("took", (over - at) / 1e9)
            sheet.times("wait", counts.waits(load.asks, at, over))
            sheet.times("gap", counts.gaps(load.asks, at).values())
            sheet.traffic(load)
    return sheet


async def remember(rounds: int, store: str, which: str) -> Sheet:
    """Send first messages to 90,000 entities, beside 10,000 that run; then all hosts stop and start
    at once; then one is killed."""
    sheet = Sheet("remember", victim=which, **parameters(3, store) | {"entities": REMEMBERED})
    for _ in range(rounds):
        async with Lab.of(3, store, "sharding.remember=true", *WRITE) as lab:
            await lab.level()
            await lab.messages(0, REMEMBERED - FRESH)
            load = await lab.messages(REMEMBERED - FRESH, FRESH)
            sheet.times("first_answer", counts.waits(load.asks, 0, time.monotonic_ns()))
            sheet.traffic(load)
            await restarted(lab, sheet)
            await lab.level()
            victim, at = lab.take(which), time.monotonic()
            victim.kill()
            await back(lab, sheet, "kill", at)
    return sheet


async def restarted(lab: Lab, sheet: Sheet) -> None:
    """Stop all nodes and start them at the same addresses: the first alone, then all at once."""
    await lab.shut_down()
    old, lab.nodes = lab.nodes, []
    at = time.monotonic()
    for node in old:
        lab.begin(node, [] if node is old[0] else [old[0].address])
    await wait(lambda: settled(lab.nodes), "the cluster")
    sheet.time("restart_up_after", time.monotonic() - at)
    await back(lab, sheet, "restart", at)


async def back(lab: Lab, sheet: Sheet, after: str, at: float) -> None:
    """Return the time until all entities run, and the number of missing ones."""
    with contextlib.suppress(TimeoutError):
        await wait(lambda: lab.running() == REMEMBERED, "every entity", LOOK_S)
    sheet.time(f"{after}_back_after", time.monotonic() - at)
    sheet.count(f"{after}_missing", REMEMBERED - lab.running(), "entities")


def up(node: Node) -> bool:
    """True if the node reports that it is Up."""
    return node.view().get("status") == "up"


async def ended(victim: Node) -> None:
    """Send SIGTERM and wait for the end of the process."""
    victim.process.send_signal(signal.SIGTERM)
    await wait(lambda: not victim.running, "the end of a node")
    if victim.process.returncode:
        raise RuntimeError(f"a node ended with {victim.process.returncode}")


def lived_at(victim: Node, load: Load, at: int) -> set[int]:
    """Return the entities whose home this node was."""
    pid = str(victim.process.pid)
    return {e for e, process in counts.homes(load.handled, at).items() if process == pid}


def parameters(hosts: int, store: str) -> dict[str, object]:
    """Return the parameters of the figures."""
    return {"hosts": hosts, "shards": SHARDS, "entities": ENTITIES, "rate": RATE, "store": store}


Measurement = Callable[[int, str, str], Coroutine[Any, Any, Sheet]]
MEASUREMENTS: dict[str, tuple[Measurement, int]] = {
    "homes": (homes, 5),
    "kill": (kill, 5),
    "leave": (leave, 5),
    "join": (join, 3),
    "rolling": (rolling, 1),
    "remember": (remember, 1),
}
"""And in how many rounds."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves")
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("which", nargs="?", choices=("oldest", "youngest"), default="youngest")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--store", choices=("redis", "sqlite"), default="redis")
    options = parser.parse_args()
    measure, rounds = MEASUREMENTS[options.what]
    asyncio.run(measure(options.rounds or rounds, options.store, options.which)).print()


if __name__ == "__main__":
    main()
