"""Fire a day's reminders of many entities in virtual time, and count the store reads and the memory
that they need.

Whole nodes run in the test kit. Each entity has one reminder, due at a drawn time of the day; the
store has them all from the beginning, as after a full stop. Then the time goes by. Time is virtual,
so lateness and counts are the same on every machine, and only the seconds of work differ.

    lateness      from the due moment to the call of the handler, by the clock of the node
    in memory     reminders in the windows of the shards, and activations, at most; looked at every
                  minute
    reads         reads of the index by time, and entries in them; loads of reminders and of fences

    python -m benchmarks.reminders [--reminders 1000000] [--hours 24] [--nodes 2] [--shards 64]

`--hours` ends the run earlier: with 2, a twelfth of the reminders fire, and all are in the store.
Each hour is noted on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import wraps
from random import Random
from typing import Any

from benchmarks.harness import emit
from shardbus import Entity, ShardBus, handler
from shardbus.entities.reminding import entry_of
from shardbus.reminders.record import EMPTY, encoded
from shardbus.routing.paths import shard_function_of
from shardbus.simulation.nodes.stores import SimStore
from shardbus.store.memory import ReminderIndex
from shardbus.testing import TestCluster

DAY_S = 24 * 3600.0
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
"""The wall clock at the beginning of a `TestCluster`."""
STARTED_S, LATE_S = 60.0, 5.0
"""Virtual seconds until the first reminder is due, and after the last one."""
LOOK_S = 60.0
"""Virtual seconds between two looks at the memory."""
PASSIVATE_S = 10.0
"""Seconds for which an entity stays in memory after its reminder."""
LIMIT_MS = 2000
"""The lateness that 99 of 100 may have: one second, and the poll of one second."""
CALLS = ("page_due", "load_reminders", "load_state", "save_states")


class Lateness:
    """The lateness of each firing, in milliseconds, by its number of occurrences."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.early = 0

    def add(self, late_ms: float) -> None:
        self.early += late_ms < 0
        self.counts[round(late_ms)] += 1

    def percentile(self, part: float) -> int:
        """Return the lateness that this part of the firings does not exceed."""
        left = part * self.counts.total()
        for late, times in sorted(self.counts.items()):
            left -= times
            if left <= 0:
                return late
        return 0


def application(shards: int, lateness: Lateness) -> tuple[ShardBus, type]:
    """Declare an entity that notes how late its reminder is."""
    bus = ShardBus("reminders")

    @bus.entity("parcel", shards=shards, reminders=True, passivate_after=PASSIVATE_S)
    class Parcel(Entity):
        @handler
        def call(self) -> None:
            reminder = self.context.reminder
            assert reminder is not None
            lateness.add((self.context.now() - reminder.due).total_seconds() * 1000)

    return bus, Parcel


def stored(bus: ShardBus, count: int, begins_ms: int, dice: Random) -> ReminderIndex:
    """Return an index with a reminder of each entity, due at a drawn time of a day."""
    kind, index = bus.types["parcel"], ReminderIndex()
    shard_of = shard_function_of(kind.interface)
    plain = entry_of(kind, begins_ms, "", "call", after=1.0)
    for number in range(count):
        entity_id = f"parcel-{number}"
        due = begins_ms + dice.randrange(int(DAY_S * 1000))
        entry = type(plain)(plain.name, plain.handler, plain.payload, number, due, due, plain.rule)
        shard = shard_of(entity_id)
        index.records[entity_id] = shard, due, encoded(EMPTY.setting(entry)) or b""
        index.due.setdefault(shard, []).append((due, entity_id))
    for entries in index.due.values():
        entries.sort()
    return index


def counted(counts: Counter[str]) -> Callable[[], None]:
    """Count the calls of the store, and the entries that they read. Returns the function that ends
    it."""
    before = {name: getattr(SimStore, name) for name in CALLS}

    def counting(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(call)
        async def called(store: SimStore, *arguments: Any) -> Any:
            answer = await call(store, *arguments)
            counts[name] += 1
            counts[f"{name} entries"] += len(answer) if isinstance(answer, list) else 1
            return answer

        return called

    def end() -> None:
        for name, call in before.items():
            setattr(SimStore, name, call)

    for name, call in before.items():
        setattr(SimStore, name, counting(name, call))
    return end


async def day(reminders: int, hours: float, nodes: int, shards: int) -> dict[str, Any]:
    """Let the time go by. Returns the figures."""
    lateness, counts, peaks = Lateness(), Counter[str](), Counter[str]()
    bus, _ = application(shards, lateness)
    cluster = TestCluster(bus, nodes=1, seed=1)
    begins_ms = round((BEGINNING.timestamp() + STARTED_S) * 1000)
    began = time.process_time()
    index = stored(bus, reminders, begins_ms, Random(1))
    due_in_time = sum(
        due <= begins_ms + hours * 3_600_000 for entries in index.due.values() for due, _ in entries
    )
    made_s, end = time.process_time() - began, counted(counts)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        async with cluster:
            cluster.store._server.data.reminders["parcel"] = index
            for _ in range(nodes):
                await cluster.add()
            await cluster.leave(cluster.nodes[0])  # the next coordinator reads the store
            began = time.process_time()
            while cluster.now < STARTED_S + hours * 3600 + LATE_S:
                await cluster.advance(LOOK_S)
                look(cluster, peaks)
                hour, minute = divmod(round((cluster.now - STARTED_S) / 60), 60)
                if not minute:
                    facts = f"{lateness.counts.total()} fired, {dict(peaks)} at most"
                    print(f"hour {hour}: {facts}", file=sys.stderr, flush=True)
            worked_s = time.process_time() - began
    finally:
        end()
    fired = lateness.counts.total()
    return {
        "reminders": reminders,
        "hours": hours,
        "nodes": nodes,
        "shards": shards,
        "fired": fired,
        "due": due_in_time,
        "early": lateness.early,
        "p50_ms": lateness.percentile(0.5),
        "p99_ms": lateness.percentile(0.99),
        "longest_ms": max(lateness.counts, default=0),
        "held_at_most": peaks["held"],
        "active_at_most": peaks["active"],
        "index_reads": counts["page_due"],
        "index_entries_per_firing": round(counts["page_due entries"] / max(fired, 1), 3),
        "loads_per_firing": round(counts["load_reminders"] / max(fired, 1), 3),
        "fences_per_firing": round(counts["load_state"] / max(fired, 1), 3),
        "grown_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024,
        "ms_per_firing": round(1000 * worked_s / max(fired, 1), 2),
        "made_s": round(made_s, 1),
        "worked_s": round(worked_s, 1),
    }


def look(cluster: TestCluster, peaks: Counter[str]) -> None:
    """Note how much is in memory."""
    hosts = [node._host("parcel") for node in cluster.nodes]
    held = sum(host.runner.reminding.held for host in hosts if host.runner.reminding is not None)
    peaks["held"] = max(peaks["held"], held)
    peaks["active"] = max(peaks["active"], sum(len(host.active) for host in hosts))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--reminders", type=int, default=1_000_000)
    options.add_argument("--hours", type=float, default=24.0)
    options.add_argument("--nodes", type=int, default=2)
    options.add_argument("--shards", type=int, default=64)
    chosen = options.parse_args()
    figures = asyncio.run(day(chosen.reminders, chosen.hours, chosen.nodes, chosen.shards))
    emit("reminders of a day, p99 of the lateness", figures["p99_ms"], "ms", **figures)
    failed = figures["p99_ms"] > LIMIT_MS or figures["early"] or figures["fired"] < figures["due"]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
