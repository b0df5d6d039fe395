"""Vector clocks against a dumb reference that counts events one by one. T.U6."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.membership.vector_clock import Order, VectorClock

A, B, C = (NodeId(host, 1, 1) for host in "abc")


def clock(**counts: int) -> VectorClock:
    return VectorClock({NodeId(host, 1, 1): count for host, count in counts.items()})


@pytest.mark.parametrize(
    ("first", "other", "order"),
    [
        (clock(), clock(), Order.SAME),
        (clock(a=1), clock(a=1), Order.SAME),
        (clock(a=0), clock(), Order.SAME),
        (clock(), clock(a=1), Order.BEFORE),
        (clock(a=1), clock(a=2), Order.BEFORE),
        (clock(a=1), clock(a=1, b=1), Order.BEFORE),
        (clock(a=2), clock(a=1), Order.AFTER),
        (clock(a=1, b=1), clock(b=1), Order.AFTER),
        (clock(a=1), clock(b=1), Order.CONCURRENT),
        (clock(a=2, b=1), clock(a=1, b=2), Order.CONCURRENT),
    ],
)
def test_TU6_comparison(first: VectorClock, other: VectorClock, order: Order) -> None:
    mirrored = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert first.compare(other) is order
    assert other.compare(first) is mirrored.get(order, order)


def test_TU6_pruning() -> None:
    assert clock(a=1, b=2, c=3).without([B]) == clock(a=1, c=3)
    unchanged = clock(a=1)
    assert unchanged.without([C]) is unchanged
    assert clock(a=2, b=1).without([B]).compare(clock(a=2)) is Order.SAME


@pytest.mark.parametrize(
    ("first", "other", "merged"),
    [
        (clock(), clock(), clock()),
        (clock(a=2), clock(), clock(a=2)),
        (clock(a=2, b=1), clock(a=1, b=3), clock(a=2, b=3)),
        (clock(a=1), clock(b=2), clock(a=1, b=2)),
        (clock(a=1, b=2), clock(c=4), clock(a=1, b=2, c=4)),
    ],
)
def test_TU6_a_merge_is_the_least_that_is_not_before_either(
    first: VectorClock, other: VectorClock, merged: VectorClock
) -> None:
    assert first.merge(other) == other.merge(first) == merged
    for part in (first, other):
        assert part.compare(merged) in (Order.SAME, Order.BEFORE)


def test_TU6_a_change_is_after_all_that_it_knew() -> None:
    before = clock(a=1, b=2)
    assert before.compare(before.bumped(C)) is Order.BEFORE
    assert before.bumped(A).compare(before.bumped(B)) is Order.CONCURRENT
    assert before.bumped(A).merge(before.bumped(B)).compare(before) is Order.AFTER


histories = st.lists(
    st.tuples(st.sampled_from(["bump", "merge"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=40,
)


@given(histories)
def test_TU6_against_sets_of_events(history: list[tuple[str, int, int]]) -> None:
    """The reference keeps, per node, the set of all changes it knows of."""
    nodes = [A, B, C]
    clocks = [VectorClock() for _ in nodes]
    events_seen: list[frozenset[tuple[int, int]]] = [frozenset() for _ in nodes]
    for step, (kind, i, j) in enumerate(history):
        if kind == "bump":
            clocks[i], events_seen[i] = clocks[i].bumped(nodes[i]), events_seen[i] | {(i, step)}
        else:
            clocks[i], events_seen[i] = clocks[i].merge(clocks[j]), events_seen[i] | events_seen[j]
    for i in range(3):
        for j in range(3):
            expected = {
                (True, True): Order.SAME,
                (True, False): Order.BEFORE,
                (False, True): Order.AFTER,
                (False, False): Order.CONCURRENT,
            }[events_seen[i] <= events_seen[j], events_seen[j] <= events_seen[i]]
            assert clocks[i].compare(clocks[j]) is expected
