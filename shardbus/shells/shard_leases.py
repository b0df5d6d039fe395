"""The shards of one type on one node, between the region machine, which decides which run here, and
the hosts, which run them.

Without leases a shard starts and stops at once. With them (`use_lease`), a shard waits for its
lease before it starts, and counts as stopped once the lease is released:

    StartShard ──> lease ──> host: start ──> ShardReady
    StopShard ───> host: stop ──> release ──> ShardDown

A shard whose lease is lost stops: each entity after its current message, and work that still runs
at the end of the lease is cut off. That is a ShardDown without a request. This node then asks the
coordinator for a home, as a message would, so that the shard starts where its lease can be held.

Source: docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from shardbus.config.settings import ShardingSettings
from shardbus.entities.entity_type import StopReason
from shardbus.ids import NodeId
from shardbus.sharding.events import Note
from shardbus.shells.leases import LeaseShell
from shardbus.shells.shard_hosts import ShardHosts
from shardbus.store.protocol import StateStore

LEASED = ("shards", "both")


class ShardOwner(Protocol):
    """The region on this node, which gets the reports about its shards."""

    name: str

    def ready(self, shard: str) -> None: ...
    def down(self, shard: str) -> None: ...
    def rehouse(self, shard: str) -> None: ...
    def note(self, note: Note) -> None: ...


class ShardLeases:
    """Starts and stops shards, under leases if the type uses them."""

    def __init__(
        self,
        region: ShardOwner,
        hosts: ShardHosts,
        store: StateStore,
        me: NodeId,
        settings: ShardingSettings,
    ) -> None:
        self._region, self._hosts = region, hosts
        self._prefix = f"shard/{quote(region.name, safe='')}/"
        self._waiting: dict[str, int] = {}
        """Shards that wait for their lease, with the fence under which they start."""
        self._homeless: dict[str, None] = {}
        """Shards that stop because their lease was lost."""
        self._over = False
        self.leases: LeaseShell | None = None
        if settings.use_lease in LEASED:
            self.leases = LeaseShell(store, str(me), settings, self)

    @property
    def check(self) -> Callable[[], None] | None:
        """Gives up expired leases; called before a message is handled. None without leases."""
        return self.leases.check if self.leases is not None else None

    def start(self, shard: str, fence: int) -> None:
        """Start the shard, once its lease is held."""
        if self.leases is None:
            self._start(shard, fence)
        else:
            self._waiting[shard] = fence
            self.leases.want(self._prefix + shard)

    def stopped(self, shard: str) -> None:
        """Release the lease of a shard that has stopped, or that never started."""
        self._waiting.pop(shard, None)
        if self.leases is None:
            self._region.down(shard)
        else:
            self.leases.drop(self._prefix + shard)

    async def end(self) -> None:
        """Release every lease without reports to the region."""
        self._over = True
        if self.leases is not None:
            await self.leases.end()

    def _start(self, shard: str, fence: int) -> None:
        self._hosts.start_shard(shard, fence)
        self._region.ready(shard)

    # ---- the fates of leases

    def on_held(self, name: str) -> None:
        shard = name.removeprefix(self._prefix)
        fence = self._waiting.pop(shard, None)
        if fence is not None and not self._over:
            self._start(shard, fence)

    def on_lost(self, name: str, left: float) -> None:
        shard = name.removeprefix(self._prefix)
        self._homeless[shard] = None
        self._hosts.stop_shards([shard], StopReason.FAILURE, left)

    def on_free(self, name: str) -> None:
        if self._over:
            return
        shard = name.removeprefix(self._prefix)
        self._region.down(shard)
        if shard in self._homeless:
            del self._homeless[shard]
            self._region.rehouse(shard)

    def on_note(self, note: Note) -> None:
        self._region.note(note)
