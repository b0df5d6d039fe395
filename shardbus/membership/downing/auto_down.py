"""Downing by timeout alone: the leader downs every member that stays unreachable.

This strategy does not compare sides. After a split both sides down each other and go on as two
clusters, each of which has every shard. It exists for clusters without entities. Its setting is
named `unsafe_auto_down_after`, so that an operator must set it by that name.

    unreachable ──for `after` seconds──> the leader downs it
    reachable again, or on its way out before that ──> the count is dropped

The count does not depend on the leader: a new leader downs members that have been unreachable for
long enough.

Source: S1.31, S1.59, S2.6.
"""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, Split
from shardbus.membership.gossip import ON_THE_WAY_OUT, Gossip

RULE = "unsafe-auto-down"


class AutoDown:
    """Counts, for each member, how long it has been unreachable. `after` is in seconds."""

    def __init__(self, me: NodeId, after: float) -> None:
        self.me = me
        self.after = after
        self.since: dict[NodeId, float] = {}
        self._considered_at = 0.0

    def deadline(self) -> float | None:
        """Return when `consider` may return something new."""
        times = [since + self.after for since in self.since.values()]
        return min((t for t in times if t > self._considered_at), default=None)

    def consider(self, gossip: Gossip, leading: bool, now: float) -> Decision | None:
        """Return the decision that is due now, or None."""
        self._considered_at = now
        unreachable = [
            node
            for node in gossip.unreachable()
            if node != self.me and gossip.members[node].status not in ON_THE_WAY_OUT
        ]
        self.since = {node: self.since.get(node, now) for node in unreachable}
        due = tuple(node for node in unreachable if now >= self.since[node] + self.after)
        if not due or not leading:
            return None
        side = tuple(n for n in gossip.members if n not in self.since)
        split = Split(side=side, cut=tuple(unreachable))
        reason = f"unreachable for {self.after:g} s"
        return Decision(DowningOutcome.DOWN_OTHERS, due, reason, RULE, split)
