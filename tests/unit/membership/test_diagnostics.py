"""Diagnostics: the versions of the other nodes, and the obstacles of convergence."""

from __future__ import annotations

import pytest

from shardbus.ids import NodeId
from shardbus.membership.diagnostics import diagnose, version_of
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.vector_clock import VectorClock
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, state

THREE = state(seen="ab", a=Status.UP, b=Status.UP, c=Status.UP)


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        (None, "unknown"),
        ({A: 1}, "same"),
        ({}, "older"),
        ({A: 2}, "newer"),
        ({A: 1, B: 1}, "newer"),
        ({B: 1}, "concurrent"),
    ],
)
def test_S3_14_the_version_of_another_node_is_named(
    theirs: dict[NodeId, int] | None, word: str
) -> None:
    versions = {} if theirs is None else {B: VectorClock(theirs)}
    assert diagnose(THREE, A, versions, {}).versions == {B: word, C: "unknown"}


def test_a_node_that_was_removed_makes_no_version_another() -> None:
    """The sender may have counted changes of a node that is buried here."""
    buried = replace(THREE, tombstones={C: 0.0})
    assert diagnose(buried, A, {B: VectorClock({A: 1, C: 7})}, {}).versions[B] == "same"


def test_who_has_the_version_who_prevents_convergence_and_who_sees_whom() -> None:
    rows = {A: ObserverRow(1, {C: Flag.UNREACHABLE})}
    seen = diagnose(replace(THREE, reachability=Reachability(rows)), A, {}, {C: 9.5})
    assert (seen.seen, seen.records) == ((A, B), ((A, C, Flag.UNREACHABLE),))
    assert seen.waiting_for == (C,)
    assert (seen.phis, seen.tombstones) == ({C: 9.5}, 0)


def test_a_version_has_one_name_and_another_version_another() -> None:
    name = version_of(THREE)
    assert version_of(state(seen="c", a=Status.UP)) == name, "only the clock and the removed count"
    assert len(name) == 16
    assert version_of(replace(THREE, clock=VectorClock({A: 2}))) != name
    assert version_of(replace(THREE, tombstones={C: 0.0})) != name
