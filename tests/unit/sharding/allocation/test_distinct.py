"""Rows of a shard on distinct nodes, under every strategy."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.sharding.allocation.distinct import DistinctRows, nodes_by_shard
from shardbus.sharding.allocation.strategies import LeastShard, Move
from shardbus.sharding.instances import row_of, split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    RegionRegistered,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
)

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


# Zones


def zoned(nodes: list[NodeId], names: str) -> dict[NodeId, str]:
    """Give the nodes these zones, a letter each; a dot is none."""
    return {node: name for node, name in zip(nodes, names, strict=True) if name != "."}


def zones_of(homes: dict[str, NodeId], zones: dict[NodeId, str]) -> dict[str, Counter[object]]:
    """The zones of the rows of each shard."""
    by_shard: dict[str, Counter[object]] = {}
    for row, node in homes.items():
        by_shard.setdefault(split_row(row)[0], Counter())[zones.get(node) or node] += 1
    return by_shard


@given(st.text("abc.", min_size=1, max_size=7), st.integers(1, 5), st.integers(1, 12))
def test_S3_47_rows_lie_in_as_many_zones_as_there_are(names: str, count: int, shards: int) -> None:
    live = NODES[: len(names)]
    zones = zoned(live, names)
    strategy = DistinctRows(LeastShard(), zones)
    homes = strategy.allocate(table_of(live, {}), {}, rows(shards, count), live)
    there = len({zones.get(node) or node for node in live})
    for zones_ in zones_of(homes, zones).values():
        assert len(zones_) == min(count, there)
    assert len(set(homes.items())) == shards * min(count, len(live))
    used = Counter((split_row(row)[0], node) for row, node in homes.items())
    assert max(used.values()) == 1


def test_without_zones_nothing_changes() -> None:
    expected = rows(64, 3)
    plain = DistinctRows(LeastShard()).allocate(table_of(NODES[:5], {}), {}, expected, NODES[:5])
    assert plain == DistinctRows(LeastShard(), {}).allocate(
        table_of(NODES[:5], {}), {}, expected, NODES[:5]
    )


def settled(strategy: DistinctRows, table: ShardTable, live: list[NodeId]) -> ShardTable:
    """Carry out plans until there is none."""
    for _ in range(60):
        moves = strategy.rebalance(table, live, {})
        if not moves:
            return table
        for move in moves:
            assert table.homes[move.shard].node == move.source
            home = Home(move.shard, move.target, table.next_fence)
            table = table.updated_all([ShardHomeDeallocated(move.shard), ShardHomeAllocated(home)])
    raise AssertionError("the plans do not come to an end")


@given(st.text("abc.", min_size=2, max_size=7), st.integers(1, 6), st.integers(1, 4))
def test_S3_47_rows_spread_over_zones_that_came_later_and_come_to_rest(
    names: str, before: int, count: int
) -> None:
    live, old = NODES[: len(names)], NODES[: min(before, len(names))]
    zones = zoned(live, names)
    count = min(count, len(old))
    expected = rows(6, count)
    first = DistinctRows(LeastShard(), zones).allocate(table_of(old, {}), {}, expected, old)
    table = settled(DistinctRows(LeastShard(), zones), table_of(live, first), live)
    homes = {row: home.node for row, home in table.homes.items()}
    there = len({zones.get(node) or node for node in live})
    for counts in zones_of(homes, zones).values():
        assert len(counts) == min(count, there)
    used = Counter((split_row(row)[0], node) for row, node in homes.items())
    assert max(used.values()) == 1


def test_a_move_into_the_zone_of_another_row_is_left_out() -> None:
    a, b, c, d = NODES[:4]
    zones = zoned([a, b, c, d], "xyyz")
    table = table_of([a, b, c, d], {"1~1": a, "1~2": b, "2~1": b, "2~2": d})
    bad, same, good = Move("1~1", a, c), Move("1~2", b, c), Move("2~1", b, a)
    strategy = DistinctRows(Wants(bad, same, good), zones)
    assert strategy.rebalance(table, [a, b, c, d], {}) == [same, good]


def test_one_row_of_a_shard_spreads_at_a_time() -> None:
    a, b, c, d, e = NODES[:5]
    zones = zoned([a, b, c, d, e], "xxxyz")
    table = table_of([a, b, c, d, e], {"1~1": a, "1~2": b, "1~3": c})
    strategy = DistinctRows(Wants(), zones)
    [move] = strategy.rebalance(table, [a, b, c, d, e], {})
    assert (move.shard, move.target) == ("1~1", d)
    assert strategy.rebalance(table, [a, b, c, d, e], {move.shard: move}) == []
    assert strategy.rebalance(table, [a, b, c], {}) == [], "there is no other zone"


class Wants:
    """A strategy that plans these moves."""

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
