"""Downing by timeout alone: every member that stays unreachable is downed, by whoever leads.

There is no question of sides in it. After a split both sides down each other and go on as two
clusters, each of which has every shard. It exists for clusters without entities, and must be asked
for by a name that says so.

    unreachable ──after so many seconds──> the leader downs it
    reachable again, or on its way out before that ──> forgotten

Who leads does not matter for the count: a new leader downs what has been unreachable long enough.

Source: S1.31, S1.59, S2.6; T.U18.
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
        """When `consider` may have something new to say."""
        times = [since + self.after for since in self.since.values()]
        return min((t for t in times if t > self._considered_at), default=None)

    def consider(self, gossip: Gossip, leading: bool, now: float) -> Decision | None:
        """Whom to down now."""
        self._considered_at = now
        unreachable = [
            node
            for node in gossip.verdicts()
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
