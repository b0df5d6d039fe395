"""The number of instances of a type, and the rows that follow from it: one coordinator's view.

N follows the nodes that may host (`instances.Instances.wanted`). It grows at once, because new rows
cost nothing that runs. It shrinks when fewer have been enough for `SHRINK_AFTER_S`: a node that
restarts comes back sooner, and its rows then have a place again. Meanwhile the row of a dead node
that finds no node without a row of its shard has no home.

    nodes come ──> N grows ──> rows need homes ──> homes
    nodes go ───> SHRINK_AFTER_S ──> N shrinks ──> rows above it stop, and get no home

With `per_instance` and its like, N follows the load as well, which regions report
(`LoadInstances`): after `RISES_AFTER_S` of more load than the instances can bear, and after
`FALLS_AFTER_S` of less than half of it. So a gust of load changes nothing. The user's expected
messages count like arrived ones. While a region of an earlier release leaves out a figure that
matters, N does not fall.

A coordinator that takes over finds N in the table: the highest row. The number is sent to every
region and proxy once, and again when it changes; regions pass it on to their clients.

Source: docs/partitions.md; S3.48, S3.49.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from shardbus.ids import NodeId
from shardbus.sharding.instances import Instances, TypeLoad, row_of, split_row
from shardbus.sharding.messages import ShardLoads
from shardbus.sharding.table import ShardTable

SHRINK_AFTER_S = 10.0
"""Seconds for which fewer instances must be enough before there are fewer."""
RISES_AFTER_S = 30.0
"""Seconds for which the load must be more than the instances are enough for."""
FALLS_AFTER_S = 300.0
"""Seconds for which the load must be less than half of the load that the instances can bear."""


class LoadInstances:
    """The number of instances that the load of a type calls for. `count` is at least 1."""

    __slots__ = ("_instances", "_since", "_too_many", "count", "loads")

    def __init__(self, instances: Instances) -> None:
        self.count = 1
        self.loads: dict[NodeId, TypeLoad] = {}
        """The load of the type at each node, as reported last."""
        self._instances = instances
        self._since: float | None = None
        """Since when the load has called for another number; below, in which direction."""
        self._too_many = False

    def record(self, report: ShardLoads) -> None:
        """Record a region's report of the whole type, whatever the unit of its loads."""
        rate = sum(report.loads.values()) if report.rate is None else report.rate
        load = TypeLoad(rate, report.busy, report.waiting, report.expected)
        self.loads[report.node] = load

    def forget_others(self, nodes: Iterable[NodeId]) -> None:
        """Forget the loads of nodes that are not among these."""
        self.loads = {node: self.loads[node] for node in nodes if node in self.loads}

    def update(self, now: float) -> None:
        """Compare the load with the load that the instances can bear."""
        if not self._instances.follows_load:
            return
        needed = self._instances.called_for(self._total())
        lacking = any(map(self._instances.lacks, self.loads.values()))
        too_few = needed > self.count
        too_many = self.count > 1 and needed < self.count / 2 and not lacking
        if not (too_few or too_many):
            self._since = None
        elif self._since is None or too_many is not self._too_many:
            self._since, self._too_many = now, too_many
        due = self.deadline()
        if due is not None and now >= due:
            self.count, self._since = max(1, ceil(needed)), None

    def _total(self) -> TypeLoad:
        """Return the load at all nodes together."""
        loads = self.loads.values()
        return TypeLoad(
            sum(load.rate for load in loads),
            sum(load.busy or 0.0 for load in loads),
            sum(load.waiting or 0.0 for load in loads),
            max((load.expected for load in loads), default=0.0),
        )

    def deadline(self) -> float | None:
        """Return when the number changes if the load stays as it is."""
        if self._since is None:
            return None
        return self._since + (FALLS_AFTER_S if self._too_many else RISES_AFTER_S)


class InstanceRows:
    """N of one type. `count` is 0 until it is known."""

    __slots__ = ("_fewer_since", "_informed", "_instances", "_last_table", "by_load", "count")

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self.by_load = LoadInstances(instances)
        self.count = 0
        self._fewer_since: float | None = None
        self._informed: dict[NodeId, int] = {}
        self._last_table: ShardTable | None = None

    def is_new(self, table: ShardTable) -> bool:
        """True once for each table; rows above N, and those that are missing, are looked for in a
        new one only."""
        before, self._last_table = self._last_table, table
        return table is not before

    def load(self, rows: Iterable[str]) -> None:
        """Take over the rows of a table."""
        self.count = max((split_row(row)[1] for row in rows), default=0)
        if self._instances.follows_load:
            self.by_load.count = max(1, self.count)  # until the loads show otherwise

    def update(self, nodes: int, now: float) -> bool:
        """Use this number of nodes that may host; 0 if it is not known. Returns True if N has
        changed."""
        self.by_load.update(now)
        if nodes < 1:
            self._fewer_since = None
            return False
        count = self._instances.bounded(nodes, self.by_load.count)
        if count >= self.count:
            self._fewer_since = None
        elif self._fewer_since is None:
            self._fewer_since = now
        late = self._fewer_since is not None and now >= self._fewer_since + SHRINK_AFTER_S
        if count == self.count or not (count > self.count or late):
            return False
        self.count, self._fewer_since = count, None
        return True

    def deadline(self) -> float | None:
        """Return when N changes, if nodes and load stay as they are."""
        shrinks = None if self._fewer_since is None else self._fewer_since + SHRINK_AFTER_S
        dues = [due for due in (shrinks, self.by_load.deadline()) if due is not None]
        return min(dues, default=None)

    def exists(self, row: str) -> bool:
        """True if this is the row of an instance that there is."""
        return 0 < split_row(row)[1] <= self.count

    def siblings(self, row: str) -> list[str]:
        """Return all rows of the shard that a row belongs to."""
        return self.rows_of(split_row(row)[0])

    def rows_of(self, shard: str) -> list[str]:
        """Return all rows of a shard."""
        return [row_of(shard, k) for k in range(1, self.count + 1)]

    def to_inform(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Return the nodes that have not been sent N, each once."""
        before = self._informed
        self._informed = dict.fromkeys(nodes, self.count)
        return [node for node in self._informed if before.get(node) != self.count]

    def forget(self, node: NodeId) -> None:
        """Inform this node again: its region has registered anew."""
        self._informed.pop(node, None)
