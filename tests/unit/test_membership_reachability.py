"""Rows of observers: flags, versions, aggregation, merge."""

from __future__ import annotations

import pytest

from shardbus.ids import NodeId
from shardbus.membership.reachability import Flag, Reachability

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
def test_a_row_counts_changes_and_terminated_is_final(
    marks: list[Flag], flag: Flag, version: int
) -> None:
    result = table(*((A, B, mark) for mark in marks))
    assert result.flag(A, B) is flag
    assert (result.rows[A].version if A in result.rows else 0) == version


def test_one_suffices_to_mark_and_all_must_clear() -> None:
    both = table((A, C, UN), (B, C, UN))
    assert both.verdicts() == {C: UN}
    assert both.marked(A, C, OK).verdicts() == {C: UN}
    assert both.marked(A, C, OK).marked(B, C, OK).verdicts() == {}


def test_the_worst_word_counts_and_ignored_observers_do_not() -> None:
    result = table((A, C, UN), (B, C, GONE), (B, D, UN))
    assert result.verdicts() == {C: GONE, D: UN}
    assert result.verdicts(ignore=[B]) == {C: UN}
    assert result.records(ignore=[A]) == [(B, C, GONE), (B, D, UN)]


def test_the_newer_row_wins_as_a_whole() -> None:
    old = table((A, B, UN), (A, C, UN))
    new = old.marked(A, B, OK)
    other = table((D, B, UN))
    for merged in (old.merge(new).merge(other), other.merge(new).merge(old)):
        assert merged.records() == [(A, C, UN), (D, B, UN)]


def test_removed_nodes_leave_no_trace() -> None:
    result = table((A, B, UN), (A, C, UN), (B, C, UN)).without([B])
    assert result.records() == [(A, C, UN)]
    assert list(result.rows) == [A]
    assert result.rows[A].version == 2


def test_all_reachable() -> None:
    assert table().all_reachable()
    assert table((A, B, UN), (A, B, OK)).all_reachable()
    assert not table((A, B, UN)).all_reachable()
