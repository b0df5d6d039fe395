"""Subscriptions: every event once and in order, a bounded queue, and callbacks for this node."""

from __future__ import annotations

import asyncio
from inspect import getsource
from typing import Any, get_args

import pytest

from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome
from shardbus.membership.member import Member, Status
from shardbus.membership.view import (
    ARRIVALS,
    NOTICES,
    ConvergenceChanged,
    DomainEvent,
    DowningDecided,
    FoundingWaits,
    HandlingResumed,
    HandlingSuspended,
    MembershipView,
    MemberUp,
    NodeStarved,
    OtherClustersChanged,
    RivalCluster,
    SelfStarved,
    SlowHeartbeat,
    changes,
)
from shardbus.node.subscriptions import QUEUE_MAX, Subscription, Subscriptions
from tests.virtual_time import virtual
from tests.waiting import turns

ME, PEER = NodeId("a", 1, 1), NodeId("b", 1, 2)
UP = MembershipView(ME, (Member(ME, 2, status=Status.UP, up_number=1),))
GONE = MembershipView(ME, ())
FAR = 1e6


async def read(subscription: Subscription, count: int) -> list[object]:
    return [await anext(subscription) for _ in range(count)]


def names(items: list[object]) -> list[str]:
    return [type(item).__name__ for item in items]


# Events


async def test_a_subscription_is_the_view_and_then_every_event() -> None:
    subscriptions = Subscriptions(ME)
    early = subscriptions.subscribe()
    subscriptions.on_view(UP)
    late = subscriptions.subscribe()
    subscriptions.on_view(MembershipView(ME, UP.members, converged=True))
    assert names(await read(early, 3)) == ["MembershipView", "MemberUp", "ConvergenceChanged"]
    assert await read(late, 2) == [UP, ConvergenceChanged(True)]


async def test_an_event_wakes_a_reader_that_waits() -> None:
    subscriptions = Subscriptions(ME)
    subscription = subscriptions.subscribe()
    await anext(subscription)
    reading = asyncio.ensure_future(anext(subscription))
    await turns()
    assert not reading.done()
    subscriptions.on_view(UP)
    assert isinstance(await reading, MemberUp)


async def test_a_reader_that_is_slow_loses_events_and_never_the_state() -> None:
    subscriptions = Subscriptions(ME)
    subscription = subscriptions.subscribe()
    flips = [MembershipView(ME, UP.members, converged=n % 2 == 1) for n in range(QUEUE_MAX + 5)]
    for view in flips:
        subscriptions.on_view(view)
    read_now: list[object] = []
    while subscription._queue:
        read_now.append(await anext(subscription))
    assert len(read_now) <= QUEUE_MAX
    first = read_now[0]
    assert isinstance(first, MembershipView)
    state = first.converged
    for event in read_now[1:]:
        assert isinstance(event, ConvergenceChanged)
        state = event.converged
    assert state == flips[-1].converged


async def test_a_closed_subscription_gets_nothing_more_and_the_others_go_on() -> None:
    subscriptions = Subscriptions(ME)
    closed, other = subscriptions.subscribe(), subscriptions.subscribe()
    closed.close()
    subscriptions.on_view(UP)
    assert names([item async for item in closed]) == ["MembershipView"]
    assert names(await read(other, 2)) == ["MembershipView", "MemberUp"]


async def test_every_subscription_ends_with_the_membership_after_what_is_queued() -> None:
    subscriptions = Subscriptions(ME)
    before = subscriptions.subscribe()
    subscriptions.on_view(UP)
    await subscriptions.end(FAR)
    after = subscriptions.subscribe()
    assert names([item async for item in before]) == ["MembershipView", "MemberUp"]
    assert [item async for item in after] == [UP]


NOTICED: list[DomainEvent] = [
    SelfStarved(2.0),
    RivalCluster(),
    FoundingWaits("waits for the claim"),
    NodeStarved(PEER, 2.0),
    SlowHeartbeat(PEER, 2.0),
    DowningDecided(Decision(DowningOutcome.DOWN_OTHERS, (), "majority")),
    HandlingSuspended("no quorum", (PEER,)),
    HandlingResumed(3.0),
    OtherClustersChanged(()),
]


async def test_each_kind_of_event_is_published_exactly_once() -> None:
    """Those that a comparison of views shows come with the view, the others as they are noticed."""
    subscriptions = Subscriptions(ME)
    subscription = subscriptions.subscribe()
    subscriptions.on_view(UP)
    for event in [*NOTICED, MemberUp(UP.members[0]), ConvergenceChanged(True)]:
        subscriptions.on_notice(event)
    await subscriptions.end(FAR)
    _, up, *noticed = [item async for item in subscription]
    assert isinstance(up, MemberUp)
    assert noticed == NOTICED


def test_every_event_is_in_the_comparison_of_views_or_a_notice() -> None:
    kinds = set(get_args(DomainEvent))
    assert {type(event) for event in NOTICED} == set(NOTICES) <= kinds
    source = getsource(changes)
    compared = {kind for kind in kinds if kind.__name__ in source} | set(ARRIVALS.values())
    assert compared.isdisjoint(NOTICES)
    assert compared | set(NOTICES) == kinds


# Callbacks


async def test_callbacks_run_once_this_node_is_up_or_at_once_if_it_is() -> None:
    subscriptions, called = Subscriptions(ME), []

    async def late() -> None:
        called.append("async")

    subscriptions.when_up(lambda: called.append("plain"))
    subscriptions.when_up(late)
    subscriptions.on_view(MembershipView(ME, (Member(PEER, 2, status=Status.UP, up_number=1),)))
    await turns()
    assert called == []
    subscriptions.on_view(UP)
    subscriptions.on_view(MembershipView(ME, UP.members, converged=True))
    await turns()
    assert called == ["plain", "async"]
    subscriptions.when_up(lambda: called.append("at once"))
    await turns()
    assert called[2:] == ["at once"]


async def test_callbacks_run_once_the_membership_has_ended_and_one_that_fails_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscriptions, called = Subscriptions(ME), []
    subscriptions.on_view(UP)
    subscriptions.when_removed(lambda: 1 / 0)
    subscriptions.when_removed(lambda: called.append("removed"))
    subscriptions.on_view(GONE)
    await turns()
    assert called == []
    await subscriptions.end(FAR)
    assert called == ["removed"]
    assert "a callback of membership failed" in caplog.messages
    subscriptions.when_removed(lambda: called.append("at once"))
    await turns()
    assert called == ["removed", "at once"]


@virtual
async def test_a_callback_that_does_not_end_is_waited_for_within_a_bound() -> None:
    subscriptions, cancelled = Subscriptions(ME), []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    callback: Any = hang
    subscriptions.when_removed(callback)
    began = asyncio.get_running_loop().time()
    await subscriptions.end(5.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0, abs=0.1)
    await turns()
    assert cancelled == [True]
