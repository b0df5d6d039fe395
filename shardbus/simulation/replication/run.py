"""A run of one seed: calls under faults, then all faults end, the last reads, and the verdict.

    python -m shardbus.simulation.replication.run states 0 1000

runs these seeds of one kind of key, and prints the sums.

Source: docs/simulation.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from shardbus.simulation.replication.histories import KINDS, OPEN_MAX, PARTITIONS_USED, LeaseCalls
from shardbus.simulation.replication.linearizability import HistoryEntry, linearizable
from shardbus.simulation.replication.repairs import SpareRepairs
from shardbus.simulation.replication.world import ReplicationWorld, drawn_faults

CALLS = 22
GAP_S = 0.03
"""Seconds between two calls, on average."""
SETTLE_S = 40.0
LOST, OPERATORS = 1.5, 0.2
"""Rates in runs with spares: disks are lost often, and operators come seldom."""


@dataclass(frozen=True, slots=True)
class ReplicationOutcome:
    """The outcome of a run."""

    seed: int
    kind: str
    broken: str
    """The broken rule, "" for none."""
    history: tuple[HistoryEntry, ...]
    outcomes: Counter[str]

    def report(self) -> str:
        """Describe the run, for a person."""
        lines = [f"{self.kind} {self.seed}: {self.broken or 'nothing is broken'}"]
        for entry in sorted(self.history, key=lambda entry: entry.begun):
            sure = "" if entry.must else "  in doubt"
            lines.append(f"  {entry.begun:8.4f} {entry.ended:8.4f}  {entry.name}{sure}")
        return "\n".join(lines)


def simulate_replication(
    kind: str, seed: int, disks: int = 0, spares: int = 0
) -> ReplicationOutcome:
    """Run one seed. Two runs of one seed are the same, in any process. `spares`: disks that take
    the places of those that are lost."""
    dice = Random(f"{kind} {seed}")
    disks = disks or dice.choice((1, 2, 3, 3, 3, 3, 5))
    faults = drawn_faults(dice)
    if spares:
        faults = replace(faults, lost=LOST, operators=faults.operators or OPERATORS)
    world = ReplicationWorld(dice, faults, disks, PARTITIONS_USED)
    calls = KINDS[kind](world)
    world.begin()
    repairs = SpareRepairs(world, spares) if spares else None
    for _ in range(CALLS):
        world.run(dice.expovariate(1 / GAP_S))
        if calls.recorder.open < OPEN_MAX:
            calls.step()
    world.run(dice.uniform(0.0, 0.5))
    world.heal()
    calls.finish()
    world.run(SETTLE_S)
    broken = calls.broken if isinstance(calls, LeaseCalls) else ""
    for replica in world.replicas.values():
        replica.place.check()
    for store in calls.stores:
        store.proposer.check()
        if store.proposer.busy:
            broken = "an operation has no end"
    finals = [entry for entry in calls.recorder.entries if entry.begun >= world.now - SETTLE_S]
    if not all(entry.must for entry in finals):
        broken = "a read has no answer, though no fault is left"
    if not linearizable(calls.recorder.entries, calls.first):
        broken = "the history has no order"
    outcomes = Counter(calls.recorder.outcomes)
    if repairs is not None:
        broken = broken or repairs.broken
        outcomes["repairs"] = repairs.count
    return ReplicationOutcome(seed, kind, broken, tuple(calls.recorder.entries), outcomes)


def main(kind: str, first: str, last: str) -> int:
    """Run seeds, print the first broken one, and the sums."""
    sums: Counter[str] = Counter()
    for seed in range(int(first), int(last)):
        outcome = simulate_replication(kind, seed)
        sums += outcome.outcomes
        if outcome.broken:
            sys.stdout.write(outcome.report() + "\n")
            return 1
    sys.stdout.write(f"{kind} {first} to {last}: nothing is broken {dict(sorted(sums.items()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
