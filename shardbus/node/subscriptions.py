"""Who listens to what happens in the cluster: subscriptions, and callbacks of one moment.

A subscription begins with the picture of now, a `MembershipView`, and goes on with the events that
lead from it to every later picture, none left out. Events and picture change in the same step of
the loop, so nothing falls between them.

A subscriber that does not read costs a bounded queue: when it is full, what is in it is dropped,
and the subscriber finds a new picture where the dropped events were. It has lost the way, never the
place.

Callbacks: `when_up` once this node is Up, at once if it is; `when_removed` once its membership is
over, however that came.

Source: B.20, B.21; T.U9, T.C24.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from shardbus.ids import NodeId
from shardbus.membership.member import WORKING
from shardbus.membership.view import (
    DomainEvent,
    DowningDecided,
    MembershipView,
    SelfStarved,
    SlowHeartbeat,
    changes,
)
from shardbus.task_set import TaskSet

log = logging.getLogger("shardbus.cluster")

QUEUE_MAX = 1000
ASIDE = (SelfStarved, SlowHeartbeat, DowningDecided)
"""Events that no comparison of pictures shows."""

Callback = Callable[[], Any]


class Subscription:
    """An async iterator: a MembershipView first, then events. It ends with the node's
    membership."""

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
        """Listen no more."""
        self._subscriptions.forget(self)
        self.end()

    def put(self, event: DomainEvent) -> None:
        """Something happened."""
        if len(self._queue) >= QUEUE_MAX:
            self._queue.clear()
            self._queue.append(self._subscriptions.view)
        else:
            self._queue.append(event)
        self._wake()

    def end(self) -> None:
        """Nothing will happen any more."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Subscriptions:
    """See the module. `view` is the last picture."""

    def __init__(self, me: NodeId) -> None:
        self.view = MembershipView(me)
        self.ended = False
        self._subscriptions: dict[Subscription, None] = {}
        self._up: list[Callback] = []
        self._removed: list[Callback] = []
        self._running = TaskSet()

    def subscribe(self) -> Subscription:
        """The picture of now, and everything from now on."""
        subscription = Subscription(self)
        if not self.ended:
            self._subscriptions[subscription] = None
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """It listens no more."""
        self._subscriptions.pop(subscription, None)

    def when_up(self, callback: Callback) -> None:
        """Call it, plain or async, once this node is Up."""
        if self.view.status in WORKING:
            self._call(callback)
        else:
            self._up.append(callback)

    def when_removed(self, callback: Callback) -> None:
        """Call it, plain or async, once this node's membership is over."""
        if self.ended:
            self._call(callback)
        else:
            self._removed.append(callback)

    # ---- what the node says

    def on_view(self, view: MembershipView) -> None:
        """The picture changed."""
        before, self.view = self.view, view
        for event in changes(before, view):
            self._tell(event)
        if view.status in WORKING:
            callbacks, self._up = self._up, []
            for callback in callbacks:
                self._call(callback)

    def on_notice(self, event: DomainEvent) -> None:
        """The machine said something. What changes the picture is told with the picture."""
        if isinstance(event, ASIDE):
            self._tell(event)

    async def end(self, seconds: float) -> None:
        """Membership is over: call back, and wait for the callbacks, but not for ever."""
        self.ended = True
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()
        callbacks, self._removed = self._removed, []
        for callback in callbacks:
            self._call(callback)
        if self._running:
            late = await self._running.wait(seconds)
            for task in late:
                task.cancel()

    def _tell(self, event: DomainEvent) -> None:
        for subscription in list(self._subscriptions):
            subscription.put(event)

    def _call(self, callback: Callback) -> None:
        self._running.spawn(_guarded(callback))


async def _guarded(callback: Callback) -> None:
    try:
        result = callback()
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("a callback of membership failed")
