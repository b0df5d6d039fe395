"""Compare the modes of a hand-off: how long callers wait while a host leaves.

    python -m benchmarks.handoff_modes                        all named modes
    python -m benchmarks.handoff_modes ordered --rounds 5     one mode against `buffer`
    python -m benchmarks.handoff_modes buffer/gossip          with `sharding.homes = "gossip"`

In each round a new cluster of three hosts runs in mode `buffer`, and then one in each other mode,
so that both meet the same machine. A sender asks and tells as in `benchmarks.moves`, and one host
leaves. The figure is the 99th percentile of the waits of asks to entities that lived there, from
SIGTERM to the end of the process. `ratio` is the median of the rounds' ratios to `buffer`. In mode
`drop` a dropped ask fails, and has no wait; their number stands beside the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import dataclass

from benchmarks import moves_counts as counts
from benchmarks.harness import emit, median, percentile
from benchmarks.moves import AFTER_S, BEFORE_S, ended, lived_at, parameters
from benchmarks.moves_lab import Lab

BASE = "buffer"
MODES = ("ordered", "forward", "drop")
GOSSIP = "/gossip"
"""After a mode: nodes learn homes from each other, and not each from the coordinator."""


@dataclass(frozen=True)
class Leave:
    """One leave: the 99th percentile of the waits in milliseconds, and what went wrong."""

    wait_ms: float
    failed: int
    lost: int
    reordered: int


async def leave(mode: str, store: str) -> Leave:
    """Let one of three hosts leave in this mode."""
    os.environ["BENCH_HANDOFF"] = mode.removesuffix(GOSSIP)
    os.environ["BENCH_HOMES"] = "gossip" if mode.endswith(GOSSIP) else "ask"
    async with Lab.of(3, store) as lab:
        await lab.level()
        async with lab.load() as load:
            await asyncio.sleep(BEFORE_S)
            victim, at = lab.take("youngest"), time.monotonic_ns()
            await ended(victim)
            over = time.monotonic_ns()
            await asyncio.sleep(AFTER_S)
        moved = counts.of(lived_at(victim, load, at), load.asked)
        waits = sorted(counts.waits(moved, at, over))
        tally = counts.tally(load.told, [row for rows in load.handled.values() for row in rows])
        p99 = 1000 * percentile(waits, 0.99)
        return Leave(p99, counts.failed(load.asked), len(tally.lost), tally.reordered)


async def compare(modes: list[str], rounds: int, store: str) -> None:
    """Run every round and print one line for each mode."""
    found: dict[str, list[Leave]] = {mode: [] for mode in (BASE, *modes)}
    for _ in range(rounds):
        for mode, leaves in found.items():
            leaves.append(await leave(mode, store))
    own = {**parameters(3, store), "load": round(os.getloadavg()[0], 1)}
    for mode, leaves in found.items():
        pairs = zip(leaves, found[BASE], strict=True)
        ratio = median([one.wait_ms / max(base.wait_ms, 1e-6) for one, base in pairs])
        emit(
            f"leave_{mode.replace('/', '_')}_wait_p99",
            median([one.wait_ms for one in leaves]),
            "ms",
            **own,
            ratio=round(ratio, 3),
            rounds=[round(one.wait_ms, 1) for one in leaves],
            asks_failed=sum(one.failed for one in leaves),
            tells_lost=sum(one.lost for one in leaves),
            tells_reordered=sum(one.reordered for one in leaves),
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handoff_modes")
    parser.add_argument(
        "modes", nargs="*", metavar="MODE", help=f"{', '.join(MODES)}; or MODE{GOSSIP}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", choices=("redis", "sqlite"), default="redis")
    arguments = parser.parse_args()
    named = {mode.removesuffix(GOSSIP) for mode in arguments.modes}
    if unknown := named - {BASE, *MODES}:
        parser.error(f"no such mode: {', '.join(sorted(unknown))}")
    asyncio.run(compare(arguments.modes or list(MODES), arguments.rounds, arguments.store))


if __name__ == "__main__":
    main()
