"""The counts of `benchmarks.moves`, from rows whose answer is known."""

from __future__ import annotations

import array
import math
import random
from pathlib import Path

import pytest

from benchmarks import moves_counts as counts
from benchmarks.moves_lab import rows

S = 1_000_000_000
"""A second in the rows' unit."""


def undisturbed(entities: int = 5, each: int = 20) -> list[counts.Told]:
    return [(e, n * entities + e + 1) for n in range(each) for e in range(entities)]


def handled(tells: list[counts.Told]) -> list[counts.Handled]:
    """All of it, in the order of its records."""
    return [(e, number, 1000 + i) for i, (e, number) in enumerate(tells)]


def test_what_is_handled_once_and_in_order_is_neither_lost_nor_anything() -> None:
    tells = undisturbed()
    assert counts.tally(tells, handled(tells)) == ([], 0, 0)


def test_what_no_host_has_is_lost() -> None:
    tells = undisturbed()
    kept = [row for row in handled(tells) if row[1] not in (7, 63)]
    assert counts.tally(tells, kept) == ([(1, 7), (2, 63)], 0, 0)


def test_what_two_hosts_have_is_duplicated() -> None:
    tells = undisturbed()
    once = handled(tells)
    twice = [(e, n, at + 1) for e, n, at in once[-3:]]
    assert counts.tally(tells, once + twice) == ([], 3, 0)


def test_what_comes_again_after_a_later_one_is_duplicated_and_reordered() -> None:
    tells = undisturbed(entities=1, each=3)
    rows = [(0, 1, 10), (0, 2, 11), (0, 1, 12), (0, 3, 13)]
    assert counts.tally(tells, rows) == ([], 1, 1)


def test_only_the_order_of_one_entity_counts() -> None:
    tells = [(0, 1), (1, 2), (0, 3), (1, 4)]
    assert counts.tally(tells, [(1, 2, 5), (0, 1, 6), (1, 4, 7), (0, 3, 8)]).reordered == 0
    assert counts.tally(tells, [(0, 3, 5), (0, 1, 6), (1, 2, 7), (1, 4, 8)]).reordered == 1


def test_order_is_that_of_handling_however_the_hosts_lists_lie() -> None:
    tells = undisturbed()
    shuffled = handled(tells)
    random.Random(1).shuffle(shuffled)
    assert counts.tally(tells, shuffled) == ([], 0, 0)


def test_what_an_earlier_load_told_does_not_count() -> None:
    tells = undisturbed()
    assert counts.tally(tells, [*handled(tells), (0, 10**9, 1), (0, 10**9, 2)]) == ([], 0, 0)


def test_an_entity_lives_where_it_last_handled_something() -> None:
    lists = {"a": [(1, 1, 10), (2, 2, 20)], "b": [(1, 3, 30), (2, 4, 50)]}
    assert counts.homes(lists, at=40) == {1: "b", 2: "a"}
    assert counts.homes(lists, at=60) == {1: "b", 2: "b"}
    assert counts.homes(lists, at=15) == {1: "a"}


def test_the_gap_is_the_longest_time_between_answers_that_ended_after_the_event() -> None:
    answered = [1 * S, 6 * S, 7 * S, 9 * S, 10 * S]
    asks = [(7, at - 1, at) for at in answered]
    assert counts.gaps(asks, at=6 * S + 1) == {7: 2.0}
    assert counts.gaps(asks, at=2 * S) == {7: 5.0}
    assert counts.gaps(asks, at=10 * S) == {}


def test_a_failed_ask_makes_the_gap_longer() -> None:
    asks = [(7, 0, 1 * S), (7, 2 * S, 0), (7, 3 * S, 3 * S), (8, 2 * S, 2 * S), (8, 3 * S, 3 * S)]
    assert counts.gaps(asks, at=1 * S) == {7: 2.0, 8: 1.0}
    assert counts.failed(asks) == 1


def test_answers_may_come_in_another_order_than_the_asks() -> None:
    asks = [(7, 0, 4 * S), (7, 1 * S, 1 * S), (7, 2 * S, 3 * S), (7, 5 * S, 6 * S)]
    assert counts.gaps(asks, at=2 * S) == {7: 2.0}


def test_an_entity_that_never_answers_again_has_a_gap_without_end() -> None:
    asks = [(7, 0, 1), (7, 2 * S, 0), (8, 0, 1)]
    assert counts.gaps(asks, at=1 * S) == {7: math.inf}
    again = [(9, 0, 1), (9, 2 * S, 3 * S), (9, 4 * S, 0), (9, 5 * S, 0)]
    assert counts.gaps(again, at=1 * S) == {9: math.inf}


def test_waits_are_those_of_the_asks_sent_meanwhile() -> None:
    asks = [(1, 0, 1 * S), (1, 2 * S, 5 * S), (1, 3 * S, 0), (1, 9 * S, 10 * S)]
    assert counts.waits(asks, since=2 * S, until=4 * S) == [3.0]
    assert counts.waits(counts.of({2}, asks), since=0, until=9 * S) == []


def test_one_entity_is_found_for_each_shard() -> None:
    numbers = counts.one_per_shard(4, lambda n: str(n // 3 % 4))
    assert list(numbers) == [0, 3, 6, 9]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(array.array("q", [1, 2, 3, 4, 5, 6]).tobytes())
    assert rows(str(path), 3) == [(1, 2, 3), (4, 5, 6)]
    path.write_bytes(array.array("q", [1, 2, 3, 4]).tobytes())
    with pytest.raises(ValueError, match="shorter"):
        rows(str(path), 3)
