"""The suite for strategies accepts shardbus's own, and finds each law broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from shardbus import ConsistentHashing, LeastShard, LeastShardThreshold
from shardbus.ids import Address, NodeId
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import AllocationStrategy, External, Move
from shardbus.sharding.table import ShardTable
from shardbus.testing.allocation_suite import CASES, AllocationSuite, allocation_case

SOUND: dict[str, Callable[[], AllocationStrategy]] = {
    "least-shards": LeastShard,
    "least-shards-limited": lambda: LeastShard(absolute_limit=3),
    "threshold": lambda: LeastShardThreshold(threshold=2),
    "consistent-hashing": ConsistentHashing,
    "least-load": lambda: LeastLoad(loads={str(n): float(n % 7) for n in range(60)}),
    "external": lambda: External(
        places={str(n): Address(f"10.0.0.{n % 7 + 1}", 7355) for n in range(0, 60, 3)}
    ),
}


class TestStrategies(AllocationSuite):
    @pytest.fixture(params=list(SOUND))
    def strategy(self, request: pytest.FixtureRequest) -> AllocationStrategy:
        return SOUND[request.param]()


class Leaves(LeastShard):
    """Leaves a shard out."""

    def allocate(self, *arguments: Any) -> dict[str, NodeId]:
        homes = super().allocate(*arguments)
        return dict(list(homes.items())[1:])


class Anywhere(LeastShard):
    """Puts shards at any region, candidate or not."""

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        return super().allocate(table, loads, shards, list(table.regions))


class Needs(LeastShard):
    """Fails without a shard."""

    def allocate(self, table: Any, loads: Any, shards: Any, candidates: Any) -> dict[str, NodeId]:
        assert shards[0]
        return super().allocate(table, loads, shards, candidates)


class ByOrder(LeastShard):
    """Goes by the order of the candidates."""

    def allocate(self, table: Any, loads: Any, shards: Any, candidates: Any) -> dict[str, NodeId]:
        return dict.fromkeys(shards, next(iter(candidates)))


class Changes(LeastShard):
    """Changes its argument."""

    def allocate(self, table: Any, loads: Any, shards: Any, candidates: Any) -> dict[str, NodeId]:
        homes = super().allocate(table, loads, shards, candidates)
        loads["0"] = 1e9
        return homes


class Again(LeastShard):
    """Moves shards that move already."""

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        return super().rebalance(table, candidates, {})


class Restless(LeastShard):
    """Moves a shard to and fro."""

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        for shard, home in sorted(table.homes.items()):
            others = sorted(set(candidates) - {home.node})
            if shard not in in_flight and home.node in candidates and others:
                return [Move(shard, home.node, others[0])]
        return []


class Remembers:
    """Answers one question otherwise each time the other one was put. `about`: the one whose
    answer changes."""

    def __init__(self, about: str) -> None:
        self.inner, self.about, self.questions = LeastShard(), about, Counter[str]()

    def _others(self, about: str, candidates: Collection[NodeId]) -> list[NodeId]:
        """Return the candidates for an answer: without the first one after an odd number of the
        other question."""
        self.questions[about] += 1
        odd = sum(self.questions.values()) - self.questions[about]
        return sorted(candidates)[odd % 2 if about == self.about else 0 :]

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        return self.inner.allocate(table, loads, shards, self._others("allocate", candidates))

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        return self.inner.rebalance(table, self._others("rebalance", candidates), in_flight)


class Rescues(LeastShard):
    """Moves shards of nodes that leave, also when there is no candidate."""

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        targets = sorted(candidates) or sorted(table.regions)
        return [
            Move(shard, home.node, targets[0])
            for shard, home in table.homes.items()
            if home.node not in candidates and shard not in in_flight
        ]


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "leaves": (Leaves, "test_each_shard_gets_a_candidate"),
    "anywhere": (Anywhere, "test_each_shard_gets_a_candidate"),
    "needs": (Needs, "test_nothing_to_allocate_is_no_error"),
    "by-order": (ByOrder, "test_the_same_question_has_the_same_answer"),
    "remembers-moves": (
        lambda: Remembers("allocate"),
        "test_the_same_question_has_the_same_answer",
    ),
    "remembers-homes": (
        lambda: Remembers("rebalance"),
        "test_the_same_question_has_the_same_answer",
    ),
    "changes": (Changes, "test_the_question_is_left_as_it_is"),
    "again": (Again, "test_each_move_is_possible"),
    "again-under-way": (Again, "test_a_plan_does_not_undo_moves_under_way"),
    "restless": (Restless, "test_moving_comes_to_rest"),
    "rescues": (Rescues, "test_each_move_is_possible"),
    "rescues-nowhere": (Rescues, "test_without_a_candidate_nothing_moves"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_law_is_found(name: str) -> None:
    make, law = BROKEN[name]
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        getattr(AllocationSuite(), law)(make(), [allocation_case(seed) for seed in range(CASES)])


def test_the_cases_are_many_and_differ() -> None:
    cases = [allocation_case(seed) for seed in range(CASES)]
    assert [allocation_case(seed) for seed in range(CASES)] == cases
    assert len({str(case) for case in cases}) == CASES
    assert any(set(case.table.regions) - set(case.candidates) for case in cases)
    assert any(case.in_flight for case in cases)
    assert any(not case.homeless for case in cases)
    assert sum(len(case.candidates) > 2 for case in cases) > CASES // 4
