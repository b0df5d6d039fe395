"""Compare the modes of a hand-off: how long callers wait while a host leaves.

    python -m benchmarks.handoff_modes                        all named modes
    python -m benchmarks.handoff_modes ordered --rounds 5     one mode against `buffer`
    python -m benchmarks.handoff_modes buffer/gossip          with `sharding.homes = "gossip"`
    python -m benchmarks.handoff_modes --rate 1000            fewer asks and tells a second
    python -m benchmarks.handoff_modes --store-ms 10          Redis answers that much later
    python -m benchmarks.handoff_modes --entities 300000      that many more entities in memory

In each round a new cluster of three hosts runs in mode `buffer`, and then one in each other mode,
so that both meet the same machine. A sender asks and tells as in `benchmarks.moves`, and one host
leaves. `wait` is the 99th percentile of the waits of asks to entities that lived there, from
SIGTERM to the end of the process, and its `ratio` the median of the rounds' ratios to `buffer`. In
mode `drop` a dropped ask fails, and has no wait; their number stands beside the figure.

While a host leaves, every ask waits for a core, also one for an entity that stays where it is. So
`added` is the cost of the move itself: the 99th percentile of the asks of all rounds to entities
that moved, less the percentile of the asks to entities that stayed, sent in the same leaves. Its
`ratio` is that to the figure of `buffer`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import asdict, dataclass

from benchmarks import moves_counts as counts
from benchmarks.harness import emit, median, percentile
from benchmarks.moves import AFTER_S, BEFORE_S, ended, lived_at, parameters
from benchmarks.moves_lab import ENTITIES, RATE, Lab

BASE = "buffer"
MODES = ("ordered", "forward", "drop")
FILL_RATE = 15_000
GOSSIP = "/gossip"
"""After a mode: nodes get homes from each other, and not each from the coordinator."""


@dataclass(frozen=True)
class Leave:
    """One leave: the waits of asks to entities that moved and that stayed, in order and in
    milliseconds, and the errors."""

    moved: list[float]
    stayed: list[float]
    failed: int
    lost: int
    reordered: int

    @property
    def wait_ms(self) -> float:
        """Return the 99th percentile of the waits for entities that moved."""
        return percentile(self.moved, 0.99)


def added_ms(leaves: list[Leave]) -> float:
    """Return the time that moving adds to the 99th percentile of the waits in these leaves."""
    moved = sorted(wait for leave_ in leaves for wait in leave_.moved)
    stayed = sorted(wait for leave_ in leaves for wait in leave_.stayed)
    return percentile(moved, 0.99) - percentile(stayed, 0.99)


@dataclass(frozen=True)
class Conditions:
    """The options that are the same in every leave of a run."""

    store: str
    store_ms: float
    rate: int
    more_entities: int


async def leave(mode: str, conditions: Conditions) -> Leave:
    """Let one of three hosts leave in this mode."""
    os.environ["BENCH_HANDOFF"] = mode.removesuffix(GOSSIP)
    os.environ["BENCH_HOMES"] = "gossip" if mode.endswith(GOSSIP) else "ask"
    async with Lab.of(3, conditions.store, store_ms=conditions.store_ms) as lab:
        await lab.level()
        if conditions.more_entities:
            await lab.messages(ENTITIES, conditions.more_entities, rate=FILL_RATE)
        async with lab.load(rate=conditions.rate) as load:
            await asyncio.sleep(BEFORE_S)
            victim, at = lab.take("youngest"), time.monotonic_ns()
            await ended(victim)
            over = time.monotonic_ns()
            await asyncio.sleep(AFTER_S)
        lived = lived_at(victim, load, at)
        others = {row[0] for row in load.asks} - lived
        moved, stayed = (
            sorted(1000 * wait for wait in counts.waits(counts.of(some, load.asks), at, over))
            for some in (lived, others)
        )
        tally = counts.tally(load.tells, [row for rows in load.handled.values() for row in rows])
        return Leave(moved, stayed, counts.failed(load.asks), len(tally.lost), tally.reordered)


async def compare(modes: list[str], rounds: int, conditions: Conditions) -> None:
    """Run every round and print one line for each mode."""
    leaves_of: dict[str, list[Leave]] = {mode: [] for mode in (BASE, *modes)}
    for _ in range(rounds):
        for mode, leaves in leaves_of.items():
            leaves.append(await leave(mode, conditions))
    figures = {
        **parameters(3, conditions.store),
        **asdict(conditions),
        "load": round(os.getloadavg()[0], 1),
    }
    for mode, leaves in leaves_of.items():
        pairs = zip(leaves, leaves_of[BASE], strict=True)
        ratio = median([leave_.wait_ms / max(base.wait_ms, 1e-6) for leave_, base in pairs])
        emit(
            f"leave_{mode.replace('/', '_')}_wait_p99",
            median([leave_.wait_ms for leave_ in leaves]),
            "ms",
            **figures,
            ratio=round(ratio, 3),
            rounds=[round(leave_.wait_ms, 1) for leave_ in leaves],
            asks_failed=sum(leave_.failed for leave_ in leaves),
            tells_lost=sum(leave_.lost for leave_ in leaves),
            tells_reordered=sum(leave_.reordered for leave_ in leaves),
        )
        added, base_ms = added_ms(leaves), added_ms(leaves_of[BASE])
        emit(
            f"leave_{mode.replace('/', '_')}_added_p99",
            added,
            "ms",
            **figures,
            ratio=round(added / base_ms, 3) if base_ms > 0 else None,
            asks_moved=sum(len(leave_.moved) for leave_ in leaves),
            asks_stayed=sum(len(leave_.stayed) for leave_ in leaves),
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handoff_modes")
    parser.add_argument(
        "modes", nargs="*", metavar="MODE", help=f"{', '.join(MODES)}; or MODE{GOSSIP}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=RATE, help="asks, and tells, a second")
    parser.add_argument("--store", choices=("redis", "sqlite"), default="redis")
    parser.add_argument("--store-ms", type=float, default=0.0, help="how much later Redis answers")
    parser.add_argument("--entities", type=int, default=0, help="more entities in memory")
    arguments = parser.parse_args()
    named = {mode.removesuffix(GOSSIP) for mode in arguments.modes}
    if unknown := named - {BASE, *MODES}:
        parser.error(f"no such mode: {', '.join(sorted(unknown))}")
    store, store_ms = arguments.store, arguments.store_ms
    if store_ms and store != "redis":
        parser.error("--store-ms needs --store redis")
    conditions = Conditions(store, store_ms, arguments.rate, arguments.entities)
    asyncio.run(compare(arguments.modes or list(MODES), arguments.rounds, conditions))


if __name__ == "__main__":
    main()
