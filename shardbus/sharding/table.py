"""The shard table: which region hosts which shard, as an immutable value.

The coordinator of an entity type owns one table. It changes through `updated` alone: one guarded
function serves decisions, the replay of the stored table, and tests. A guard that fails raises
`LocalProtocolError` and names the state; the table is unchanged.

    RegionRegistered(node)      the node may host shards
    RegionTerminated(node)      it is gone, and its shards have no home
    ProxyRegistered(node)       the node sends and never hosts
    ProxyTerminated(node)
    ShardHomeAllocated(home)    the shard lives there; the shard must have had no home
    ShardHomeDeallocated(shard) it lives nowhere

`updated_all` applies a batch with one copy of the touched parts, so that a thousand allocations
cost a thousand steps.

Fences grow with every allocation, over the whole table: `next_fence` is above the last one and
above every fence of a lower epoch, even if the store has lost those.

Not here: who decides (`coordinator`), where shards should go (`allocation`).

Source: S0.16, S0.17, S2.20, N.1; Pekko's guarded `State.updated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never

import msgspec

from shardbus.bounds import EPOCH_SHIFT
from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.quantities import counted
from shardbus.sharding.messages import Home


class RegionRegistered(msgspec.Struct, frozen=True):
    """A region registered."""

    node: NodeId


class RegionTerminated(msgspec.Struct, frozen=True):
    """A region is gone, with every shard it hosted."""

    node: NodeId


class ProxyRegistered(msgspec.Struct, frozen=True):
    """A proxy registered: a region that hosts nothing."""

    node: NodeId


class ProxyTerminated(msgspec.Struct, frozen=True):
    """A proxy is gone."""

    node: NodeId


class ShardHomeAllocated(msgspec.Struct, frozen=True):
    """A shard got a home."""

    home: Home


class ShardHomeDeallocated(msgspec.Struct, frozen=True):
    """A shard lost its home."""

    shard: str


TableEvent = (
    RegionRegistered
    | RegionTerminated
    | ProxyRegistered
    | ProxyTerminated
    | ShardHomeAllocated
    | ShardHomeDeallocated
)

Shards = Mapping[str, None]
"""An ordered set of shards, in the order of their allocation."""

NO_SHARDS: Shards = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One state of the table. Its mappings must not change; `updated` returns the next table."""

    epoch: int
    layout: str
    regions: Mapping[NodeId, Shards] = field(default_factory=dict)
    proxies: Mapping[NodeId, None] = field(default_factory=dict)
    homes: Mapping[str, Home] = field(default_factory=dict)
    fence: int = 0
    """The highest fence allocated in this table."""

    @property
    def next_fence(self) -> int:
        """The fence of the next allocation."""
        return max(self.fence + 1, self.epoch << EPOCH_SHIFT)

    def shards_at(self, node: NodeId) -> Shards:
        """Return the shards that live at `node`."""
        return self.regions.get(node, NO_SHARDS)

    def updated(self, event: TableEvent) -> ShardTable:
        """Return the table after `event`.

        Raises:
            LocalProtocolError: the event is impossible here. This table is unchanged.
        """
        return self.updated_all((event,))

    def updated_all(self, events: Iterable[TableEvent]) -> ShardTable:
        """Return the table after all of `events`, with one copy for the whole batch.

        Raises:
            LocalProtocolError: an event is impossible here. This table is unchanged.
        """
        draft = _Draft(self)
        for event in events:
            draft.apply(event)
        return ShardTable(
            self.epoch, self.layout, draft.regions, draft.proxies, draft.homes, draft.fence
        )

    def check(self) -> None:
        """Check the two directions of the table against each other; for tests."""
        hosted = {shard: node for node, shards in self.regions.items() for shard in shards}
        assert hosted == {shard: home.node for shard, home in self.homes.items()}
        assert sum(len(shards) for shards in self.regions.values()) == len(self.homes)
        assert all(home.shard == shard for shard, home in self.homes.items())
        assert all(0 < home.fence <= self.fence for home in self.homes.values())
        assert not any(node in self.regions for node in self.proxies)


class _Draft:
    """A table under construction: copies of the touched parts, made once."""

    __slots__ = ("_copied", "fence", "homes", "proxies", "regions")

    def __init__(self, table: ShardTable) -> None:
        self.regions: dict[NodeId, Shards] = dict(table.regions)
        self.proxies = dict(table.proxies)
        self.homes = dict(table.homes)
        self.fence = table.fence
        self._copied: dict[NodeId, dict[str, None]] = {}

    def apply(self, event: TableEvent) -> None:
        match event:
            case RegionRegistered(node):
                self._guard(node not in self.regions, f"region {node} is registered already")
                self._guard(node not in self.proxies, f"{node} is registered as a proxy")
                self.regions[node] = self._copied[node] = {}
            case RegionTerminated(node):
                self._guard(node in self.regions, f"region {node} is not registered")
                for shard in self.regions.pop(node):
                    del self.homes[shard]
                self._copied.pop(node, None)
            case ProxyRegistered(node):
                self._guard(node not in self.proxies, f"proxy {node} is registered already")
                self._guard(node not in self.regions, f"{node} is registered as a region")
                self.proxies[node] = None
            case ProxyTerminated(node):
                self._guard(node in self.proxies, f"proxy {node} is not registered")
                del self.proxies[node]
            case ShardHomeAllocated(home):
                self._allocate(home)
            case ShardHomeDeallocated(shard):
                self._guard(shard in self.homes, f"shard {shard!r} has no home")
                del self._shards(self.homes.pop(shard).node)[shard]
            case _:
                assert_never(event)

    def _allocate(self, home: Home) -> None:
        old = self.homes.get(home.shard)
        self._guard(old is None, f"shard {home.shard!r} lives at {old and old.node} already")
        self._guard(home.node in self.regions, f"region {home.node} is not registered")
        self._guard(home.fence > 0, f"fence {home.fence} of shard {home.shard!r} is not positive")
        self.homes[home.shard] = home
        self._shards(home.node)[home.shard] = None
        self.fence = max(self.fence, home.fence)

    def _shards(self, node: NodeId) -> dict[str, None]:
        copied = self._copied.get(node)
        if copied is None:
            copied = self._copied[node] = dict(self.regions[node])
            self.regions[node] = copied
        return copied

    def _guard(self, holds: bool, why_not: str) -> None:
        if not holds:
            raise LocalProtocolError(
                f"impossible change of the shard table: {why_not}"
                f" ({counted(len(self.regions), 'region')}, {counted(len(self.homes), 'home')})"
            )
