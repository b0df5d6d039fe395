"""The forecast, against the guarantees of the strategies for any table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.sharding.allocation.forecast import ROUNDS_MAX, forecast
from shardbus.sharding.allocation.strategies import (
    AllocationStrategy,
    ConsistentHashing,
    LeastShard,
    LeastShardThreshold,
    Move,
)
from shardbus.sharding.messages import Home
from shardbus.sharding.table import RegionRegistered, ShardHomeAllocated, ShardTable

NODES = [NodeId(f"n{i}", 1, i) for i in range(6)]
counts_of_nodes = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def table_of(counts: list[int]) -> ShardTable:
    """A table in which each node has that number of shards."""
    table = ShardTable(1, "crc32/100").updated_all(map(RegionRegistered, NODES[: len(counts)]))
    owners = [node for node, count in zip(NODES, counts, strict=False) for _ in range(count)]
    return table.updated_all(
        ShardHomeAllocated(Home(str(i), node, table.next_fence + i))
        for i, node in enumerate(owners)
    )


@given(counts_of_nodes, st.integers(0, 3), st.data())
def test_least_shard_ends_even_with_the_fewest_moves(
    counts: list[int], add: int, data: st.DataObject
) -> None:
    table = table_of(counts)
    nodes = list(table.regions)
    remove = tuple(data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=len(nodes))))
    seen = forecast(LeastShard(), table, nodes, add, remove)
    kept = len(nodes) - len(remove) + add
    assert seen.settled
    assert seen.before == {node: len(table.shards_at(node)) for node in sorted(nodes)}
    if not kept:
        assert seen.moved == {}
        return
    assert sum(seen.after.values()) == sum(counts)
    assert max(seen.after.values()) - min(seen.after.values()) <= 1
    assert not any(node in seen.after for node in remove)
    must = sum(max(0, seen.before.get(n, 0) - c) for n, c in seen.after.items())
    must += sum(seen.before[n] for n in remove)
    assert len(seen.moved) == must
    assert all(table.homes[s].node == a and a != b for s, (a, b) in seen.moved.items())


@pytest.mark.parametrize(
    "strategy", [LeastShardThreshold(1, 3), ConsistentHashing(), LeastShard(2)]
)
def test_every_strategy_comes_to_rest(strategy: AllocationStrategy) -> None:
    table = table_of([20, 0, 3])
    seen = forecast(strategy, table, NODES[:3], 2, (NODES[1],))
    assert seen.settled
    assert sum(seen.after.values()) == 23
    again = forecast(strategy, table, NODES[:3], 2, (NODES[1],))
    assert again == seen


def test_nothing_moves_if_no_node_comes_or_goes() -> None:
    seen = forecast(LeastShard(), table_of([4, 4, 4]), NODES[:3])
    assert (seen.moved, seen.rounds, seen.before) == ({}, 0, seen.after)


def test_a_node_that_is_no_candidate_gets_nothing() -> None:
    seen = forecast(LeastShard(), table_of([9, 0, 0]), NODES[:2])
    assert seen.after == {NODES[0]: 5, NODES[1]: 4, NODES[2]: 0}


class Restless:
    """Moves a shard to and fro for ever."""

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        return dict.fromkeys(shards, next(iter(candidates)))

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        home = table.homes["0"]
        return [Move("0", home.node, next(n for n in candidates if n != home.node))]


def test_a_strategy_that_never_comes_to_rest_is_stopped_and_reported() -> None:
    seen = forecast(Restless(), table_of([1, 0]), NODES[:2])
    assert not seen.settled
    assert seen.rounds == ROUNDS_MAX
