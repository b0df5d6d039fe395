"""The strategy circular: the examples of the specification, and laws for any table."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.sharding.allocation.circular import Circular, Ring
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.allocation.strategies import AllocationStrategy, LeastShard
from shardbus.sharding.instances import row_of, split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    RegionRegistered,
    RegionTerminated,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
)


class OneType:
    """Nodes in order, and partitions of N instances on them. A node is named by its address."""

    def __init__(self, nodes: list[int], strategy: AllocationStrategy | None = None) -> None:
        self.strategy = DistinctRows(strategy or Circular())
        self.table = ShardTable(1, "crc32/3")
        self.join(nodes)

    def join(self, nodes: list[int]) -> None:
        self.table = self.table.updated_all(RegionRegistered(_node(n)) for n in nodes)

    def place(self, shard: str, instances: int) -> int:
        """Give homes to the rows that have none. Returns how many there were."""
        rows = [row_of(shard, k) for k in range(1, instances + 1)]
        missing = [row for row in rows if row not in self.table.homes]
        homes = self.strategy.allocate(self.table, {}, missing, list(self.table.regions))
        self.table = self.table.updated_all(
            ShardHomeAllocated(Home(row, homes[row], self.table.next_fence)) for row in homes
        )
        self.table.check()
        return len(homes)

    def die(self, node: int) -> None:
        self.table = self.table.updated(RegionTerminated(_node(node)))

    def ordinals(self, shard: str) -> list[int]:
        """The sorted ordinals of the nodes, in the order of the instances."""
        ring = sorted(self.table.regions)
        rows = {split_row(r)[1]: h for r, h in self.table.homes.items() if split_row(r)[0] == shard}
        return [ring.index(rows[k].node) + 1 for k in sorted(rows)]

    @property
    def counts(self) -> list[int]:
        return sorted(len(self.table.shards_at(node)) for node in self.table.regions)


def _node(n: int) -> NodeId:
    return NodeId("10.0.0.1", 1000 + n, n)


def ten(strategy: AllocationStrategy | None = None) -> OneType:
    ring = OneType(list(range(10, 110, 10)), strategy)
    for shard, n in (("A", 4), ("B", 3), ("C", 5)):
        assert ring.place(shard, n) == n
    return ring


def abc(ring: OneType) -> list[list[int]]:
    return [ring.ordinals(shard) for shard in "ABC"]


def test_S3_51_ten_nodes_and_three_partitions() -> None:
    assert abc(ten()) == [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 1, 2]]


def test_S3_53_the_ordinals_of_the_example() -> None:
    """The new nodes come where the example has them: behind the second, fourth, fifth, seventh and
    eighth node of before."""
    ring = ten()
    before = ring.table.homes
    ring.join([25, 45, 55, 75, 85])
    assert abc(ring) == [[1, 2, 4, 5], [7, 9, 10], [12, 14, 15, 1, 2]]
    assert ring.strategy.rebalance(ring.table, list(ring.table.regions), {}) == []
    assert ring.table.homes == before, "all instances are on the same nodes as before"


class ThreeTypes:
    """Three types of one shard each, whose coordinators run on one node and share its ring."""

    def __init__(self, nodes: list[int]) -> None:
        ring = Ring()
        self.types = {name: OneType(nodes, Circular(name, ring)) for name in "ABC"}
        self.sizes = {"A": 4, "B": 3, "C": 5}

    def place(self) -> dict[str, int]:
        """Give homes to the instances that have none. Returns how many there were."""
        return {name: kind.place("0", self.sizes[name]) for name, kind in self.types.items()}

    def check_balance(self) -> None:
        for kind in self.types.values():
            assert kind.strategy.rebalance(kind.table, list(kind.table.regions), {}) == []

    @property
    def ordinals(self) -> list[list[int]]:
        return [kind.ordinals("0") for kind in self.types.values()]


def test_S3_51_and_S3_53_for_three_types() -> None:
    types = ThreeTypes(list(range(10, 110, 10)))
    assert types.place() == types.sizes
    assert types.ordinals == [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 1, 2]]
    for kind in types.types.values():
        kind.join([25, 45, 55, 75, 85])
    types.check_balance()
    assert set(types.place().values()) == {0}
    assert types.ordinals == [[1, 2, 4, 5], [7, 9, 10], [12, 14, 15, 1, 2]]


def test_a_type_counts_the_rows_of_others_as_of_their_last_allocation_or_check() -> None:
    types = ThreeTypes([10, 20, 30, 40])
    a, b = types.types["A"], types.types["B"]
    a.place("0", 2)
    b.place("0", 2)
    assert (a.ordinals("0"), b.ordinals("0")) == ([1, 2], [3, 4])
    a.die(20)  # its rows are freed, and B's coordinator allocates before A's has seen that
    b.place("1", 1)
    assert b.ordinals("1") == [1]
    types.check_balance()
    b.place("2", 1)
    assert b.ordinals("2") == [2]


def test_what_another_type_has_just_placed_counts() -> None:
    types = ThreeTypes([10, 20, 30])
    a, b = types.types["A"], types.types["B"]
    b.place("0", 1)
    a.place("0", 1)
    b.place("1", 1)
    assert [a.ordinals("0"), b.ordinals("0"), b.ordinals("1")] == [[2], [1], [3]]


def test_what_was_placed_and_never_stored_counts_until_the_next_check() -> None:
    types = ThreeTypes([10, 20, 30])
    a, b = types.types["A"], types.types["B"]
    for row in ("0~1", "1~1"):
        a.strategy.allocate(a.table, {}, [row], [_node(20)])
    b.place("0", 1)
    types.check_balance()
    b.place("1", 1)
    b.place("2", 1)
    assert [b.ordinals(shard) for shard in "012"] == [[3], [1], [2]]


def test_a_dead_node_costs_one_start_for_each_row_that_it_had() -> None:
    ring = ten()
    ring.die(30)
    assert [ring.place(shard, n) for shard, n in (("A", 4), ("B", 3), ("C", 5))] == [1, 0, 0]
    assert {_name(ring, "A")[k] for k in range(4)} == {10, 20, 40, 50}
    ring = ten()
    ring.die(10)
    assert [ring.place(shard, n) for shard, n in (("A", 4), ("B", 3), ("C", 5))] == [1, 0, 1]
    assert set(_name(ring, "A")) == {20, 30, 40, 50}
    assert set(_name(ring, "C")) == {80, 90, 100, 20, 30}


def _name(ring: OneType, shard: str) -> list[int]:
    return [h.node.uid for r, h in ring.table.homes.items() if split_row(r)[0] == shard]


def test_one_more_instance_goes_to_the_first_unused_node() -> None:
    ring = ten()
    ring.join([25, 45, 55, 75, 85])
    assert ring.place("C", 6) == 1
    assert ring.ordinals("C") == [12, 14, 15, 1, 2, 3]


def test_three_nodes_host_three_instances_of_all() -> None:
    ring = OneType([10, 20, 30])
    for shard in "ABC":
        assert ring.place(shard, 3) == 3
        assert sorted(ring.ordinals(shard)) == [1, 2, 3]


def test_64_shards_of_three_instances_on_five_nodes() -> None:
    ring = OneType([10, 20, 30, 40, 50])
    for shard in range(64):
        assert ring.place(str(shard), 3) == 3
    assert ring.counts == [38, 38, 38, 39, 39]


def test_a_strategy_that_moves_removes_the_overlap_in_two_moves() -> None:
    ring = ten()
    ring.join([25, 45, 55, 75, 85])
    guard = DistinctRows(LeastShard())
    moves = guard.rebalance(ring.table, list(ring.table.regions), {})
    assert len(moves) == 2
    assert {move.source.uid for move in moves} == {10, 20}
    for move in moves:
        fence = ring.table.next_fence
        ring.table = ring.table.updated_all(
            [
                ShardHomeDeallocated(move.shard),
                ShardHomeAllocated(Home(move.shard, move.target, fence)),
            ]
        )
    assert max(ring.counts) == 1


@given(
    st.integers(1, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), max_size=6),
)
def test_any_ring_has_rows_on_distinct_nodes_and_even_counts(
    nodes: int, counts: list[int], deaths: list[int]
) -> None:
    ring = OneType([10 * n for n in range(1, nodes + 1)])
    sizes = {str(shard): min(n, nodes) for shard, n in enumerate(counts)}
    for shard, n in sizes.items():
        ring.place(shard, n)
    for death in deaths:
        alive = sorted(ring.table.regions)
        if len(alive) == 1:
            break
        ring.die(alive[death % len(alive)].uid)
        for shard, n in sizes.items():
            ring.place(shard, min(n, len(alive) - 1))
    for shard, n in sizes.items():
        at = ring.ordinals(shard)
        assert len(set(at)) == len(at) <= n
    if not deaths and len(set(sizes.values())) == 1:
        assert max(ring.counts) - min(ring.counts) <= 1


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_shards_follow_each_other_around_the_ring(instances: int) -> None:
    ring = OneType([10 * n for n in range(1, 7)])
    for shard in range(12):
        ring.place(str(shard), instances)
    assert set(Counter(ring.counts)) == {2 * instances}


def test_the_least_used_node_comes_before_the_next_on_the_ring() -> None:
    ring = OneType([10, 20, 30])
    for shard in range(3):
        ring.place(str(shard), 1)
    ring.join([25])
    ring.place("3", 1)
    assert _name(ring, "3") == [25]
