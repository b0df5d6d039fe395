"""The coordinator's ledger: the shard table, its pending changes, and the one write under way.

    wanted_homes ──plan──> writing ──apply_write──> at home, in the table
    adopted ─────────────────^                          │
    freed ───────────────────^ <────────stopped─────────┘

`plan` takes everything that must change and makes one write of it: homes for wanted shards, homes
that regions reported and the table did not have, and the removal of freed shards that are not
wanted. `apply_write` applies the write to the table once it is durable. Between the two the table
is as the store had it before, and the shards of the write have no settled home.

The fence of a shard's home never falls. After a split in which both sides took turns at one table,
a region may report a home from before the other side's last grant. Entities may have been loaded
under that, and the store refuses the reported fence. The region keeps the shard under a new fence,
and restarts it: `renewed`.

A node may die while its shards are being written. `apply_write` finds that out: the shards are
wanted again. Their fences are not used a second time.

Source: S0.32, N.1; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from shardbus.bounds import EPOCH_SHIFT
from shardbus.ids import NodeId
from shardbus.sharding import table as tables
from shardbus.sharding.allocation.distinct import nodes_by_shard
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.coordinator.history import ShardHistory
from shardbus.sharding.instances import split_row
from shardbus.sharding.intents import intent_row, split_intents
from shardbus.sharding.messages import Home


class PendingWrite(msgspec.Struct):
    """One write under way. In `homes`, None removes the home of the shard."""

    op_id: int
    homes: dict[str, Home | None]
    attempts: int = 0
    intents: dict[str, Home | None] = msgspec.field(default_factory=dict)
    """The same for the intents of direct moves."""
    why: str = ""
    """Why the last attempt failed."""

    def stored(self) -> dict[str, tuple[NodeId, int] | None]:
        """Return the homes and the intents in the form that the store takes."""
        rows = self.homes | {intent_row(shard): home for shard, home in self.intents.items()}
        return {
            row: None if home is None else (home.node, home.fence) for row, home in rows.items()
        }


class WantedHome(msgspec.Struct, frozen=True):
    """Where a wanted shard goes if it can, and nodes to avoid if there are others."""

    target: NodeId | None = None
    avoid: tuple[NodeId, ...] = ()


ANY_HOME = WantedHome()
CONFIRM_S = 10.0
"""Seconds without a write after which the coordinator writes an empty change, to check that the
store still accepts its epoch."""

Hosts = Callable[[tuple[NodeId, ...]], tuple[NodeId, ...]]
"""Returns the nodes that may get shards; its argument is the nodes to avoid."""


class Homeless(msgspec.Struct, frozen=True):
    """The shards that need a home, as a question for a strategy. It reads nothing that changes, so
    another thread may pose it. Without groups there is no question."""

    shards: tuple[str, ...]
    targets: Mapping[str, NodeId]
    """Of those for which a node was chosen before."""
    groups: Mapping[tuple[NodeId, ...], tuple[str, ...]]
    """The others, by the nodes that may get them."""
    avoiding: tuple[str, ...]
    """Those with nodes to avoid."""
    nodes: tuple[NodeId, ...]
    """Those that may get any of them."""
    table: tables.ShardTable
    """The table without the old homes of the shards."""

    def able(self) -> dict[NodeId, None]:
        """Return every node that may get one of the shards."""
        return dict.fromkeys((*self.nodes, *chain(*self.groups), *self.targets.values()))

    def place(self, strategy: AllocationStrategy, loads: Mapping[str, float]) -> dict[str, NodeId]:
        """Return the node of each shard; the row of an instance may find none."""
        chosen = dict(self.targets)

        def allocate(group: Sequence[str], nodes: tuple[NodeId, ...]) -> None:
            homes = (Home(shard, node, self.table.next_fence) for shard, node in chosen.items())
            so_far = self.table.updated_all(tables.ShardHomeAllocated(home) for home in homes)
            chosen.update(strategy.allocate(so_far, loads, group, nodes))

        for nodes, group in self.groups.items():
            allocate(list(group), nodes)
        # The other nodes may host siblings of a row: then a node to avoid is the only one left.
        avoiding = [shard for shard in self.avoiding if shard not in chosen]
        if avoiding:
            allocate(avoiding, self.nodes)
        return chosen


Place = Callable[[Homeless], Mapping[str, NodeId] | None]
"""Chooses the nodes of homeless shards; None if it is not decided yet."""


def no_hosts(avoid: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Return no node: nothing may be allocated yet."""
    return ()


