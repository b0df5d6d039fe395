"""The coordinator's book: the shard table, what is to change in it, and the one write under way.

    wanted ──plan──> writing ──written──> at home, in the table
    adopted ───────────^                      │
    freed ─────────────^ <──────stopped───────┘

`plan` takes everything that is to change and makes one write of it: homes for what is wanted, homes
that regions reported and the table did not know, and the removal of what was freed and nobody
wants. `written` applies it to the table. Between the two the table is as the store had it before,
and the shards of the write have no settled home for anybody.

A node that dies while its shards are being written is found at `written`: they are wanted again.
The fences they had are not given a second time.

Source: S0.32; C.35; N.1; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import AllocationStrategy, Move
from shardbus.sharding.coordinator.history import ShardHistory
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    EPOCH_SHIFT,
    ProxyRegistered,
    ProxyTerminated,
    RegionRegistered,
    RegionTerminated,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
    TableEvent,
)


@dataclass(slots=True)
class PendingWrite:
    """One write under way. `homes`: None where the shard's home is removed."""

    op_id: int
    homes: dict[str, Home | None]
    attempts: int = 0

    def stored(self) -> dict[str, tuple[NodeId, int] | None]:
        """As the store takes it."""
        return {
            shard: None if home is None else (home.node, home.fence)
            for shard, home in self.homes.items()
        }


@dataclass(frozen=True, slots=True)
class WantedHome:
    """Where a wanted shard should go, and where it must not."""

    target: NodeId | None = None
    avoid: tuple[NodeId, ...] = ()


NO_WISH = WantedHome()
CONFIRM_S = 10.0
"""After so long without a write the store is asked whether it still takes one."""

Hosts = Callable[[tuple[NodeId, ...]], tuple[NodeId, ...]]
"""Who may be given shards, if these are to be avoided."""


