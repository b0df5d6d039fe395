"""Rows of observers: flags, versions, aggregation, merge. T.U5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.membership.reachability import Flag, ObserverRow, Reachability

A, B, C, D = (NodeId(host, 1, 1) for host in "abcd")
OK, UN, GONE = Flag.REACHABLE, Flag.UNREACHABLE, Flag.TERMINATED


def table(*marks: tuple[NodeId, NodeId, Flag]) -> Reachability:
    result = Reachability()
    for observer, subject, flag in marks:
        result = result.marked(observer, subject, flag)
    return result


@pytest.mark.parametrize(
    ("marks", "flag", "version"),
    [
        ([], OK, 0),
        ([OK], OK, 0),
        ([UN], UN, 1),
        ([UN, UN], UN, 1),
        ([UN, OK], OK, 2),
        ([UN, OK, UN], UN, 3),
        ([GONE], GONE, 1),
        ([UN, GONE], GONE, 2),
        ([GONE, OK], GONE, 1),
        ([GONE, UN], GONE, 1),
    ],
)
def test_TU5_a_row_counts_changes_and_terminated_is_final(
    marks: list[Flag], flag: Flag, version: int
) -> None:
    result = table(*((A, B, mark) for mark in marks))
    assert result.flag(A, B) is flag
    assert (result.rows[A].version if A in result.rows else 0) == version


def test_TU5_one_suffices_to_mark_and_all_must_clear() -> None:
    both = table((A, C, UN), (B, C, UN))
    assert both.unreachable() == {C: UN}
    assert both.marked(A, C, OK).unreachable() == {C: UN}
    assert both.marked(A, C, OK).marked(B, C, OK).unreachable() == {}


def test_TU5_the_worst_word_counts_and_ignored_observers_do_not() -> None:
    result = table((A, C, UN), (B, C, GONE), (B, D, UN))
    assert result.unreachable() == {C: GONE, D: UN}
    assert result.unreachable(ignore=[B]) == {C: UN}
    assert result.records(ignore=[A]) == [(B, C, GONE), (B, D, UN)]


def test_TU5_the_newer_row_wins_as_a_whole() -> None:
    old = table((A, B, UN), (A, C, UN))
    new = old.marked(A, B, OK)
    other = table((D, B, UN))
    for merged in (old.merge(new).merge(other), other.merge(new).merge(old)):
        assert merged.records() == [(A, C, UN), (D, B, UN)]


def test_TU5_removed_nodes_leave_no_trace() -> None:
    result = table((A, B, UN), (A, C, UN), (B, C, UN)).without([B])
    assert result.records() == [(A, C, UN)]
    assert list(result.rows) == [A]
    assert result.rows[A].version == 2


def test_TU5_all_reachable() -> None:
    assert table().all_reachable()
    assert table((A, B, UN), (A, B, OK)).all_reachable()
    assert not table((A, B, UN)).all_reachable()


@pytest.mark.parametrize(
    ("first", "other", "merged"),
    [
        (ObserverRow(1, {}), ObserverRow(2, {B: UN}), ObserverRow(2, {B: UN})),
        (ObserverRow(3, {}), ObserverRow(2, {B: UN}), ObserverRow(3, {})),
        (ObserverRow(3, {B: UN}), ObserverRow(2, {B: GONE, C: UN}), ObserverRow(3, {B: UN})),
        (ObserverRow(2, {B: UN}), ObserverRow(2, {B: UN}), ObserverRow(2, {B: UN})),
        (
            ObserverRow(2, {B: UN}),
            ObserverRow(2, {B: GONE, C: UN}),
            ObserverRow(2, {B: GONE, C: UN}),
        ),
    ],
)
def test_TU5_rows_merge_by_version(
    first: ObserverRow, other: ObserverRow, merged: ObserverRow
) -> None:
    assert first.merge(other) == other.merge(first) == merged


def test_TU5_records_are_in_address_order_whoever_spoke_first() -> None:
    marks = [(D, A, UN), (A, D, UN), (B, C, GONE), (A, B, UN)]
    assert table(*marks).records() == sorted(marks) == table(*marks[::-1]).records()


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 3), st.integers(0, 3), st.sampled_from([OK, UN, GONE])
        ),
        max_size=40,
    )
)
def test_TU5_against_a_list_of_words(history: list[tuple[bool, int, int, Flag]]) -> None:
    """Every observer speaks at its own copy, and copies are merged now and then. The reference
    keeps for each copy how many words of each observer it has heard, and all words ever said."""
    nodes = (A, B, C, D)
    copies = [Reachability() for _ in nodes]
    heard = [[0] * len(nodes) for _ in nodes]
    said: list[list[tuple[NodeId, Flag]]] = [[] for _ in nodes]
    for speaks, i, j, flag in history:
        if speaks:
            copies[i] = copies[i].marked(nodes[i], nodes[j], flag)
            said[i].append((nodes[j], flag))
            heard[i][i] = len(said[i])
        else:
            copies[i] = copies[i].merge(copies[j])
            heard[i] = [max(pair) for pair in zip(heard[i], heard[j], strict=True)]
    for copy, words in zip(copies, heard, strict=True):
        expected = []
        for observer, count in enumerate(words):
            last: dict[NodeId, Flag] = {}
            for subject, flag in said[observer][:count]:
                last[subject] = GONE if last.get(subject) is GONE else flag
            expected += [(nodes[observer], s, f) for s, f in last.items() if f is not OK]
        assert copy.records() == sorted(expected)
