"""Measure the cost of membership's values alone: one process, no network.

    python -m benchmarks.membership [nodes ...]

For each size: picking the observed nodes in the ring, comparing and merging two vector clocks,
merging two tables of reachability, merging two states, and a state to bytes and back. Microseconds
a call, the median of several rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from statistics import median
from time import perf_counter

from benchmarks.harness import emit
from shardbus.ids import NodeId
from shardbus.membership.failure.ring import watched
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import GossipState
from shardbus.membership.reachability import Flag, Reachability
from shardbus.membership.vector_clock import VectorClock
from shardbus.wire.gossip import decode, encode

SIZES = (10, 100, 1000)
ROUNDS = 7
ROUND_S = 0.05
MARKS = 20


def microseconds(work: Callable[[], object]) -> float:
    """Return the median time of one call."""
    calls, began = 0, perf_counter()
    while perf_counter() - began < ROUND_S:
        work()
        calls += 1
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        for _ in range(calls):
            work()
        times.append((perf_counter() - began) / calls * 1e6)
    return median(times)


def works(size: int) -> dict[str, Callable[[], object]]:
    """Return the calls to measure for a cluster of `nodes` nodes."""
    dice = Random(size)
    hosts = (f"10.0.{i // 250}.{i % 250}" for i in range(size))
    nodes = sorted(NodeId(host, 7355, dice.getrandbits(64)) for host in hosts)
    clocks = [VectorClock({n: dice.randint(1, 9) for n in nodes}) for _ in range(2)]
    tables = [Reachability(), Reachability()]
    for i in range(MARKS):
        observer, subject = dice.choice(nodes), dice.choice(nodes)
        tables[i % 2] = tables[i % 2].marked(observer, subject, Flag.UNREACHABLE)
    members = {n: Member(n, 7356, status=Status.UP, up_number=i) for i, n in enumerate(nodes, 1)}
    states = [
        Gossip(members, frozenset(nodes[: size // 2]), table, clock)
        for table, clock in zip(tables, clocks, strict=True)
    ]
    message = GossipState(nodes[0], states[0])
    data = encode(message)
    return {
        "ring": lambda: watched(nodes[0], nodes, (), 9),
        "clock_compare": lambda: clocks[0].compare(clocks[1]),
        "clock_merge": lambda: clocks[0].merge(clocks[1]),
        "reachability_merge": lambda: tables[0].merge(tables[1]),
        "state_merge": lambda: states[0].merge(states[1]),
        "state_encode": lambda: encode(message),
        "state_decode": lambda: decode(data),
    }


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or list(SIZES)
    for size in sizes:
        for name, work in works(size).items():
            emit(f"membership_{name}", microseconds(work), "us", nodes=size)


if __name__ == "__main__":
    main()