def nobody(avoid: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """There is no time yet to give shards away."""
    return ()


@dataclass(frozen=True, slots=True)
class ReportFindings:
    """What a region's report means for the table."""

    confirmed: list[Home]
    """Both agree."""
    adopted: list[Home]
    """The region is right: the table did not know, or had an older home."""
    losers: list[Home]
    """These homes are over, whoever has them."""
    missing: list[Home]
    """The table is right: the region does not have what lives there."""


class Ledger:
    """The table and what is to change in it."""

    __slots__ = ("_fence", "_ops", "adopted", "freed", "history", "table", "wanted", "writing")

    def __init__(self, layout: str) -> None:
        self.table = ShardTable(0, layout)
        self.wanted: dict[str, WantedHome] = {}
        self.freed: dict[str, Home] = {}
        self.adopted: dict[str, Home] = {}
        self.writing: PendingWrite | None = None
        self.history = ShardHistory()
        self._ops = 0
        self._fence = 0

    def open(self, epoch: int, homes: Mapping[str, tuple[NodeId, int]]) -> None:
        """Begin with what the store held, under a new epoch."""
        nodes = sorted({node for node, _ in homes.values()})
        events: list[TableEvent] = [RegionRegistered(node) for node in nodes]
        events += [
            ShardHomeAllocated(Home(shard, node, fence)) for shard, (node, fence) in homes.items()
        ]
        self.table = ShardTable(epoch, self.table.layout).updated_all(events)

    def home_of(self, shard: str) -> Home | None:
        """The home of the shard, if it is settled: durable, and not about to change."""
        changing = shard in self.freed or shard in self.adopted
        if changing or (self.writing is not None and shard in self.writing.homes):
            return None
        return self.table.homes.get(shard)

    def is_nowhere(self, shard: str) -> bool:
        """The shard has no home, and none is about to be written or wanted."""
        coming = self.writing is not None and self.writing.homes.get(shard) is not None
        known = shard in self.adopted or shard in self.wanted
        left = shard in self.freed or shard not in self.table.homes
        return left and not known and not coming

    def homes(self) -> list[Home]:
        """Every settled home."""
        return [home for shard in self.table.homes if (home := self.home_of(shard)) is not None]

    def want(self, shard: str, wish: WantedHome = NO_WISH) -> None:
        """The shard shall have a home; an earlier wish stands unless this one says more."""
        if wish != NO_WISH or shard not in self.wanted:
            self.wanted[shard] = wish

    def free(self, home: Home, why: str, since: float) -> None:
        """The shard stopped at its home; why, and since when it was about to."""
        self.freed[home.shard] = home
        self.history.leaves(home, why, since)

    def arriving(self) -> list[Move]:
        """The moves to a chosen target whose shard has left and has no durable home yet."""
        return [
            Move(shard, home.node, target)
            for shard, home in self.freed.items()
            if (target := self.wanted.get(shard, NO_WISH).target) is not None
        ]

    def reconcile(self, node: NodeId, hosted: Iterable[Home]) -> ReportFindings:
        """Compare what a region hosts with the table: of two homes the higher fence counts."""
        found = ReportFindings([], [], [], [])
        reported = {home.shard: home for home in hosted if home.node == node}
        for shard, home in reported.items():
            rival = self.adopted.get(shard) or self.table.homes.get(shard)
            if rival == home:
                found.confirmed.append(home)
            elif rival is None or home.fence > rival.fence:
                self.adopted[shard] = home
                found.adopted.append(home)
                found.losers.extend([rival] if rival is not None and rival.node != node else ())
            elif rival.node != node:
                found.losers.append(home)
        at_node = (self.table.homes[shard] for shard in self.table.shards_at(node))
        found.missing.extend(home for home in at_node if reported.get(home.shard) != home)
        return found

    def is_clear_of(self, node: NodeId) -> bool:
        """Whether nothing lives at the node or is about to."""
        writing = self.writing.homes.values() if self.writing is not None else ()
        coming = [*writing, *self.adopted.values()]
        return not self.table.shards_at(node) and all(
            home is None or home.node != node for home in coming
        )

    def add(self, node: NodeId, now: float, *, proxy: bool) -> None:
        """The node is a region or a proxy; the shards of a region that became a proxy are
        wanted."""
        events: list[TableEvent] = []
        if proxy and node in self.table.regions:
            self._orphan(node, "proxy", now)
            events.append(RegionTerminated(node))
        if not proxy and node in self.table.proxies:
            events.append(ProxyTerminated(node))
        if proxy and node not in self.table.proxies:
            events.append(ProxyRegistered(node))
        if not proxy and node not in self.table.regions:
            events.append(RegionRegistered(node))
        self.table = self.table.updated_all(events)

    def bury(self, nodes: Iterable[NodeId], now: float) -> list[str]:
        """The nodes are dead; returns their shards, which are wanted now."""
        events: list[TableEvent] = []
        orphans: list[str] = []
        for node in nodes:
            if node in self.table.regions:
                orphans += self._orphan(node, "node_gone", now)
                events.append(RegionTerminated(node))
            else:
                events.append(ProxyTerminated(node))
        self.table = self.table.updated_all(events)
        for shard, home in list(self.adopted.items()):
            if home.node not in self.table.regions:
                del self.adopted[shard]
                if shard not in self.table.homes:
                    self.want(shard)
        return orphans

    def plan(self, strategy: AllocationStrategy, hosts: Hosts) -> PendingWrite | None:
        """One write of everything that is to change; `hosts` says who may be given shards, and
        without any there are no new homes."""
        if self.writing is not None:
            return None
        homes: dict[str, Home | None] = dict.fromkeys(self.freed)
        homes.update(
            {s: home for s, home in self.adopted.items() if home.node in self.table.regions}
        )
        homes.update(self._allocations(strategy, hosts))
        return self._write(homes) if homes else None

    def write_nothing(self) -> PendingWrite | None:
        """A write that the store refuses if this epoch is over, and that changes nothing."""
        return None if self.writing is not None else self._write({})

    def _write(self, homes: dict[str, Home | None]) -> PendingWrite:
        self._ops += 1
        self.writing = PendingWrite(self.table.epoch << EPOCH_SHIFT | self._ops, homes)
        return self.writing

    def written(self, now: float) -> list[Home]:
        """The write is durable: apply it, and return the new homes, to be announced."""
        assert self.writing is not None
        writing, self.writing = self.writing, None
        events: list[TableEvent] = []
        homes: list[Home] = []
        for shard, home in writing.homes.items():
            before = self.table.homes.get(shard)
            if before is not None:
                events.append(ShardHomeDeallocated(shard))
            self.freed.pop(shard, None)
            reported = self.adopted.get(shard) == home is not None
            if home is None or home.node in self.table.regions:
                epoch = self.table.epoch
                self.history.written(shard, before, home, epoch, now, reported=reported)
            if home is None:
                continue
            self.adopted.pop(shard, None)
            if home.node in self.table.regions:
                events.append(ShardHomeAllocated(home))
                homes.append(home)
                self.wanted.pop(shard, None)
            else:
                self.want(shard)
        self.table = self.table.updated_all(events)
        return homes

    def check(self) -> None:
        """Audit: a shard is in one place of the book."""
        self.table.check()
        for shard, home in self.freed.items():
            assert self.table.homes.get(shard, home) == home, shard

    def _allocations(self, strategy: AllocationStrategy, hosts: Hosts) -> dict[str, Home]:
        shards = [shard for shard in self.wanted if self._homeless(shard)]
        if not shards or not hosts(()):
            return {}
        chosen: dict[str, NodeId] = {}
        able: dict[tuple[NodeId, ...], tuple[NodeId, ...]] = {}
        groups: dict[tuple[NodeId, ...], list[str]] = {}
        for shard in shards:
            wish = self.wanted[shard]
            if wish.avoid not in able:
                able[wish.avoid] = hosts(wish.avoid)
            if wish.target is not None and wish.target in able[wish.avoid]:
                chosen[shard] = wish.target
            else:
                groups.setdefault(able[wish.avoid], []).append(shard)
        table = self._without(shards)
        for nodes, group in groups.items():
            homes = (Home(shard, node, table.next_fence) for shard, node in chosen.items())
            so_far = table.updated_all(ShardHomeAllocated(home) for home in homes)
            chosen.update(strategy.allocate(so_far, {}, group, nodes))
        first = self._next_fence()
        self._fence = first + len(shards) - 1
        return {shard: Home(shard, chosen[shard], first + i) for i, shard in enumerate(shards)}

    def _homeless(self, shard: str) -> bool:
        at_home = shard in self.table.homes and shard not in self.freed
        return not at_home and shard not in self.adopted

    def _without(self, shards: Iterable[str]) -> ShardTable:
        """The table as it is once these shards have left their old homes."""
        leaving = [shard for shard in shards if shard in self.table.homes]
        return self.table.updated_all(ShardHomeDeallocated(shard) for shard in leaving)

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
