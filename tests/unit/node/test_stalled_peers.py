"""Whom a node quarantines: only who is reachable, and only by time that it was awake for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from shardbus.ids import NodeId
from shardbus.node.stalled_peers import StalledPeers

A, B, C = NodeId("a", 1, 1), NodeId("b", 1, 1), NodeId("c", 1, 1)


@dataclass(eq=False)
class Line:
    """The part of a session that is examined."""

    tag: NodeId
    outstanding: int = 100
    acked: int = 0
    held_reports: int = 0

    @property
    def link(self) -> Line:
        return self

    @property
    def window(self) -> Line:
        return self


def looks(
    quarantine: StalledPeers, lines: list[Line], seconds: list[float], reachable: tuple[NodeId, ...]
) -> list[list[NodeId]]:
    return [quarantine.check(cast("Any", lines), reachable, now) for now in seconds]


def test_who_takes_nothing_for_so_long_is_named() -> None:
    stalled = looks(StalledPeers(3.0), [Line(A), Line(B, outstanding=0)], [0, 1, 2, 3, 4], (A, B))
    assert stalled == [[], [], [], [A], [A]]


def test_progress_begins_the_count_anew() -> None:
    quarantine, line = StalledPeers(2.0), Line(A)
    assert looks(quarantine, [line], [0, 1], (A,)) == [[], []]
    line.acked = 1
    assert looks(quarantine, [line], [2, 3, 4], (A,)) == [[], [], [A]]


def test_an_unreachable_member_is_not_counted() -> None:
    quarantine = StalledPeers(2.0)
    looks(quarantine, [Line(A)], [0, 1, 2, 3, 4], ())
    line = Line(A)
    assert looks(quarantine, [line], [5, 6], (A,)) == [[], []]


def test_a_node_whose_own_loop_stood_still_accuses_nobody() -> None:
    assert looks(StalledPeers(30.0), [Line(A)], [0, 1, 100, 101], (A,)) == [[], [], [], []]


def test_two_sessions_name_a_member_once() -> None:
    quarantine, lines = StalledPeers(1.0), [Line(A), Line(A)]
    assert looks(quarantine, lines, [0, 1], (A,)) == [[], [A]]


def test_off_means_never() -> None:
    assert looks(StalledPeers(0.0), [Line(A)], [0, 1, 100, 1000], (A,)) == [[]] * 4


def test_the_accuser_tests_its_other_links_first_and_accuses_who_fails_that_too() -> None:
    """It may use one link only, and be at fault itself."""
    quarantine, used, idle = StalledPeers(8.0), Line(A), Line(B, outstanding=0)
    for now in range(5):
        assert quarantine.check(cast("Any", [used, idle]), (A, B, C), now) == []
        assert quarantine.untested((A, B, C)) == ([B, C] if now == 4 else [])
    idle.outstanding, third = 1, Line(C, outstanding=1)
    for now in range(5, 8):
        third.acked = now
        assert quarantine.check(cast("Any", [used, idle, third]), (A, B, C), now) == []
        assert quarantine.untested((A, B, C)) == []
    assert quarantine.check(cast("Any", [used, idle, third]), (A, B, C), 8) == [A, B]


def test_links_are_tested_once_for_each_stall() -> None:
    quarantine, used = StalledPeers(2.0), Line(A)
    links = []
    for now in range(12):
        used.acked = now // 4
        quarantine.check(cast("Any", [used]), (A, B), now)
        links.append(quarantine.untested((A, B)))
    assert links.count([B]) == 3
    assert links.count([]) == 9
