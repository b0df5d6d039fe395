"""One coordinator's estimates of the loads of its type's shards, for the strategy least-load.

    region ──ShardLoads, every few seconds──> coordinator ──averages──> strategy least-load

A region reports the load of each of its shards, and its node's spare capacity (`shard_load`). A
report replaces half of the known figures after `HALF_LIFE_S`, so a short burst moves nothing. A
load belongs to the shard and goes with it to its next home. A shard that its region leaves out of
the report had no load. A new coordinator has no loads; every region reports within seconds, and
until then nothing is moved for balance.

Nodes may differ in `sharding.load` while an operator changes it. The coordinator's own setting
rules: a report in another unit is noted and does not count, so nothing moves for balance until the
last node has the new setting.

**Cool-down.** A shard that has moved for balance rests for `rebalance_cool_down`. The load that
sent it was measured at the old home; at the new one it is known after some half-lives.

A shard that is too hot to be balanced by any move is noted once, when it has been so for
`LASTING_S`.

Source: docs/how-to/tune.md; N.9, S3.20.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardbus.ids import NodeId
from shardbus.sharding.events import Note
from shardbus.sharding.messages import ShardLoads
from shardbus.sharding.table import ShardTable

HALF_LIFE_S = 20.0
"""Seconds after which a reported load has replaced half of the known one."""

LASTING_S = 30.0
"""Seconds that a condition must last before it is noted."""


class LoadEstimates:
    """The averages of the loads of one type. `kind`: their unit, `sharding.load`; `cool_down`: the
    seconds between two moves of one shard."""

    __slots__ = (
        "_cool_down", "_hot_since", "_noted", "_other_kinds", "_reported_at", "_rests", "kind",
        "loads", "spare",
    )  # fmt: skip

    def __init__(self, kind: str = "messages", cool_down: float = 0.0) -> None:
        self.kind, self._cool_down = kind, cool_down
        self.loads: dict[str, float] = {}
        self.spare: dict[NodeId, float] = {}
        """The spare capacity of each node for the type."""
        self._reported_at: dict[NodeId, float] = {}
        """When each region last reported."""
        self._rests: dict[str, float] = {}
        """Shards that have moved, and until when they rest."""
        self._hot_since: dict[str, float] = {}
        self._noted: dict[str, None] = {}
        self._other_kinds: dict[NodeId, str] = {}

    def record(self, report: ShardLoads, table: ShardTable, now: float) -> list[Note]:
        """Record a region's report of its own shards and its node. Figures of other shards are
        ignored. Returns a note if the report's unit is another than before, and not this
        coordinator's."""
        node = report.node
        if report.kind != self.kind:
            self._reported_at.pop(node, None)
            if self._other_kinds.get(node) == report.kind:
                return []
            self._other_kinds[node] = report.kind
            text = f"{node} reports {report.kind:.20}, sharding.load is {self.kind} here"
            return [Note("load_kind", text)]
        self._other_kinds.pop(node, None)
        passed = now - self._reported_at.get(node, now)
        self._reported_at[node] = now
        part = 1.0 - 0.5 ** (passed / HALF_LIFE_S)
        for shard in table.shards_at(node):
            load = max(0.0, report.loads.get(shard, 0.0))
            before = self.loads.get(shard)
            self.loads[shard] = load if before is None else before + part * (load - before)
        spare = self.spare.get(node, report.spare)
        self.spare[node] = spare + part * (report.spare - spare)
        return []

    def shard_loads(self, table: ShardTable) -> dict[str, float] | None:
        """Return the load of every shard that has a home; None while a region that has shards has
        not reported."""
        for gone in [node for node in self._reported_at if node not in table.regions]:
            del self._reported_at[gone]
        self.spare = {node: self.spare[node] for node in self._reported_at}
        if any(shards and node not in self._reported_at for node, shards in table.regions.items()):
            return None
        return {shard: self.loads[shard] for shard in table.homes if shard in self.loads}

    def moved(self, shards: Iterable[str], now: float) -> None:
        """Record that these shards move now, for balance."""
        if self._cool_down:
            self._rests |= dict.fromkeys(shards, now + self._cool_down)

    def resting(self, now: float) -> tuple[str, ...]:
        """Return the shards that may not move for balance yet."""
        self._rests = {shard: until for shard, until in self._rests.items() if until > now}
        return tuple(self._rests)

    def hot_notes(self, hot: Mapping[str, float], now: float) -> list[Note]:
        """Return a note for each shard that has been too hot for `LASTING_S`, once. `hot` has the
        shards that are too hot now, with their part of all load."""
        self._hot_since = {shard: self._hot_since.get(shard, now) for shard in hot}
        self._noted = {shard: None for shard in self._noted if shard in hot}
        notes = []
        for shard, since in self._hot_since.items():
            if now - since >= LASTING_S and shard not in self._noted:
                self._noted[shard] = None
                text = f"shard {shard} gets {hot[shard]:.0%} of all"
                notes.append(Note("hot_shard", text, shard=shard))
        return notes
