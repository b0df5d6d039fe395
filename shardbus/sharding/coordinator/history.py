"""What became of each shard lately, and why: for people who ask how it came to be where it is.

A change is noted when the store has it, so the history says what was, not what was meant. Why a
shard leaves is known before that, when its handoff ends or its node is gone; that is kept until the
write, with the time since which nobody could reach it.

    asked      somebody sent to it, or it has remembered entities
    rebalance  for the balance, or because somebody said where it shall live
    drain      its node leaves or shall be empty, or did not start it
    stop       an operator stopped it
    node_gone  its node was lost
    proxy      its node hosts nothing any more
    ended      it stopped by itself: a lease was lost, or its region came to know better
    reported   a region had it, and the table did not say so

The last changes of a shard are kept, and no more than so many shards; it all ends with the
coordinator.

Not here: moves that are under way (`moves`).

Source: N.13, B.150; C.10.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home

CHANGES_MAX = 8
"""Of one shard."""

SHARDS_MAX = 4096
"""Shards with a history; beyond that, those that changed last."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds; moves are counted by the first that is not exceeded."""


@dataclass(frozen=True, slots=True)
class HomeChange:
    """A shard went from one node to another. No `source`: it ran nowhere before; no `target`: it
    runs nowhere now, and `fence` is 0. `seconds`: for how long it ran nowhere, or was on the
    move."""

    at: float
    source: NodeId | None
    target: NodeId | None
    why: str
    epoch: int
    fence: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LeavingShard:
    """Why and since when a shard leaves a home."""

    home: Home
    why: str
    since: float


class ShardHistory:
    """See the module. `moved` counts moves by `BUCKETS`, the slower ones last; `moved_seconds` is
    their sum."""

    __slots__ = ("_changes", "_leaving", "moved", "moved_seconds")

    def __init__(self) -> None:
        self.moved = [0] * (len(BUCKETS) + 1)
        self.moved_seconds = 0.0
        self._changes: dict[str, deque[HomeChange]] = {}
        self._leaving: dict[str, LeavingShard] = {}

    def of(self, shard: str) -> tuple[HomeChange, ...]:
        """What became of the shard, oldest first."""
        return tuple(self._changes.get(shard, ()))

    def leaves(self, home: Home, why: str, since: float) -> None:
        """It leaves that home. What was said first counts, unless the node is gone."""
        known = self._leaving.get(home.shard)
        if known is None or known.home != home:
            self._leaving[home.shard] = LeavingShard(home, why, since)
        elif why == "node_gone":
            self._leaving[home.shard] = LeavingShard(home, why, known.since)

    def written(
        self,
        shard: str,
        before: Home | None,
        after: Home | None,
        epoch: int,
        now: float,
        *,
        reported: bool,
    ) -> None:
        """The store has its next home, or that it has none."""
        left = self._leaving.pop(shard, None)
        if before is None and left is not None:
            before = left.home
        if before is None and after is None:
            return
        why = "reported" if reported else left.why if left is not None else "asked"
        seconds = now - left.since if left is not None else 0.0
        source = None if before is None else before.node
        target, fence = (None, 0) if after is None else (after.node, after.fence)
        if left is not None and target is not None and not reported:
            self._count(seconds)
        changes = self._changes.pop(shard, None) or deque(maxlen=CHANGES_MAX)
        changes.append(HomeChange(now, source, target, why, epoch, fence, seconds))
        self._changes[shard] = changes
        if len(self._changes) > SHARDS_MAX:
            del self._changes[next(iter(self._changes))]

    def _count(self, seconds: float) -> None:
        self.moved_seconds += seconds
        slow = sum(seconds > bucket for bucket in BUCKETS)
        self.moved[slow] += 1
