"""Work through many entities goes on in the next turns of the loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.in_turns import InTurns


class Turns:
    """The callbacks of a loop, run by hand."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_soon(self, call: Any) -> Any:
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def in_turns(visit: Any, at_once: int) -> tuple[InTurns[int], Turns]:
    loop = Turns()
    return InTurns(cast("asyncio.AbstractEventLoop", loop), visit, at_once), loop


@given(st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=6), st.integers(1, 5))
def test_each_is_visited_once_in_order_and_never_too_many_in_a_turn(
    turns: list[list[int]], at_once: int
) -> None:
    """`turns`: for each turn, how many items each call adds."""
    visits: list[list[int]] = []
    work, loop = in_turns(visits.append, at_once)
    added = 0
    for sizes in turns:
        goes_on, seen = bool(loop.due), len(visits)
        for size in sizes:
            work.add(range(added, added + size))
            added += size
        assert len(visits) - seen == (not goes_on and any(sizes)), "the first ones at once"
        loop.turn()
        assert len(visits) - seen <= 2
    while loop.due:
        loop.turn()
    assert [item for some in visits for item in some] == list(range(added))
    assert all(0 < len(some) <= at_once for some in visits)
    assert not work


def test_of_many_calls_in_a_turn_only_the_first_visits() -> None:
    """As for each of many shards that stop, with few entities each."""
    visits: list[list[int]] = []
    work, loop = in_turns(visits.append, 3)
    for number in range(4):
        work.add([number])
    assert visits == [[0]]
    loop.turn()
    assert visits == [[0], [1, 2, 3]]


def test_a_visit_that_fails_loses_its_own_part_only() -> None:
    visits: list[list[int]] = []

    def visit(some: list[int]) -> None:
        visits.append(some)
        if 0 in some:
            raise ValueError("no")

    work, loop = in_turns(visit, 2)
    with pytest.raises(ValueError, match="no"):
        work.add(range(3))
    loop.turn()
    assert visits == [[0, 1], [2]]


def test_a_visit_may_add_more() -> None:
    visits: list[list[int]] = []

    def visit(some: list[int]) -> None:
        visits.append(some)
        work.add(item - 1 for item in some if item)

    work, loop = in_turns(visit, 2)
    work.add([3, 2, 1])
    while work:
        loop.turn()
    assert sorted(item for some in visits for item in some) == [0, 0, 0, 1, 1, 1, 2, 2, 3]


def test_nothing_is_visited_after_the_end() -> None:
    visits: list[list[int]] = []
    work, loop = in_turns(visits.append, 1)
    work.add(range(3))
    work.stop()
    loop.turn()
    assert (visits, bool(work)) == ([[0]], False)
