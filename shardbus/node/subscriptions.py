"""Subscriptions to the events of the cluster, and callbacks for this node's own changes.

A subscription starts with the current `MembershipView` and goes on with the events that lead from
it to each later view; none is left out. View and events change in one step of the loop, so no event
falls in between.

The queue of a subscriber is bounded. When a subscriber does not read and the queue is full, its
content is replaced by the current view: the subscriber loses intermediate events, never the state.

`when_up` callbacks run once this node is Up, or at once if it is; `when_removed` callbacks run once
its membership has ended, for whatever reason.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.membership.member import WORKING
from shardbus.membership.view import NOTICES, DomainEvent, MembershipView, changes
from shardbus.node.recent_events import RecentEvents
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.cluster")

QUEUE_MAX = 1000

Callback = Callable[[], Any]


class Subscription:
    """An async iterator: first a MembershipView, then events, until the node's membership ends."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._queue: deque[DomainEvent | MembershipView] = deque([subscriptions.view])
        self._waiting: asyncio.Future[None] | None = None
        self._ended = subscriptions.ended

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> DomainEvent | MembershipView:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._queue.popleft()

    def close(self) -> None:
        """End the subscription."""
        self._subscriptions.forget(self)
        self.end()

    def put(self, event: DomainEvent) -> None:
        """Queue an event."""
        if len(self._queue) >= QUEUE_MAX:
            self._queue.clear()
            self._queue.append(self._subscriptions.view)
        else:
            self._queue.append(event)
        self._wake()

    def end(self) -> None:
        """End the iterator after the queued events."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Subscriptions:
    """The subscriptions and callbacks of one node. `view`: the current view; `recent` keeps the
    published events."""

    def __init__(self, me: NodeId, recent: RecentEvents | None = None) -> None:
        self._recent = recent
        self.view = MembershipView(me)
        self.ended = False
        self._subscriptions: dict[Subscription, None] = {}
        self._up: list[Callback] = []
        self._removed: list[Callback] = []
        self._running = TaskSet()

    def subscribe(self) -> Subscription:
        """Start a subscription with the current view."""
        subscription = Subscription(self)
        if not self.ended:
            self._subscriptions[subscription] = None
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Send the subscription no further events."""
        self._subscriptions.pop(subscription, None)

    def when_up(self, callback: Callback) -> None:
        """Call a plain or async function once this node is Up."""
        if self.view.status in WORKING:
            self._call(callback)
        else:
            self._up.append(callback)

    def when_removed(self, callback: Callback) -> None:
        """Call a plain or async function once this node's membership has ended."""
        if self.ended:
            self._call(callback)
        else:
            self._removed.append(callback)

    # ---- calls of the node

    def on_view(self, view: MembershipView) -> None:
        """Apply a new view, and publish the changes."""
        before, self.view = self.view, view
        for event in changes(before, view):
            self._publish(event)
        if view.status in WORKING:
            callbacks, self._up = self._up, []
            for callback in callbacks:
                self._call(callback)

    def on_notice(self, event: DomainEvent) -> None:
        """Publish an event of the machine, unless it belongs to a view and is published with it."""
        if isinstance(event, NOTICES):
            self._publish(event)

    async def end(self, seconds: float) -> None:
        """End every subscription, run the callbacks and wait for them, at most for `seconds`."""
        self.ended = True
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()
        callbacks, self._removed = self._removed, []
        for callback in callbacks:
            self._call(callback)
        for task in await self._running.wait(seconds):
            task.cancel()

    def _publish(self, event: DomainEvent) -> None:
        if self._recent is not None:
            self._recent.add(event)
        for subscription in list(self._subscriptions):
            subscription.put(event)

    def _call(self, callback: Callback) -> None:
        self._running.spawn(_guarded(callback))


async def _guarded(callback: Callback) -> None:
    try:
        result = callback()
        if inspect.isawaitable(result):
            await result
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException:
        log.exception("a callback of membership failed")
