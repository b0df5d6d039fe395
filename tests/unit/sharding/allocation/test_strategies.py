"""Allocation strategies: tables of examples, and laws that hold for every cluster."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.config.settings import ShardingSettings
from shardbus.ids import Address, NodeId
from shardbus.sharding.allocation.checked import CheckedStrategy, StrategyFault
from shardbus.sharding.allocation.circular import Circular, Ring
from shardbus.sharding.allocation.selection import strategy_of
from shardbus.sharding.allocation.strategies import (
    AllocationStrategy,
    ConsistentHashing,
    External,
    LeastShard,
    LeastShardThreshold,
    Move,
)
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    RegionRegistered,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
)
from tests.records import replace


def nodes(count: int) -> list[NodeId]:
    return [NodeId("n", port, port) for port in range(1, count + 1)]


def table(counts: list[int]) -> ShardTable:
    regions = nodes(len(counts))
    homes = [node for node, count in zip(regions, counts, strict=True) for _ in range(count)]
    return ShardTable(1, "x").updated_all(
        [
            *map(RegionRegistered, regions),
            *(ShardHomeAllocated(Home(str(i), node, i + 1)) for i, node in enumerate(homes)),
        ]
    )


def moved(before: ShardTable, moves: list[Move]) -> ShardTable:
    fence = before.next_fence
    events: list[ShardHomeAllocated | ShardHomeDeallocated] = []
    for index, move in enumerate(moves):
        assert before.homes[move.shard].node == move.source
        events.append(ShardHomeDeallocated(move.shard))
        events.append(ShardHomeAllocated(Home(move.shard, move.target, fence + index)))
    return before.updated_all(events)


def counts_of(of: ShardTable) -> list[int]:
    return [len(shards) for _, shards in sorted(of.regions.items())]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 2, 0], [1, 1, 1]),
        ([2, 0, 0], [1, 1, 0]),
        ([1, 1, 0], [1, 1, 0]),
        ([3, 0, 0], [1, 1, 1]),
        ([4, 4, 0], [3, 3, 2]),
        ([4, 4, 2], [4, 3, 3]),
        ([5, 5, 0], [4, 3, 3]),
        ([50, 50, 0], [34, 33, 33]),
    ],
)
def test_least_shard_balances_in_one_plan(before: list[int], after: list[int]) -> None:
    start = table(before)
    plan = LeastShard().rebalance(start, nodes(3), {})
    assert counts_of(moved(start, plan)) == after


@pytest.mark.parametrize(
    ("absolute", "relative", "expected"), [(0, 1.0, 33), (5, 1.0, 5), (0, 0.1, 10), (20, 0.1, 10)]
)
def test_limits_cut_a_plan(absolute: int, relative: float, expected: int) -> None:
    plan = LeastShard(absolute, relative).rebalance(table([50, 50, 0]), nodes(3), {})
    assert len(plan) == expected
    assert Counter(move.source for move in plan).most_common()[0][1] <= (expected + 1) // 2


def test_moves_under_way_count_as_done_and_against_the_limit() -> None:
    a, b, c = nodes(3)
    start = table([3, 0, 0])
    in_flight = {"0": Move("0", a, b)}
    assert LeastShard().rebalance(start, [a, b, c], in_flight) == [Move("2", a, c)]
    assert LeastShard(absolute_limit=1).rebalance(start, [a, b, c], in_flight) == []


@pytest.mark.parametrize(
    ("counts", "threshold", "most", "expected"),
    [
        ([1, 2, 0], 1, 3, 1),
        ([2, 0, 0], 1, 3, 1),
        ([1, 1, 0], 1, 3, 0),
        ([1, 0, 0], 1, 3, 0),
        ([4, 4, 2], 1, 3, 1),
        ([4, 4, 2], 2, 3, 0),
        ([4, 4, 1], 2, 3, 1),
        ([5, 5, 0], 2, 3, 2),
        ([50, 50, 0], 2, 10, 2),
        ([2, 0, 0], 2, 3, 0),
        ([3, 0, 0], 2, 3, 1),
        ([10, 0, 0], 1, 3, 1),
        ([10, 0, 0], 1, 100, 1),
        ([10, 0, 0], 8, 3, 3),
        ([10, 0, 0], 8, 100, 5),
        ([20, 10, 10], 10, 3, 0),
        ([21, 10, 10], 10, 3, 3),
    ],
)
def test_the_threshold_is_strict(
    counts: list[int], threshold: int, most: int, expected: int
) -> None:
    plan = LeastShardThreshold(threshold, most).rebalance(table(counts), nodes(3), {})
    assert len(plan) == expected
    fullest, emptiest = counts.index(max(counts)), counts.index(min(counts))
    way = nodes(3)[fullest], nodes(3)[emptiest]
    assert {(move.source, move.target) for move in plan} <= {way}


@given(
    counts=st.lists(st.integers(0, 40), min_size=3, max_size=3),
    lower=st.integers(1, 20),
    higher=st.integers(1, 20),
)
def test_S0_31_a_higher_threshold_never_moves_fewer_shards_in_a_round(
    counts: list[int], lower: int, higher: int
) -> None:
    lower, higher = sorted((lower, higher))
    few, many = (
        LeastShardThreshold(threshold, 100).rebalance(table(counts), nodes(3), {})
        for threshold in (lower, higher)
    )
    assert len(many) >= len(few) or many == [], "or the difference is not above the threshold"


def test_S0_31_threshold_one_moves_one_shard_a_round_and_balances_best() -> None:
    rounds: dict[int, list[int]] = {}
    for threshold in (1, 4):
        now, plans = table([30, 0, 0]), []
        while plan := LeastShardThreshold(threshold, 100).rebalance(now, nodes(3), {}):
            plans.append(len(plan))
            now = moved(now, plan)
        rounds[threshold] = plans
        assert max(counts_of(now)) - min(counts_of(now)) <= threshold
    assert set(rounds[1]) == {1}
    assert max(rounds[4]) == 4
    assert len(rounds[4]) < len(rounds[1])


def test_the_threshold_strategy_leaves_room_for_moves_under_way() -> None:
    a, b, _ = nodes(3)
    in_flight = {str(i): Move(str(i), a, b) for i in range(3)}
    assert LeastShardThreshold(1, 3).rebalance(table([10, 0, 0]), nodes(3), in_flight) == []


def test_the_settings_name_a_strategy_and_its_limits() -> None:
    ring = Ring()
    declared = ShardingSettings(
        rebalance_absolute_limit=7,
        rebalance_relative_limit=0.5,
        rebalance_threshold=4,
        max_simultaneous_rebalance=2,
    )
    strategies = {
        "least-shards": LeastShard(7, 0.5),
        "threshold": LeastShardThreshold(4, 2),
        "consistent-hashing": ConsistentHashing(max_moves=7),
        "external": External(7),
        "circular": Circular("t", ring),
    }
    named = {
        name: strategy_of(replace(declared, allocation=name), "t", ring) for name in strategies
    }
    assert named == strategies
    assert strategy_of(ShardingSettings(), "t", ring) == LeastShard()


PLACES = {str(i): NodeId("n", 1 + i % 9, 1).address for i in range(0, 40, 3)} | {"x": ("n", 2)}
STRATEGIES: list[AllocationStrategy] = [
    LeastShard(),
    LeastShardThreshold(),
    ConsistentHashing(),
    External(places={shard: Address(*place) for shard, place in PLACES.items()}),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_a_leaving_region_gets_nothing_and_keeps_what_it_has(strategy: AllocationStrategy) -> None:
    start = table([0, 5, 5])
    candidates = nodes(3)[1:]
    homes = strategy.allocate(start, {}, [f"s{i}" for i in range(20)], candidates)
    assert set(homes.values()) <= set(candidates)
    for move in strategy.rebalance(start, candidates, {}):
        assert {move.source, move.target} <= set(candidates)
    assert strategy.rebalance(start, [], {}) == []


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=6), data=st.data())
@settings(max_examples=40)
def test_the_order_of_candidates_does_not_matter(
    strategy: AllocationStrategy, counts: list[int], data: st.DataObject
) -> None:
    start = table(counts)
    shuffled = data.draw(st.permutations(nodes(len(counts))))
    ordered = nodes(len(counts))
    assert strategy.rebalance(start, shuffled, {}) == strategy.rebalance(start, ordered, {})
    new = ["x", "y", "z"]
    assert strategy.allocate(start, {}, new, shuffled) == strategy.allocate(start, {}, new, ordered)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_least_shard_balances_within_one_with_the_fewest_moves(counts: list[int]) -> None:
    start = table(counts)
    plan = LeastShard().rebalance(start, nodes(len(counts)), {})
    after = counts_of(moved(start, plan))
    assert max(after) - min(after) <= 1
    base, extra = divmod(sum(counts), len(counts))
    quotas = [base + (rank < extra) for rank in range(len(counts))]
    fewest = sum(max(0, n - q) for n, q in zip(sorted(counts, reverse=True), quotas, strict=True))
    assert len(plan) == fewest
    assert LeastShard().rebalance(moved(start, plan), nodes(len(counts)), {}) == []


@given(st.lists(st.integers(0, 60), min_size=5, max_size=20), st.floats(0.05, 1.0))
@settings(max_examples=50)
def test_least_shard_in_parts_gets_there_in_bounded_rounds(
    counts: list[int], relative: float
) -> None:
    strategy = LeastShard(relative_limit=relative)
    now, rounds = table(counts), 0
    while plan := strategy.rebalance(now, nodes(len(counts)), {}):
        now, rounds = moved(now, plan), rounds + 1
        assert rounds <= 2 + sum(counts) // max(1, int(relative * sum(counts)))
    assert max(counts_of(now)) - min(counts_of(now)) <= 1


@given(st.integers(1, 8), st.integers(0, 200))
@settings(max_examples=50)
def test_allocation_of_many_at_once_is_even(count: int, shards: int) -> None:
    start = table([0] * count)
    homes = LeastShard().allocate(start, {}, [str(i) for i in range(shards)], nodes(count))
    per_node = [sum(home == node for home in homes.values()) for node in nodes(count)]
    assert max(per_node) - min(per_node) <= 1


def test_a_node_that_joins_a_ring_only_takes() -> None:
    shards = [str(i) for i in range(500)]
    ring = ConsistentHashing()
    before = ring.allocate(table([0] * 4), {}, shards, nodes(4))
    after = ring.allocate(table([0] * 5), {}, shards, nodes(5))
    changed = [shard for shard in shards if before[shard] != after[shard]]
    assert changed
    assert all(after[shard] == nodes(5)[4] for shard in changed)


def test_a_node_that_restarts_gets_its_shards_back() -> None:
    shards = [str(i) for i in range(100)]
    a, b = nodes(2)
    again = NodeId(b.host, b.port, 999)
    ring = ConsistentHashing()
    before = ring.allocate(table([0, 0]), {}, shards, [a, b])
    after = ring.allocate(table([0, 0]), {}, shards, [a, again])
    assert [s for s in shards if before[s] == b] == [s for s in shards if after[s] == again]


def test_a_ring_plans_until_every_shard_is_where_it_belongs() -> None:
    start = table([40, 0, 0])
    ring = ConsistentHashing(max_moves=7)
    rounds = 0
    while plan := ring.rebalance(start, nodes(3), {}):
        assert len(plan) <= 7
        start, rounds = moved(start, plan), rounds + 1
    assert rounds > 1
    homes = ring.allocate(start, {}, list(start.homes), nodes(3))
    assert homes == {shard: home.node for shard, home in start.homes.items()}


def placed(**places: int) -> External:
    """Shards `s0` ... placed at these nodes, counted from 0; above the last there is no node."""
    return External(places={s[1:]: Address("n", 1 + number) for s, number in places.items()})


def test_a_shard_goes_to_its_place_and_others_to_the_emptiest_region() -> None:
    a, b, c = nodes(3)
    strategy = placed(s10=2, s11=2, s12=2)
    homes = strategy.allocate(table([0, 1, 0]), {}, [str(i) for i in range(10, 15)], [a, b, c])
    assert homes == {"10": c, "11": c, "12": c, "13": a, "14": a}


def test_a_place_without_a_candidate_is_not_waited_for() -> None:
    a, b, c = nodes(3)
    strategy = placed(s7=2, s8=7)
    assert strategy.allocate(table([1, 0]), {}, ["7"], [a, b]) == {"7": b}
    assert strategy.allocate(table([1, 0, 0]), {}, ["7"], [a, b, c]) == {"7": c}
    again = NodeId(c.host, c.port, 999)
    assert strategy.allocate(table([1, 0]), {}, ["7"], [a, b, again]) == {"7": again}


def test_only_shards_with_a_place_elsewhere_move() -> None:
    a, b, c = nodes(3)
    start = table([3, 2, 0])
    assert External().rebalance(start, [a, b, c], {}) == []
    strategy = placed(s0=0, s1=2, s3=2, s4=7)
    assert strategy.rebalance(start, [a, b, c], {}) == [Move("1", a, c), Move("3", b, c)]
    assert strategy.rebalance(start, [a, b], {}) == []
    assert strategy.rebalance(start, [b, c], {}) == [Move("3", b, c)]
    assert strategy.rebalance(start, [a, b, c], {"1": Move("1", a, c)}) == [Move("3", b, c)]
    assert replace(strategy, max_moves=1).rebalance(start, [a, b, c], {}) == [Move("1", a, c)]


@given(
    counts=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    places=st.dictionaries(st.integers(0, 20).map(str), st.integers(1, 9)),
)
def test_one_plan_brings_every_shard_to_its_place(
    counts: list[int], places: dict[str, int]
) -> None:
    start, there = table(counts), nodes(len(counts))
    strategy = External(places={shard: Address("n", port) for shard, port in places.items()})
    after = moved(start, strategy.rebalance(start, there, {}))
    for shard, home in after.homes.items():
        address = Address("n", places.get(shard, 0))
        at_home = home.node == start.homes[shard].node
        assert home.node.address == address or (
            at_home and address.port not in range(1, 1 + len(there))
        )
    assert strategy.rebalance(after, there, {}) == []


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    threshold=st.integers(1, 10),
    most=st.integers(1, 10),
)
@settings(max_examples=60)
def test_the_threshold_strategy_comes_to_rest_within_its_threshold(
    counts: list[int], threshold: int, most: int
) -> None:
    strategy = LeastShardThreshold(threshold, most)
    now, rounds = table(counts), 0
    while plan := strategy.rebalance(now, nodes(len(counts)), {}):
        assert len(plan) <= most
        now, rounds = moved(now, plan), rounds + 1
        assert rounds <= sum(counts), "each plan brings two regions nearer to each other"
    assert max(counts_of(now)) - min(counts_of(now)) <= threshold


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_regions_and_shards_comes_to_balance_in_bounded_rounds(
    seed: int,
) -> None:
    dice = Random(seed)
    regions, shards = dice.randint(5, 100), dice.randint(5, 1000)
    counts = [0] * regions
    for _ in range(shards):
        counts[min(dice.randrange(regions), dice.randrange(regions))] += 1
    absolute, relative = dice.choice([(0, 1.0), (dice.randint(1, 50), 1.0), (0, 0.1), (20, 0.05)])
    strategy, now, rounds = LeastShard(absolute, relative), table(counts), 0
    at_a_time = max(1, min(int(relative * shards), absolute or shards))
    while plan := strategy.rebalance(now, nodes(regions), {}):
        assert len(plan) <= at_a_time
        now, rounds = moved(now, plan), rounds + 1
        assert rounds <= shards // at_a_time + 1
    assert max(counts_of(now)) - min(counts_of(now)) <= 1


def test_a_node_that_leaves_a_ring_moves_only_what_it_held() -> None:
    shards = [str(i) for i in range(500)]
    ring, five = ConsistentHashing(), nodes(5)
    before = ring.allocate(table([0] * 5), {}, shards, five)
    after = ring.allocate(table([0] * 5), {}, shards, five[:2] + five[3:])
    changed = [shard for shard in shards if before[shard] != after[shard]]
    assert changed == [shard for shard in shards if before[shard] == five[2]]
    assert len({after[shard] for shard in changed}) > 1, "and spreads it"


def test_a_ring_counts_moves_under_way_against_its_limit() -> None:
    start, three = table([40, 0, 0]), nodes(3)
    ring = ConsistentHashing(max_moves=5)
    first = ring.rebalance(start, three, {})
    under_way = {move.shard: move for move in first[:3]}
    rest = ring.rebalance(start, three, under_way)
    assert len(first) == 5
    assert len(rest) == 2
    assert not under_way.keys() & {move.shard for move in rest}
    assert ring.rebalance(start, three, {move.shard: move for move in first}) == []


# -- strategies that are wrong -------------------------------------------------------------------


class Wrong:
    """Returns or raises a test's value."""

    def __init__(self, homes: Any = None, moves: Any = ()) -> None:
        self.homes, self.moves = homes, moves

    def allocate(self, *args: Any) -> Any:
        if isinstance(self.homes, BaseException):
            raise self.homes
        return self.homes

    def rebalance(self, *args: Any) -> Any:
        if isinstance(self.moves, BaseException):
            raise self.moves
        return self.moves


