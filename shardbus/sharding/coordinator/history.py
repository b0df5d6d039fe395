"""The last changes of each shard's home, and why: for operators who ask why a shard is where it is.

A change is recorded when the store has it, so the history contains stored changes, not planned
ones. The reason for leaving is known before, when the hand-off ends or the node is gone. It is kept
until the write, with the time since which the shard was unreachable.

    asked      a message came for it, or it has remembered entities
    rebalance  for the balance, or because an operator gave it a place
    drain      its node leaves or drains, or did not start it
    stop       an operator stopped it
    node_gone  its node died
    proxy      its node hosts nothing any more
    ended      it stopped by itself: a lease was lost, or its region received a newer home
    reported   a region had it, and the table did not

The last `CHANGES_MAX` changes of a shard are kept, of at most `SHARDS_MAX` shards. All of it ends
with the coordinator.

Not here: moves that are under way (`moves`).

Source: N.13, B.150.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest
from itertools import islice

import msgspec

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home

CHANGES_MAX = 8
"""Changes kept of one shard."""

SHARDS_MAX = 4096
"""Shards with a history; those that changed last are kept."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds. A move is counted at the first bound that it does not exceed."""


class HomeChange(msgspec.Struct, frozen=True):
    """One change of a shard's home. Without a `source` it ran nowhere before; without a `target` it
    runs nowhere now, and `fence` is 0. `seconds` is how long it moved or ran nowhere."""

    at: float
    source: NodeId | None
    target: NodeId | None
    why: str
    epoch: int
    fence: int
    seconds: float


class LeavingShard(msgspec.Struct, frozen=True):
    """Why a shard leaves a home, and since when."""

    home: Home
    why: str
    since: float


class ShardHistory:
    """The changes of all shards. `moved` counts moves by `BUCKETS`, those slower than all of them
    last; `moved_seconds` is the sum of their durations."""

    __slots__ = ("_changes", "_leaving", "moved", "moved_seconds")

    def __init__(self) -> None:
        self.moved = [0] * (len(BUCKETS) + 1)
        self.moved_seconds = 0.0
        self._changes: dict[str, deque[HomeChange]] = {}
        self._leaving: dict[str, LeavingShard] = {}

    def of(self, shard: str) -> tuple[HomeChange, ...]:
        """Return the changes of the shard, oldest first."""
        return tuple(self._changes.get(shard, ()))

    def recent(self, count: int) -> list[tuple[str, HomeChange]]:
        """Return the last changes of all shards, newest first."""
        latest = islice(reversed(self._changes), count)  # the shard that changed last stands last
        changes = ((shard, change) for shard in latest for change in self._changes[shard])
        return nlargest(count, changes, key=lambda row: row[1].at)

    def freed(self, node: NodeId) -> tuple[int, int]:
        """Return how many shards the death of this node has freed, and how many of them have a home
        again."""
        lost = homed = 0
        for changes in self._changes.values():
            for change in changes:
                if change.why == "node_gone" and change.source == node:
                    lost += 1
                    homed += changes[-1].target is not None
                    break
        return lost, homed

    def leaves(self, home: Home, why: str, since: float) -> None:
        """Record why the shard leaves that home. The first reason counts, unless the node died."""
        leaving = self._leaving.get(home.shard)
        if leaving is None or leaving.home != home:
            self._leaving[home.shard] = LeavingShard(home, why, since)
        elif why == "node_gone":
            self._leaving[home.shard] = LeavingShard(home, why, leaving.since)

    def record(
        self,
        shard: str,
        before: Home | None,
        after: Home | None,
        epoch: int,
        now: float,
        *,
        reported: bool,
    ) -> None:
        """Record a change that is durable; `reported` if a region had the shard already."""
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
