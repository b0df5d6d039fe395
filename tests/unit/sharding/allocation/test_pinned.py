"""Shards that operators have pinned: a table of examples, and laws for every strategy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.ids import Address, NodeId
from shardbus.sharding.allocation.checked import CheckedStrategy, StrategyFault
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.pinned import PinnedShards, without
from shardbus.sharding.allocation.strategies import (
    AllocationStrategy,
    ConsistentHashing,
    LeastShard,
    LeastShardThreshold,
    Move,
)
from tests.unit.sharding.allocation.test_strategies import moved, nodes, table

STRATEGIES = [
    LeastShard(),
    LeastShard(absolute_limit=1),
    LeastShardThreshold(1, 3),
    ConsistentHashing(),
    LeastLoad(),
]


def pinned(inner: AllocationStrategy, **places: NodeId) -> PinnedShards:
    by_shard = {shard.removeprefix("s"): node.address for shard, node in places.items()}
    return PinnedShards(inner, by_shard)


def test_a_pinned_shard_moves_to_its_place_and_the_rest_is_balanced_without_it() -> None:
    a, b = pair = nodes(2)
    before = table([4, 0])
    guard = pinned(LeastShard(), s0=b, s1=a)
    moves = guard.rebalance(before, pair, {})
    assert moves == [Move("0", a, b), Move("3", a, b)]
    after = moved(before, moves)
    assert guard.rebalance(after, pair, {}) == []
    assert LeastShard().rebalance(after, pair, {}) == []


def test_pinned_shards_come_on_top_of_the_share_of_a_node() -> None:
    a, b = pair = nodes(2)
    guard = pinned(LeastShard(), **{f"s{shard}": a for shard in range(4)})
    balanced = table([6, 2])
    assert guard.rebalance(balanced, pair, {}) == []
    assert guard.rebalance(table([8, 0]), pair, {}) == [Move("7", a, b), Move("6", a, b)]


def test_a_place_without_a_candidate_leaves_the_shard_to_the_strategy() -> None:
    a, b, away = nodes(3)
    guard = pinned(LeastShard(), s0=away)
    assert guard.rebalance(table([2, 0]), [a, b], {}) == LeastShard().rebalance(
        table([2, 0]), [a, b], {}
    )
    assert guard.allocate(table([1, 0]), {}, ["9"], [a, b]) == {"9": b}


def test_it_is_allocated_at_its_place_and_the_others_by_the_strategy() -> None:
    a, b = pair = nodes(2)
    guard = pinned(LeastShard(), s7=a)
    assert guard.allocate(table([3, 0]), {}, ["7", "8", "9"], pair) == {"7": a, "8": b, "9": b}
    assert guard.allocate(table([3, 0]), {}, ["7"], pair) == {"7": a}


def test_a_move_under_way_is_not_planned_again_and_a_drained_node_gives_nothing_away() -> None:
    a, b = pair = nodes(2)
    guard = pinned(LeastShard(), s0=b)
    assert guard.rebalance(table([1, 0]), pair, {"0": Move("0", a, b)}) == []
    assert guard.rebalance(table([1, 0]), [b], {}) == [], "the coordinator empties it"


def test_the_table_without_some_shards_keeps_both_directions() -> None:
    before = table([2, 1])
    after = without(before, {"0", "2", "99"})
    after.check()
    assert list(after.homes) == ["1"]
    assert without(before, {"99"}) is before


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    places=st.dictionaries(st.integers(0, 23), st.integers(1, 5), max_size=8),
    which=st.integers(0, len(STRATEGIES) - 1),
)
def test_under_every_strategy_each_pinned_shard_ends_at_its_place_and_stays(
    counts: list[int], places: dict[int, int], which: int
) -> None:
    now, able = table(counts), nodes(len(counts))
    faults: list[StrategyFault] = []
    guard = PinnedShards(
        CheckedStrategy(STRATEGIES[which], faults.append),
        {str(shard): Address("n", port) for shard, port in places.items()},
    )
    for _ in range(60):
        moves = guard.rebalance(now, able, {})
        assert max(Counter(move.shard for move in moves).values(), default=1) == 1
        if not moves:
            break
        now = moved(now, moves)
    else:
        pytest.fail("it never comes to rest")
    at = {node.address: node for node in able}
    for shard, place in guard.places.items():
        if shard in now.homes and place in at:
            assert now.homes[shard].node == at[place]
    assert faults == []