def checked(strategy: Wrong) -> tuple[CheckedStrategy, list[str]]:
    faults: list[str] = []
    return CheckedStrategy(strategy, lambda fault: faults.append(" ".join(fault))), faults


async def late_answer() -> dict[str, NodeId]:
    return {}


class NoException(BaseException):
    """An error that no `except Exception` catches."""


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ({"x": "B", "y": "B", "z": "A"}, []),
        ({"x": "B", "y": "B"}, ["allocate gave no candidate  for shard 'z'"]),
        ({"x": "B", "y": "B", "z": "C"}, ["allocate gave no candidate  for shard 'z'"]),
        (ValueError("no"), ["allocate raised ValueError : no"]),
        (SystemExit(2), ["allocate raised SystemExit : 2"]),
        (StopIteration(), ["allocate raised StopIteration"]),
        (NoException(), ["allocate raised NoException"]),
        (None, ["allocate raised AttributeError : 'NoneType' object has no attribute 'get'"]),
        ({"x": []}, ["allocate raised TypeError"]),
        (late_answer, ["allocate raised TypeError : a coroutine is no answer: write a plain"]),
    ],
)
def test_a_shard_without_a_usable_answer_goes_to_the_emptiest_region(
    answer: Any, reported: list[str]
) -> None:
    a, b, c = nodes(3)
    named = {"A": a, "B": b, "C": c}
    wrong = answer
    if isinstance(answer, dict):
        wrong = {s: named[n] if isinstance(n, str) else n for s, n in answer.items()}
    elif answer is late_answer:
        wrong = late_answer()
    strategy, faults = checked(Wrong(wrong))
    homes = strategy.allocate(table([0, 0, 0]), {}, ["x", "y", "z"], [a, b])
    assert homes.keys() == {"x", "y", "z"}
    assert set(homes.values()) <= {a, b}
    if isinstance(answer, dict) and len(answer) > 1:
        assert homes == {"x": b, "y": b, "z": a}
    texts = [text[: len(report)] for text, report in zip(faults, reported, strict=True)]
    assert texts == reported
    assert strategy.calling == ""


