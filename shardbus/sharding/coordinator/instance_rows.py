"""The number of instances of a type, and the rows that follow from it: one coordinator's view.

N follows the nodes that may host (`instances.Instances.wanted`). It grows at once, because new rows
cost nothing that runs. It shrinks when fewer have been wanted for `SHRINK_AFTER_S`: a node that
restarts comes back sooner, and its rows then have a place again. Meanwhile the row of a dead node
that finds no node without a row of its shard has no home.

    nodes come ──> N grows ──> rows are wanted ──> homes
    nodes go ───> SHRINK_AFTER_S ──> N shrinks ──> rows above it stop, and get no home

A coordinator that takes over finds N in the table: the highest row. The number is sent to every
region and proxy once, and again when it changes; regions pass it on to their clients.

Source: docs/partitions.md; S3.48, S3.49.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.ids import NodeId
from shardbus.sharding.instances import Instances, row_of, split_row

SHRINK_AFTER_S = 10.0
"""Seconds for which fewer instances must be wanted before there are fewer."""


class InstanceRows:
    """N of one type. `count` is 0 until it is known."""

    __slots__ = ("_fewer_since", "_informed", "_instances", "count")

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self.count = 0
        self._fewer_since: float | None = None
        self._informed: dict[NodeId, int] = {}

    def load(self, rows: Iterable[str]) -> None:
        """Take over the rows of a table."""
        self.count = max((split_row(row)[1] for row in rows), default=0)

    def update(self, nodes: int, now: float) -> bool:
        """Use this number of nodes that may host; 0 if it is not known. Returns True if N has
        changed."""
        if nodes < 1:
            self._fewer_since = None
            return False
        wanted = self._instances.wanted(nodes, 0.0)
        if wanted >= self.count:
            self._fewer_since = None
        elif self._fewer_since is None:
            self._fewer_since = now
        late = self._fewer_since is not None and now >= self._fewer_since + SHRINK_AFTER_S
        if wanted == self.count or not (wanted > self.count or late):
            return False
        self.count, self._fewer_since = wanted, None
        return True

    def deadline(self) -> float | None:
        """Return when N shrinks, if fewer instances are wanted now."""
        return None if self._fewer_since is None else self._fewer_since + SHRINK_AFTER_S

    def exists(self, row: str) -> bool:
        """True if this is the row of an instance that there is."""
        return 0 < split_row(row)[1] <= self.count

    def siblings(self, row: str) -> list[str]:
        """Return all rows of the shard that a row belongs to."""
        shard, _ = split_row(row)
        return [row_of(shard, k) for k in range(1, self.count + 1)]

    def to_inform(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Return those of these nodes that do not know N, once."""
        known = self._informed
        self._informed = dict.fromkeys(nodes, self.count)
        return [node for node in self._informed if known.get(node) != self.count]

    def forget(self, node: NodeId) -> None:
        """Inform this node again: its region has registered anew."""
        self._informed.pop(node, None)
