"""The messages that wait in a region: counted in while there is room, counted out, rejected.

Expired asks make room. A full buffer is searched for them once after each `mark_expired`, so that
it costs nothing for each further message.

Source: S2.22, S2.65.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.sharding import events as ev
from shardbus.sharding.region.route import (
    REJECT_EXPIRED,
    BufferedMessage,
    Route,
    RouteBuffers,
)


class WaitingMessages:
    """The messages that wait in one region. Rejections are appended to `out`."""

    __slots__ = ("_out", "_with_expired", "counts")

    def __init__(self, counts: RouteBuffers, out: list[ev.RegionEffect]) -> None:
        self.counts, self._out = counts, out
        self._with_expired: dict[str, Route] = {}
        """Routes in which expired asks wait."""

    def take(self, message: BufferedMessage) -> bool:
        """Count the message in. Returns False if there is no room."""
        if self.counts.add(message):
            return True
        if not self._with_expired:
            return False
        routes, self._with_expired = self._with_expired, {}
        for route in routes.values():
            self._drop_expired(route)
        return self.counts.add(message)

    def mark_expired(self, routes: Iterable[Route]) -> None:
        """Record that asks have expired among the waiting messages of these routes."""
        self._with_expired.update((route.shard, route) for route in routes)

    def _drop_expired(self, route: Route) -> None:
        """Reject expired asks. Leftovers for which a next home may ask stay."""
        for queue in route.queues if route.next_home is None else (route.returned, route.waiting):
            late = [message for message in queue if message.expired]
            if late:
                queue[:] = [message for message in queue if not message.expired]
                self.reject(route.shard, late, REJECT_EXPIRED)

    def reject(self, shard: str, messages: list[BufferedMessage], reason: str) -> None:
        """Count these out and return them to their senders with an error."""
        self.counts.remove(messages)
        self._out.extend(ev.Reject(shard, message, reason) for message in messages)
