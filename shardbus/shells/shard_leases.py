"""The shards of one type that run on one node, between the region, which says what shall run here,
and the host, which runs it.

Without leases that is one step. With them (`use_lease`), a shard waits for its lease before it
starts, and it has not stopped for the coordinator before the lease is given back:

    StartShard ──> lease ──> host: start ──> ShardReady
    StopShard ───> host: stop ──> lease back ──> ShardDown

A shard whose lease is lost stops: every entity after its current message, and what is still running
when the time is up is cut off. That is a ShardDown that nobody asked for. Then the coordinator is
asked for a home, as a message would, so that the shard starts again where the lease is to be had.

Source: B.59; T.SU12; docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from shardbus.config.settings import ShardingSettings
from shardbus.entities.entity_type import StopReason
from shardbus.entities.host import Host
from shardbus.ids import NodeId
from shardbus.sharding.events import Note
from shardbus.shells.leases import LeaseShell
from shardbus.store.protocol import StateStore

LEASED = ("shards", "both")


class ShardLeaseListener(Protocol):
    """The type on this node: hears what became of its shards."""

    name: str

    def ready(self, shard: str) -> None: ...
    def down(self, shard: str) -> None: ...
    def rehouse(self, shard: str) -> None: ...
    def note(self, note: Note) -> None: ...


class ShardLeases:
    """See the module."""

    def __init__(
        self,
        landlord: ShardLeaseListener,
        host: Host,
        store: StateStore,
        me: NodeId,
        settings: ShardingSettings,
    ) -> None:
        self._landlord, self._host = landlord, host
        self._prefix = f"shard/{quote(landlord.name, safe='')}/"
        self._waiting: dict[str, int] = {}
        """Shards that wait for their lease, and the fence under which they will start."""
        self._homeless: dict[str, None] = {}
        """Shards that stop because their lease was lost."""
        self._over = False
        self.leasing: LeaseShell | None = None
        if settings.use_lease in LEASED:
            self.leasing = LeaseShell(store, str(me), settings, self)

    @property
    def look(self) -> Callable[[], None] | None:
        """To be called before anything from outside is handled; None without leases."""
        return self.leasing.look if self.leasing is not None else None

    def start(self, shard: str, fence: int) -> None:
        """The region wants the shard to run."""
        if self.leasing is None:
            self._start(shard, fence)
        else:
            self._waiting[shard] = fence
            self.leasing.want(self._prefix + shard)

    def stopped(self, shard: str) -> None:
        """The host says that nothing of the shard runs any more, or that it never ran."""
        self._waiting.pop(shard, None)
        if self.leasing is None:
            self._landlord.down(shard)
        else:
            self.leasing.drop(self._prefix + shard)

    async def end(self) -> None:
        """Nothing runs here any more, and nobody needs to hear of it."""
        self._over = True
        if self.leasing is not None:
            await self.leasing.end()

    def _start(self, shard: str, fence: int) -> None:
        self._host.start_shard(shard, fence)
        self._landlord.ready(shard)

    # ---- what becomes of leases

    def on_held(self, name: str) -> None:
        shard = name.removeprefix(self._prefix)
        fence = self._waiting.pop(shard, None)
        if fence is not None and not self._over:
            self._start(shard, fence)

    def on_lost(self, name: str, left: float) -> None:
        shard = name.removeprefix(self._prefix)
        self._homeless[shard] = None
        self._host.stop_shards([shard], StopReason.FAILURE, left)

    def on_free(self, name: str) -> None:
        if self._over:
            return
        shard = name.removeprefix(self._prefix)
        self._landlord.down(shard)
        if shard in self._homeless:
            del self._homeless[shard]
            self._landlord.rehouse(shard)

    def on_note(self, note: Note) -> None:
        self._landlord.note(note)
