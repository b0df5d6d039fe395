"""How much is sent to each shard, as a coordinator knows it from what regions report.

    region ──ShardLoads, every few seconds──> coordinator ──smoothed──> strategy least-load

A load is messages a second, as sampled by the region. What is told counts half after `HALF_LIFE_S`,
so a short burst moves nothing. It belongs to the shard and goes with it to its next home. A shard
of which its region says nothing had no messages.

A coordinator that takes over knows no loads. It hears them from everybody within seconds, and
until then nothing is moved for them.

A shard that is too hot to be balanced is told once, when it has been so for a while.

Source: N.9; T.M1.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.ids import NodeId
from shardbus.sharding.events import Note
from shardbus.sharding.table import ShardTable

HALF_LIFE_S = 20.0

LASTING_S = 30.0
"""A shard is hot for so long before it is told."""


class LoadEstimates:
    """The loads of one type."""

    __slots__ = ("_heard", "_hot", "_told", "loads")

    def __init__(self) -> None:
        self.loads: dict[str, float] = {}
        self._heard: dict[NodeId, float] = {}
        """Who has reported, and when last."""
        self._hot: dict[str, float] = {}
        self._told: dict[str, None] = {}

    def hear(
        self, node: NodeId, reported: Mapping[str, float], table: ShardTable, now: float
    ) -> None:
        """A region says what its shards get. Of others it cannot say anything."""
        passed = now - self._heard.get(node, now)
        self._heard[node] = now
        part = 1.0 - 0.5 ** (passed / HALF_LIFE_S)
        for shard in table.shards_at(node):
            load = max(0.0, reported.get(shard, 0.0))
            before = self.loads.get(shard)
            self.loads[shard] = load if before is None else before + part * (load - before)

    def known(self, table: ShardTable) -> dict[str, float] | None:
        """The load of every shard that has a home; None while a region that has shards has not
        reported."""
        for gone in [node for node in self._heard if node not in table.regions]:
            del self._heard[gone]
        if any(shards and node not in self._heard for node, shards in table.regions.items()):
            return None
        return {shard: self.loads[shard] for shard in table.homes if shard in self.loads}

    def tell(self, hot: Mapping[str, float], now: float) -> list[Note]:
        """What is to be said of shards that are too hot now."""
        self._hot = {shard: self._hot.get(shard, now) for shard in hot}
        self._told = {shard: None for shard in self._told if shard in hot}
        notes = []
        for shard, since in self._hot.items():
            if now - since >= LASTING_S and shard not in self._told:
                self._told[shard] = None
                notes.append(Note("hot_shard", f"shard {shard} gets {hot[shard]:.0%} of all"))
        return notes
