"""When a region asks the coordinator for homes, and the answers that it got.

Each shard whose home is needed has a timer (`want`). A coordinator without gossip sends a new home
unasked, so the region asks only if that does not come (`expect`). After Wait the answer comes
unasked, too; asking is for the case that it was lost.

Source: S0.12, S2.28, S2.65.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.sharding.messages import NO_REGION
from shardbus.sharding.region.route import Route
from shardbus.sharding.timers import Timers

WAIT_PATIENCE = 3.0
"""How many times longer a region waits after Wait before it asks again."""

ASKED = "the coordinator is asked"
"""The reason that a region gives to a client at first. It has the coordinator's own a moment
later."""

REASON_S = 0.5
"""Seconds after which a client that got this reason requests the other one, once: a home usually
comes within milliseconds."""


class RequestedHomes:
    """The timers of one region's requests, which its Flushes and leftovers use, too."""

    __slots__ = ("_reasons", "_retry", "by_gossip", "timers", "why_no_home")

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self.timers: Timers[str] = Timers()
        """By shard."""
        self._reasons: dict[str, str] = {}
        """Why requested shards have no home, by the coordinator."""
        self.why_no_home = ""
        """Why no shard can have one, by the membership; empty if one can."""
        self.by_gossip = False
        """New homes come by gossip, which may be late, and from the coordinator to regions that
        ask. So the region asks as soon as messages wait, also while a shard moves."""

    def want(self, route: Route, at: float) -> None:
        """Request the home at that time, if it is needed and no request is due."""
        if route.needs_home and route.shard not in self.timers:
            self.timers.set(route.shard, at)

    def expect(self, route: Route, now: float) -> None:
        """Request a home, later if the coordinator sends it unasked."""
        self.want(route, now if self.by_gossip else now + self._retry)

    def on_wait(self, shards: Iterable[str], reason: str, now: float) -> None:
        """Request these later: the coordinator has noted this region's request."""
        for shard in shards:
            if shard in self.timers:
                at_first = reason == ASKED and shard not in self._reasons
                pause = min(REASON_S, self._retry) if at_first else WAIT_PATIENCE * self._retry
                self.timers.set(shard, now + pause)
                self._reasons[shard] = reason

    def on_home(self, shard: str) -> None:
        """The shard has a home."""
        self._reasons.pop(shard, None)

    @property
    def lacks_regions(self) -> bool:
        """True if the coordinator has answered that no region may take a requested shard."""
        reasons = self._reasons.items()
        return any(reason == NO_REGION and shard in self.timers for shard, reason in reasons)

    def why_waiting(self, shard: str) -> str:
        """Return why the shard has no home: no shard can have one, or the coordinator's last
        reason; empty if it gave none."""
        return self.why_no_home or self._reasons.get(shard, "")
