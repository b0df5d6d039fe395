"""Balance of loads that follow Zipf's law, with the coordinator's machines and no clock."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.balance import LIMIT, balance, busiest, fewest_moves, filled, moved
from shardbus.ids import NodeId
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import LeastShard, Move

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_S3_20_zipf_loads_are_evened_out_by_few_moves(seed: int) -> None:
    result = balance(LeastLoad(), seed)
    assert result.before > LIMIT
    assert result.busiest <= LIMIT
    assert result.moves <= 1.5 * result.fewest
    assert result.again <= 1, "shards do not go to and fro by the error of samples"


def test_equal_numbers_do_not_even_out_the_load() -> None:
    result = balance(LeastShard(), 0)
    assert (result.moves, result.busiest) == (0, result.before)


def test_S3_20_a_shard_that_is_more_than_a_node_moves_nothing_in_circles() -> None:
    result = balance(LeastLoad(), 1, nodes=20)  # the busiest shard is four nodes' share
    assert result.again <= 2
    assert result.moves < 300


@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(2, 3))
def test_no_plan_has_fewer_moves_than_the_fewest(sizes: list[int], count: int) -> None:
    """Compare the bound with all plans there are."""
    nodes = [NodeId("n", port, port) for port in range(1, count + 1)]
    loads = {str(i): float(size) for i, size in enumerate(sizes)}
    table = filled(list(loads), nodes)
    plans = []
    for homes in product(nodes, repeat=len(sizes)):
        changed = [
            Move(shard, table.homes[shard].node, home)
            for shard, home in zip(loads, homes, strict=True)
            if table.homes[shard].node != home
        ]
        plans.append((busiest(moved(table, changed), loads), len(changed)))
    for reached, _ in plans:
        best = min(moves for even, moves in plans if even <= reached + 1e-9)
        assert fewest_moves(table, loads, reached) <= best
