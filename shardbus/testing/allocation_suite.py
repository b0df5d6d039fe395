"""`AllocationSuite`: the laws of every allocation strategy, as a class of tests for an own one.

    class TestMyStrategy(AllocationSuite):
        @pytest.fixture
        def strategy(self):
            return MyStrategy()

A coordinator survives a strategy that breaks these laws: it checks every answer, and puts a shard
without a valid answer to the region with the fewest. The shards are then not at the strategy's
homes. A strategy that never comes to rest moves shards for ever.

The tables are drawn from fixed seeds. Some have regions that are no candidates, as on nodes that
leave; some have shards without a home, and moves under way.

Source: docs/how-to/tune.md; `shardbus.sharding.allocation.strategies`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    RegionRegistered,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
)

CASES = 60
NODES_MAX, SHARDS_MAX = 7, 60
ROUNDS_MAX = 2 * SHARDS_MAX
"""Plans after which a strategy must have come to rest, if nothing else changes."""


@dataclass(frozen=True, slots=True)
class AllocationCase:
    """One situation of a coordinator. `seed` draws it."""

    seed: int
    table: ShardTable
    candidates: Sequence[NodeId]
    homeless: Sequence[str]
    """Shards without a home."""
    loads: Mapping[str, float]
    in_flight: Mapping[str, Move]

    @property
    def question(self) -> tuple[ShardTable, Mapping[str, float], Sequence[str], Sequence[NodeId]]:
        """The arguments of `allocate`."""
        return self.table, self.loads, self.homeless, self.candidates


def allocation_case(seed: int) -> AllocationCase:
    """Draw a situation. The same seed gives the same one."""
    dice = Random(f"allocation {seed}")
    nodes = [NodeId(f"10.0.0.{n + 1}", 7355, dice.getrandbits(64)) for n in range(NODES_MAX)]
    nodes = nodes[: dice.randint(1, NODES_MAX)]
    shards = [str(number) for number in range(dice.randint(1, SHARDS_MAX))]
    favoured = dice.sample(nodes, dice.randint(1, len(nodes)))
    table = ShardTable(1, "crc32/100").updated_all(map(RegionRegistered, nodes))
    homed = [shard for shard in shards if dice.random() < 0.8]
    homes = [Home(s, dice.choice(favoured), n + 1) for n, s in enumerate(homed)]
    table = table.updated_all(map(ShardHomeAllocated, homes))
    candidates = sorted(dice.sample(nodes, dice.randint(1, len(nodes))))
    in_flight = {}
    for home in homes:
        targets = [node for node in candidates if node != home.node]
        if targets and dice.random() < 0.1:
            in_flight[home.shard] = Move(home.shard, home.node, dice.choice(targets))
    loads = {shard: dice.expovariate(0.1) for shard in shards if dice.random() < 0.7}
    homeless = [shard for shard in shards if shard not in table.homes]
    return AllocationCase(seed, table, candidates, homeless, loads, in_flight)


def after(table: ShardTable, moves: Collection[Move]) -> ShardTable:
    """Return the table after these moves."""
    fence = table.next_fence
    events: list[ShardHomeAllocated | ShardHomeDeallocated] = []
    for number, move in enumerate(moves):
        events.append(ShardHomeDeallocated(move.shard))
        events.append(ShardHomeAllocated(Home(move.shard, move.target, fence + number)))
    return table.updated_all(events)


class AllocationSuite:
    """The tests. Subclass it, and give it a `strategy`."""

    @pytest.fixture
    def strategy(self) -> AllocationStrategy:
        """Return the strategy. A subclass gives its own."""
        raise NotImplementedError("give the suite a fixture strategy")

    @pytest.fixture
    def cases(self) -> list[AllocationCase]:
        """Return the situations. A failure shows its `case` with the seed."""
        return [allocation_case(seed) for seed in range(CASES)]

    def test_each_shard_gets_a_candidate(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            homes = strategy.allocate(*case.question)
            assert sorted(homes) == sorted(case.homeless)
            assert set(homes.values()) <= set(case.candidates)

    def test_nothing_to_allocate_is_no_error(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            assert dict(strategy.allocate(case.table, {}, [], case.candidates)) == {}

    def test_each_move_is_possible(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            moves = strategy.rebalance(case.table, case.candidates, case.in_flight)
            shards = [move.shard for move in moves]
            assert len(shards) == len(set(shards)), "a shard moves once in a plan"
            assert not set(shards) & set(case.in_flight), "a shard that moves already is left alone"
            for move in moves:
                assert case.table.homes[move.shard].node == move.source != move.target
                assert move.target in case.candidates
                assert move.source in case.candidates, "a node that leaves does it itself"

    def test_the_same_question_has_the_same_answer(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        """The answer does not depend on the order of the candidates, which nodes see differently,
        nor on earlier questions."""
        for case in cases:
            turned = list(reversed(case.candidates))
            homes = dict(strategy.allocate(*case.question))
            moves = list(strategy.rebalance(case.table, case.candidates, case.in_flight))
            again = strategy.allocate(case.table, case.loads, case.homeless, turned)
            assert dict(again) == homes
            assert list(strategy.rebalance(case.table, turned, case.in_flight)) == moves

    def test_the_question_is_left_as_it_is(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            before = deepcopy(case)
            strategy.allocate(*case.question)
            strategy.rebalance(case.table, case.candidates, case.in_flight)
            assert case == before

    def test_without_a_candidate_nothing_moves(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            assert list(strategy.rebalance(case.table, [], {})) == []

    def test_moving_comes_to_rest(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        for case in cases:
            table = case.table
            for _ in range(ROUNDS_MAX):
                moves = strategy.rebalance(table, case.candidates, {})
                if not moves:
                    break
                table = after(table, moves)
            else:
                pytest.fail(f"case {case.seed}: it still moves shards after {ROUNDS_MAX} plans")

    def test_a_plan_does_not_undo_moves_under_way(
        self, strategy: AllocationStrategy, cases: list[AllocationCase]
    ) -> None:
        """A shard of a plan under way is not moved again once it has arrived, if the whole plan was
        made for this table."""
        for case in cases:
            moves = strategy.rebalance(case.table, case.candidates, {})
            arrived, under_way = moves[: len(moves) // 2], moves[len(moves) // 2 :]
            table = after(case.table, arrived)
            in_flight = {move.shard: move for move in under_way}
            more = strategy.rebalance(table, case.candidates, in_flight)
            assert not {move.shard for move in more} & {move.shard for move in moves}
