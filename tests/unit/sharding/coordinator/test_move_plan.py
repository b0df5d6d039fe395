"""The moves of a plan that have not begun: which of them may begin, in every order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.move_plan import MovePlan

NODES = tuple(NodeId(name, 1, 1) for name in "abcd")
A, B, C, D = NODES

pairs = st.tuples(st.sampled_from(NODES), st.sampled_from(NODES))


def named(drawn: list[tuple[NodeId, NodeId]], prefix: str = "") -> list[Move]:
    return [Move(f"{prefix}{n}", source, target) for n, (source, target) in enumerate(drawn)]


def one_by_one(
    planned: list[Move], targets: set[NodeId], under_way: list[Move], bound: int, most: int | None
) -> tuple[list[Move], list[Move]]:
    """The rule, with a look at every move: the moves that may begin, and those that wait."""
    leaving = Counter(move.source for move in under_way)
    coming = Counter(move.target for move in under_way)
    ready: list[Move] = []
    later: list[Move] = []
    for move in planned:
        if move.target not in targets:
            continue
        full = max(leaving[move.source], coming[move.target]) >= bound
        if full or len(ready) == most:
            later.append(move)
            continue
        leaving[move.source] += 1
        coming[move.target] += 1
        ready.append(move)
    return ready, later


@given(
    st.lists(pairs, max_size=30),
    st.sets(st.sampled_from(NODES)),
    st.lists(pairs, max_size=8),
    st.integers(1, 4),
    st.none() | st.integers(0, 5),
    st.sets(st.integers(0, 29)),
)
def test_what_begins_is_what_a_look_at_every_move_finds(
    drawn: list[tuple[NodeId, NodeId]],
    targets: set[NodeId],
    moving: list[tuple[NodeId, NodeId]],
    bound: int,
    most: int | None,
    gone: set[int],
) -> None:
    planned, under_way = named(drawn), named(moving, "moving ")
    plan = MovePlan(planned)
    for number in gone:
        plan.discard(str(number))
    waiting = [move for move in planned if int(move.shard) not in gone]
    while True:
        expected, waiting = one_by_one(waiting, targets, under_way, bound, most)
        assert plan.take(targets, under_way, bound, most) == expected
        assert len(plan) == len(waiting)
        if not expected:
            break
        under_way = expected  # the former ones have ended


def test_the_first_move_of_the_plan_begins_first_whatever_its_pair() -> None:
    plan = MovePlan(named([(A, B), (C, D), (A, B), (A, D)]))
    assert [move.shard for move in plan.take(NODES, (), 9, None)] == ["0", "1", "2", "3"]


def test_a_turn_looks_at_the_heads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MovePlan(named([(A, D), (B, D)] * 5_000))
    heads: list[object] = []
    put = MovePlan._put_head
    monkeypatch.setattr(
        MovePlan, "_put_head", lambda *arguments: (heads.append(1), put(*arguments))[1]
    )
    assert len(plan.take((D,), (), 4, None)) == 4
    assert len(heads) <= 2 + 4


def test_a_shard_that_is_planned_twice_moves_once() -> None:
    plan = MovePlan([Move("1", A, B), Move("1", A, C)])
    assert plan.take(NODES, (), 9, None) == [Move("1", A, C)]
    assert len(plan) == 0
