"""The last events of a node: bounded, with ages and growing numbers."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import ConvergenceChanged, MembershipView, MemberUp
from shardbus.node.recent_events import KEPT, TEXT_MAX, RecentEvents
from shardbus.node.subscriptions import Subscriptions
from shardbus.sharding.events import Note

ME, PEER = NodeId("a", 7355, 1), NodeId("b", 7355, 2)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def names(rows: list[list[Any]]) -> list[str]:
    return [row[2] for row in rows]


def test_events_and_notes_come_in_order_with_their_ages(clock: Clock) -> None:
    recent = RecentEvents(clock)
    recent.add(MemberUp(Member(PEER, 1)))
    clock.now += 2
    recent.add_note("page", Note("rebalance", "3 shards"))
    clock.now += 1
    recent.add(ConvergenceChanged(True))
    assert recent.within(1000.0, 10) == [
        [3.0, 1, "MemberUp", "", str(PEER), f"{PEER} is up"],
        [1.0, 2, "rebalance", "page", None, "rebalance 3 shards"],
        [0.0, 3, "ConvergenceChanged", "", None, "the cluster has converged"],
    ]
    assert names(recent.within(1.5, 10)) == ["rebalance", "ConvergenceChanged"]
    assert names(recent.within(1000.0, 1)) == ["ConvergenceChanged"]
    assert recent.within(1000.0, 0) == []


def test_what_is_not_logged_is_not_kept(clock: Clock) -> None:
    recent = RecentEvents(clock)
    recent.add_note("page", Note("home_asked", "of shard 7"))
    assert recent.within(1000.0, 10) == []


def test_many_notes_push_out_no_event_of_membership(clock: Clock) -> None:
    recent = RecentEvents(clock)
    recent.add(ConvergenceChanged(False))
    for _ in range(3 * KEPT):
        recent.add_note("page", Note("refused", "x" * 10_000))
    rows = recent.within(1000.0, 10 * KEPT)
    assert len(rows) == KEPT + 1
    assert names(rows)[:2] == ["ConvergenceChanged", "refused"]
    assert max(len(row[5]) for row in rows) == TEXT_MAX
    assert rows[-1][1] == 3 * KEPT + 1


def test_what_is_published_is_kept_without_a_subscriber(clock: Clock) -> None:
    recent = RecentEvents(clock)
    subscriptions = Subscriptions(ME, recent)
    subscriptions.on_view(MembershipView(ME, (Member(ME, 1, status=Status.UP),), leader=ME))
    assert names(recent.within(1000.0, 10)) == ["MemberUp", "LeaderChanged"]
