"""The versions of the table that travel by gossip, with `sharding.homes = "gossip"`.

At the end of a turn the coordinator shows the table, the registered nodes and the shards on the
move. If any of them has changed, that is a new version: a TableState for the region on this node,
which passes it on (`region/table_gossip`). Changes within `PUBLISH_S` make one version, because
each version has every home in it.

A version has the settled homes of the table. Shards that are being handed off, or handed over
directly, are among its changes instead: their senders get the new home by the messages of the move,
which keep the order.

Source: S3.33, S3.37, S3.45, S3.54.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home, PartitionChange, TableState
from shardbus.sharding.table import ShardTable
from shardbus.sharding.table_state import pack_homes

PUBLISH_S = 0.05
"""Seconds between two versions."""

AWAITING, COMPLETE = "awaiting", "complete"

Shown = tuple[ShardTable, tuple[NodeId, ...], tuple[PartitionChange, ...]]


class TableVersions:
    """Numbers the tables of one coordinator."""

    __slots__ = ("_last", "_next_at", "due", "number")

    def __init__(self) -> None:
        self.number = 0
        """The number of the last version."""
        self.due: float | None = None
        """When a change that came too early for a version of its own gets one."""
        self._last: Shown | None = None
        self._next_at = 0.0

    def update(
        self,
        table: ShardTable,
        nodes: Iterable[NodeId],
        changes: Iterable[PartitionChange],
        settled: Callable[[str], Home | None],
        now: float,
    ) -> TableState | None:
        """Return the next version if there is one now. `settled` returns the home of a shard that
        does not move."""
        shown = (table, tuple(sorted(nodes)), tuple(changes))
        last, self.due = self._last, None
        if last is not None and last[1:] == shown[1:] and _same_homes(last[0], table):
            return None
        if now < self._next_at:
            self.due = self._next_at
            return None
        self._last, self._next_at = shown, now + PUBLISH_S
        self.number += 1
        members = dict.fromkeys(shown[1])
        homes = [
            home
            for shard, home in table.homes.items()
            if home.node in members and settled(shard) == home
        ]
        return TableState(table.epoch, self.number, shown[1], pack_homes(homes, shown[1]), shown[2])


def _same_homes(table: ShardTable, other: ShardTable) -> bool:
    return table is other or table.homes == other.homes