class ReportFindings(msgspec.Struct, frozen=True):
    """The findings of a region's report, compared with the table."""

    confirmed: list[Home]
    """Homes that both have."""
    adopted: list[Home]
    """Homes that count although the table has none, or an older one."""
    renewed: list[Home]
    """Homes that count under a new fence: the reported one is below the shard's last one."""
    losers: list[Home]
    """Homes that have ended because another home has a higher fence."""
    missing: list[Home]
    """Homes that the table has at the region, and the region does not host."""


@dataclass(slots=True, eq=False, repr=False)
class Ledger:
    """The table, and its pending changes."""

    table: tables.ShardTable
    wanted_homes: dict[str, WantedHome] = field(default_factory=dict)
    freed: dict[str, Home] = field(default_factory=dict)
    adopted: dict[str, Home] = field(default_factory=dict)
    intents: dict[str, Home | None] = field(default_factory=dict)
    """Intents of direct moves to be written; None removes one."""
    writing: PendingWrite | None = None
    history: ShardHistory = field(default_factory=ShardHistory)
    rows: bool = False
    """The type has instances: its shards are rows."""
    _unwanted: dict[str, None] = field(default_factory=dict)
    """Shards that have lost their home and get no other: the store may still have the row."""
    _ops: int = 0
    _fence: int = 0
    _fences: dict[str, int] = field(default_factory=dict)
    """The fence of each shard's last stored home, whether or not the table still has it."""
    _former: int = 0

    def load(
        self, epoch: int, rows: Mapping[str, tuple[NodeId, int]], former: int = 0
    ) -> dict[str, Home]:
        """Set the table to the stored one, under a new epoch; return the intents by shard.
        `former`: the last epoch before it, 0 if the store has lost its table."""
        homes, intents = split_intents(rows)
        nodes = sorted({node for node, _ in homes.values()})
        events: list[tables.TableEvent] = [tables.RegionRegistered(node) for node in nodes]
        events += [
            tables.ShardHomeAllocated(Home(shard, node, fence))
            for shard, (node, fence) in homes.items()
        ]
        self.table = tables.ShardTable(epoch, self.table.layout).updated_all(events)
        self._fence = max((home.fence for home in intents.values()), default=0)
        self._fences = {shard: fence for shard, (_, fence) in homes.items()}
        self._former = former
        return intents

    def take_fence(self) -> int:
        """Return a fence for a new home, which no other home gets."""
        self._fence = self._next_fence()
        return self._fence

    def home_of(self, shard: str) -> Home | None:
        """Return the home of the shard if it is settled: durable, and not about to change."""
        changing = shard in self.freed or shard in self.adopted
        if changing or (self.writing is not None and shard in self.writing.homes):
            return None
        return self.table.homes.get(shard)

    def changing(self) -> Iterator[str]:
        """Yield the shards whose home is not settled, some of them twice."""
        yield from self.freed
        yield from self.adopted
        yield from self.writing.homes if self.writing is not None else ()

    def being_moved(self) -> Iterator[tuple[str, NodeId, NodeId]]:
        """Yield the shards whose new home is being written, with their old node and the new."""
        for shard, home in self.writing.homes.items() if self.writing is not None else ():
            before = self.table.homes.get(shard)
            if home is not None and before is not None:
                yield shard, before.node, home.node

    def is_nowhere(self, shard: str) -> bool:
        """True if the shard has no home, and none is needed or being written."""
        coming = self.writing is not None and self.writing.homes.get(shard) is not None
        awaited = shard in self.adopted or shard in self.wanted_homes
        left = shard in self.freed or shard not in self.table.homes
        return left and not awaited and not coming

    def homes(self) -> list[Home]:
        """Return every settled home."""
        return [home for shard in self.table.homes if (home := self.home_of(shard)) is not None]

    def want(self, shard: str, need: WantedHome = ANY_HOME) -> None:
        """Get a home for the shard. A target or nodes to avoid that were set before stand unless
        `need` has others."""
        if need != ANY_HOME or shard not in self.wanted_homes:
            self.wanted_homes[shard] = need

    def forget_wanted(self, shard: str) -> None:
        """Get no home for the shard after all. Its stored row is removed."""
        if self.wanted_homes.pop(shard, None) is not None and shard not in self.table.homes:
            self._unwanted[shard] = None

    def free(self, home: Home, why: str, since: float) -> None:
        """Record that the shard stopped at its home, why, and when that began."""
        self.freed[home.shard] = home
        self.history.leaves(home, why, since)

    def arriving(self) -> list[Move]:
        """Return the moves with a target whose shard has stopped and has no durable home yet."""
        return [
            Move(shard, home.node, target)
            for shard, home in self.freed.items()
            if (target := self.wanted_homes.get(shard, ANY_HOME).target) is not None
        ]

    def reconcile(self, node: NodeId, hosted: Iterable[Home]) -> ReportFindings:
        """Compare a region's shards with the table. Of two homes the one with the higher fence
        counts. If its node is gone, the other one counts, under a new fence."""
        findings = ReportFindings([], [], [], [], [])
        reported = {home.shard: home for home in hosted if home.node == node}
        for shard, home in reported.items():
            rival = self.adopted.get(shard) or self.table.homes.get(shard)
            if rival == home:
                findings.confirmed.append(home)
            elif rival is None and home.fence < self._last_fence(shard):
                self.adopted[shard] = renewed = Home(shard, node, self.take_fence())
                findings.renewed.append(renewed)
            elif rival is None or home.fence > rival.fence:
                self.adopted[shard] = home
                findings.adopted.append(home)
                findings.losers.extend([rival] if rival is not None and rival.node != node else ())
            elif rival.node != node:
                findings.losers.append(home)
        at_node = (self.table.homes[shard] for shard in self.table.shards_at(node))
        findings.missing.extend(home for home in at_node if reported.get(home.shard) != home)
        return findings

    def _last_fence(self, shard: str) -> int:
        """Return the fence below which no home of the shard counts. Without a row it is the first
        one of the former coordinator, which may have granted the shard and removed the row."""
        return self._fences.get(shard, self._former << EPOCH_SHIFT)

    def hosts_nothing(self, node: NodeId) -> bool:
        """True if no shard has its home at the node, or is about to get it."""
        writing = self.writing.homes.values() if self.writing is not None else ()
        coming = [*writing, *self.adopted.values()]
        return not self.table.shards_at(node) and all(
            home is None or home.node != node for home in coming
        )

    def register(self, node: NodeId, now: float, *, proxy: bool) -> None:
        """Record the node as a region or a proxy. The shards of a region that becomes a proxy need
        homes."""
        events: list[tables.TableEvent] = []
        if proxy and node in self.table.regions:
            self._orphan(node, "proxy", now)
            events.append(tables.RegionTerminated(node))
        if not proxy and node in self.table.proxies:
            events.append(tables.ProxyTerminated(node))
        if proxy and node not in self.table.proxies:
            events.append(tables.ProxyRegistered(node))
        if not proxy and node not in self.table.regions:
            events.append(tables.RegionRegistered(node))
        self.table = self.table.updated_all(events)

    def remove_nodes(self, nodes: Iterable[NodeId], now: float) -> list[str]:
        """Remove dead nodes; return their shards, which need homes now."""
        events: list[tables.TableEvent] = []
        orphans: list[str] = []
        for node in nodes:
            if node in self.table.regions:
                orphans += self._orphan(node, "node_gone", now)
                events.append(tables.RegionTerminated(node))
            else:
                events.append(tables.ProxyTerminated(node))
        self.table = self.table.updated_all(events)
        for shard, home in list(self.adopted.items()):
            if home.node not in self.table.regions:
                del self.adopted[shard]
                if shard not in self.table.homes:
                    self.want(shard)
        return orphans

    def plan(self, place: Place, hosts: Hosts) -> PendingWrite | None:
        """Start one write of all pending changes; None if one is under way or nothing changes.
        Without any host there are no new homes. A shard for which `place` has not decided yet keeps
        its home."""
        if self.writing is not None:
            return None
        homeless = self._find_homeless(hosts)
        chosen = place(homeless) if homeless.groups else {}
        homes: dict[str, Home | None] = dict.fromkeys((*self._unwanted, *self.freed))
        for shard in chain(*homeless.groups.values()) if chosen is None else ():
            homes.pop(shard, None)
        self._unwanted = {}
        homes.update(
            {s: home for s, home in self.adopted.items() if home.node in self.table.regions}
        )
        homes.update(self._homes_at(homeless, {**homeless.targets, **(chosen or {})}))
        return self._write(homes) if homes or self.intents else None

    def probe(self) -> PendingWrite | None:
        """Start a write that changes nothing, and that the store refuses if this epoch is over."""
        return None if self.writing is not None else self._write({})

    def _write(self, homes: dict[str, Home | None]) -> PendingWrite:
        self._ops += 1
        intents, self.intents = self.intents, {}
        op_id = self.table.epoch << EPOCH_SHIFT | self._ops
        self.writing = PendingWrite(op_id, homes, intents=intents)
        return self.writing

    def apply_write(self, now: float) -> list[Home]:
        """Apply the write, which is durable; return the new homes, to be announced."""
        assert self.writing is not None
        writing, self.writing = self.writing, None
        events: list[tables.TableEvent] = []
        homes: list[Home] = []
        for shard, home in writing.homes.items():
            before = self.table.homes.get(shard)
            if before is not None:
                events.append(tables.ShardHomeDeallocated(shard))
            self.freed.pop(shard, None)
            reported = self.adopted.get(shard) == home is not None
            if home is None or home.node in self.table.regions:
                epoch = self.table.epoch
                self.history.record(shard, before, home, epoch, now, reported=reported)
            if home is None:
                continue
            self._fences[shard] = home.fence
            self.adopted.pop(shard, None)
            if home.node in self.table.regions:
                events.append(tables.ShardHomeAllocated(home))
                homes.append(home)
                self.wanted_homes.pop(shard, None)
            else:
                self.want(shard)
        self.table = self.table.updated_all(events)
        return homes

    def check(self) -> None:
        """Check that a freed shard is free of the home that the table has; for tests."""
        self.table.check()
        for shard, home in self.freed.items():
            assert self.table.homes.get(shard, home) == home, shard

    def _find_homeless(self, hosts: Hosts) -> Homeless:
        shards = tuple(shard for shard in self.wanted_homes if self._homeless(shard))
        nodes = hosts(())
        if not shards or not nodes:
            return Homeless((), {}, {}, (), nodes, self.table)
        targets: dict[str, NodeId] = {}
        able: dict[tuple[NodeId, ...], tuple[NodeId, ...]] = {}
        groups: dict[tuple[NodeId, ...], list[str]] = {}
        for shard in shards:
            need = self.wanted_homes[shard]
            if need.avoid not in able:
                able[need.avoid] = hosts(need.avoid)
            target = need.target if need.target in able[need.avoid] else None
            if target is not None and not self._has_sibling(shard, target, targets):
                targets[shard] = target
            else:
                groups.setdefault(able[need.avoid], []).append(shard)
        grouped = {able: tuple(group) for able, group in groups.items()}
        avoiding = tuple(shard for shard in shards if self.wanted_homes[shard].avoid)
        return Homeless(shards, targets, grouped, avoiding, nodes, self._without(shards))

    def _homes_at(self, homeless: Homeless, chosen: Mapping[str, NodeId]) -> dict[str, Home]:
        """Return the new homes of these shards at the chosen nodes. Rows of a shard stay on
        distinct nodes, though the nodes may have been chosen a while ago."""
        taken = nodes_by_shard(homeless.table) if self.rows and chosen else {}
        placed: dict[str, NodeId] = {}
        for shard in homeless.shards if chosen else ():
            node = chosen.get(shard)
            if node is None:
                continue
            if self.rows:
                siblings = taken.setdefault(split_row(shard)[0], {})
                if node in siblings:
                    continue
                siblings[node] = None
            placed[shard] = node
        if not placed:
            return {}
        first = self._next_fence()
        self._fence = first + len(homeless.shards) - 1
        return {
            shard: Home(shard, placed[shard], first + i)
            for i, shard in enumerate(homeless.shards)
            if shard in placed
        }

    def _has_sibling(self, row: str, node: NodeId, chosen: Mapping[str, NodeId]) -> bool:
        """True if the node hosts another row of the same shard, or gets one."""
        if not self.rows:
            return False
        shard, _ = split_row(row)
        there = [*self.table.shards_at(node), *(r for r, at in chosen.items() if at == node)]
        return any(split_row(other)[0] == shard for other in there if other != row)

    def _homeless(self, shard: str) -> bool:
        at_home = shard in self.table.homes and shard not in self.freed
        return not at_home and shard not in self.adopted

    def _without(self, shards: Iterable[str]) -> tables.ShardTable:
        """Return the table without the old homes of these shards."""
        leaving = [shard for shard in shards if shard in self.table.homes]
        return self.table.updated_all(tables.ShardHomeDeallocated(shard) for shard in leaving)

    def _next_fence(self) -> int:
        reported = max((home.fence for home in self.adopted.values()), default=0)
        return max(self.table.next_fence, self._fence + 1, reported + 1)

    def _orphan(self, node: NodeId, why: str, now: float) -> list[str]:
        shards = list(self.table.shards_at(node))
        for shard in shards:
            self.history.leaves(self.table.homes[shard], why, now)
            self.freed.pop(shard, None)
            self.want(shard)
        return shards
