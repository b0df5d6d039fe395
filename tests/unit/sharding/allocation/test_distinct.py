"""Rows of a shard on distinct nodes, whatever the strategy wants."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.sharding.allocation.distinct import DistinctRows, nodes_by_shard
from shardbus.sharding.allocation.strategies import LeastShard, Move
from shardbus.sharding.instances import row_of, split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table import RegionRegistered, ShardHomeAllocated, ShardTable

NODES = [NodeId("10.0.0.1", port, port) for port in range(1, 8)]


def table_of(nodes: list[NodeId], homes: dict[str, NodeId]) -> ShardTable:
    table = ShardTable(1, "crc32/9~N").updated_all(RegionRegistered(node) for node in nodes)
    return table.updated_all(
        ShardHomeAllocated(Home(row, node, table.next_fence + n))
        for n, (row, node) in enumerate(homes.items())
    )


def rows(shards: int, count: int) -> list[str]:
    return [row_of(str(s), k) for s in range(shards) for k in range(1, count + 1)]


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 12))
def test_each_row_gets_a_node_of_its_own_or_none(nodes: int, count: int, shards: int) -> None:
    live = NODES[:nodes]
    homes = DistinctRows(LeastShard()).allocate(table_of(live, {}), {}, rows(shards, count), live)
    used = Counter((split_row(row)[0], node) for row, node in homes.items())
    assert max(used.values()) == 1
    assert len(homes) == shards * min(count, nodes)


def test_64_shards_of_3_on_5_nodes_are_balanced() -> None:
    homes = DistinctRows(LeastShard()).allocate(table_of(NODES[:5], {}), {}, rows(64, 3), NODES[:5])
    assert sorted(Counter(homes.values()).values()) == [38, 38, 38, 39, 39]


def test_a_row_of_a_dead_node_goes_where_no_other_row_of_its_shard_is() -> None:
    a, b, c = NODES[:3]
    table = table_of([a, b, c], {"1~1": a, "1~2": b, "2~1": c})
    assert DistinctRows(LeastShard()).allocate(table, {}, ["1~3"], [a, b, c]) == {"1~3": c}
    assert DistinctRows(LeastShard()).allocate(table, {}, ["1~3"], [a, b]) == {}


class Wants:
    """A strategy that wants these moves."""

    def __init__(self, *moves: Move) -> None:
        self._moves = list(moves)

    def allocate(self, *args: object) -> dict[str, NodeId]:
        return {}

    def rebalance(self, *args: object) -> list[Move]:
        return self._moves


def test_a_move_onto_another_row_of_the_shard_is_left_out() -> None:
    a, b, c = NODES[:3]
    table = table_of([a, b, c], {"1~1": a, "1~2": b, "2~1": a, "2~2": a})
    good, bad = Move("2~1", a, c), Move("1~1", a, b)
    late = Move("2~2", a, c)  # c has been given to 2~1 by then
    assert DistinctRows(Wants(bad, good, late)).rebalance(table, [a, b, c], {}) == [good]
    flying = {"2~1": good}
    assert DistinctRows(Wants(late)).rebalance(table, [a, b, c], flying) == []
    assert nodes_by_shard(table) == {"1": {a: None, b: None}, "2": {a: None}}