def test_impossible_moves_are_left_out() -> None:
    a, b, c = nodes(3)
    good = Move("0", a, b)
    under_way = {"1": Move("1", a, b)}
    wrong = [
        good,
        Move("0", a, c),
        Move("1", a, b),
        Move("2", b, c),
        Move("2", a, a),
        Move("2", a, NodeId("x", 1, 1)),
        Move("unknown", a, b),
    ]
    strategy, faults = checked(Wrong(moves=wrong))
    assert strategy.rebalance(table([3, 0, 0]), [a, b, c], under_way) == [good]
    assert faults
    broken_ones = (RuntimeError("no"), SystemExit(1), None, [1], [("0", a)], 7, late_answer())
    for broken in broken_ones:
        strategy, faults = checked(Wrong(moves=broken))
        assert strategy.rebalance(table([3, 0, 0]), [a, b, c], {}) == []
        assert len(faults) == 1


@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=6))
@settings(max_examples=40)
def test_the_strategies_of_shardbus_cause_no_faults(counts: list[int]) -> None:
    start, there = table(counts), nodes(len(counts))
    for plain in STRATEGIES:
        faults: list[StrategyFault] = []
        strategy = CheckedStrategy(plain, faults.append)
        assert strategy.rebalance(start, there, {}) == plain.rebalance(start, there, {})
        assert strategy.allocate(start, {}, ["x"], there) == plain.allocate(start, {}, ["x"], there)
        assert faults == []
