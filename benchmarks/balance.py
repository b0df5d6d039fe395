"""Balance shards whose loads follow Zipf's law: how even nodes become, and by how many moves.

    python -m benchmarks.balance                       20 seeds of 300 shards on 5 nodes
    python -m benchmarks.balance --seeds 100 --nodes 9

The machines of a coordinator run without network and clock. Regions report every `REPORT_S` seconds
the sampled loads, with their error; `load_estimates` averages it, `least-load` plans with it, and
each move takes place at once. The baseline is `least-shards` on the same shards, which evens out
their number. The figures do not depend on the machine.

`busiest` is the load of the busiest node, as a part of the mean of all nodes. `moves_ratio` is the
number of moves to the fewest by which any plan could make nodes as even as this one did. That
number is a lower bound: the busiest shard may end on any node, and every node gives away its
largest shards until it is no busier than the busiest is now, whatever it receives. Its own line,
`moves_ratio_to_limit`, compares with the fewest that reach `LIMIT`; the strategy goes on until
nodes are more even than that.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.harness import emit, median
from shardbus.ids import NodeId
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import AllocationStrategy, LeastShard, Move
from shardbus.sharding.coordinator.load_estimates import LoadEstimates
from shardbus.sharding.messages import Home, ShardLoads
from shardbus.sharding.table import (
    RegionRegistered,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
)

EXPONENT = 1.1
REPORT_S = 5.0
ROUNDS = 40
"""Reports of each region, two for each check of the balance."""
COOL_DOWN_S = 60.0
SAMPLES = 2500
"""Samples of a node in one report."""
LIMIT = 1.2


@dataclass(frozen=True)
class Outcome:
    """The result of one seed: the load of the busiest node as a part of the mean before and after,
    the moves, how many shards moved twice or more, and the fewest moves to the reached load and to
    `LIMIT`."""

    before: float
    busiest: float
    moves: int
    again: int
    fewest: int
    fewest_to_limit: int


def zipf(shards: int, dice: Random) -> dict[str, float]:
    """Return the loads of that many shards: the k-th busiest has 1 / k ** EXPONENT of the first."""
    ranks = list(range(1, shards + 1))
    dice.shuffle(ranks)
    return {str(i): 1000.0 * rank**-EXPONENT for i, rank in enumerate(ranks)}


def filled(shards: Sequence[str], nodes: Sequence[NodeId]) -> ShardTable:
    """Return a table with equal numbers of shards on each node."""
    table = ShardTable(1, "crc32").updated_all(map(RegionRegistered, nodes))
    homes = LeastShard().allocate(table, {}, shards, nodes)
    return table.updated_all(
        ShardHomeAllocated(Home(shard, node, i)) for i, (shard, node) in enumerate(homes.items(), 1)
    )


def moved(table: ShardTable, moves: Iterable[Move]) -> ShardTable:
    """Return the table after these moves."""
    for move in moves:
        home = Home(move.shard, move.target, table.next_fence)
        table = table.updated_all([ShardHomeDeallocated(move.shard), ShardHomeAllocated(home)])
    return table


def busiest(table: ShardTable, loads: Mapping[str, float]) -> float:
    """Return the load of the busiest node, as a part of the mean."""
    totals = [sum(loads[s] for s in table.shards_at(node)) for node in table.regions]
    return max(totals) * len(totals) / sum(totals)


def fewest_moves(table: ShardTable, loads: Mapping[str, float], most: float) -> int:
    """Return a number of moves below which no plan brings every node to `most` of the mean."""
    cap = most * sum(loads.values()) / len(table.regions)
    top = max(loads, key=loads.__getitem__)
    candidates = []
    for end in table.regions:  # the node that has the busiest shard at last
        moves = int(table.homes[top].node != end)
        for node in table.regions:
            sizes = sorted(loads[s] for s in table.shards_at(node) if s != top)
            left = sum(sizes) + (loads[top] if node == end else 0.0)
            while sizes and left > cap * (1 + 1e-9):
                left -= sizes.pop()
                moves += 1
        candidates.append(moves)
    return min(candidates)


def measured(loads: Mapping[str, float], shards: Iterable[str], dice: Random) -> dict[str, float]:
    """Return the sampled loads: each shard gets its part of the samples, as chance has it."""
    shard_loads = {shard: loads[shard] for shard in shards}
    whole = sum(shard_loads.values())
    loads_of = {}
    for shard, load in shard_loads.items():
        expected = SAMPLES * load / whole
        samples = max(0.0, dice.gauss(expected, expected**0.5))
        loads_of[shard] = whole * samples / SAMPLES
    return loads_of


def balance(strategy: AllocationStrategy, seed: int, shards: int = 300, nodes: int = 5) -> Outcome:
    """Let a coordinator's strategy even out the load of these nodes."""
    dice = Random(seed)
    loads = zipf(shards, dice)
    live = [NodeId("10.0.0.1", port, port) for port in range(1, nodes + 1)]
    table = start = filled(list(loads), live)
    estimates, moves = LoadEstimates("messages", COOL_DOWN_S), dict[str, int]()
    for round_ in range(ROUNDS):
        now = round_ * REPORT_S
        for node in live:
            report = ShardLoads(node, measured(loads, table.shards_at(node), dice))
            estimates.record(report, table, now)
        if round_ % 2 == 0:
            continue
        if isinstance(strategy, LeastLoad):
            strategy = replace(
                strategy, loads=estimates.shard_loads(table), resting=estimates.resting(now)
            )
        planned = strategy.rebalance(table, live, {})
        table = moved(table, planned)
        estimates.moved((move.shard for move in planned), now)
        for move in planned:
            moves[move.shard] = moves.get(move.shard, 0) + 1
    reached = busiest(table, loads)
    return Outcome(
        busiest(start, loads),
        reached,
        sum(moves.values()),
        sum(count > 1 for count in moves.values()),
        fewest_moves(start, loads, reached),
        fewest_moves(start, loads, max(LIMIT, reached)),
    )


def main() -> None:
    """Print the medians of the seeds, and the worst."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balance")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--shards", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=5)
    chosen = parser.parse_args()
    parameters = {"shards": chosen.shards, "nodes": chosen.nodes, "seeds": chosen.seeds}
    for name, strategy in (("least_shards", LeastShard()), ("least_load", LeastLoad())):
        results = [
            balance(strategy, seed, chosen.shards, chosen.nodes) for seed in range(chosen.seeds)
        ]
        figures = {
            "before": [result.before for result in results],
            "busiest": [result.busiest for result in results],
            "moves": [float(result.moves) for result in results],
            "moved_again": [float(result.again) for result in results],
            "moves_ratio": [result.moves / max(1, result.fewest) for result in results],
            "moves_ratio_to_limit": [run.moves / max(1, run.fewest_to_limit) for run in results],
        }
        for figure, values in figures.items():
            unit = "moves" if figure in ("moves", "moved_again") else "x"
            emit(
                f"balance_{name}_{figure}",
                median(values),
                unit,
                **parameters,
                worst=round(max(values), 3),
            )


if __name__ == "__main__":
    main()
