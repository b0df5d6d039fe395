"""What shardbus keeps, and what it asks of whoever keeps it.

Two rules make a store safe to retry and safe to share:

- **Fenced.** A table is written under an epoch, an entity's state under a fence, both numbers that
  only grow. The store compares on its own side, in the same atomic step as the write, and refuses
  what is older. *Loading* an entity's state raises its fence, so that a predecessor cannot write
  between its successor's load and first save.
- **Idempotent.** A write carries an operation id. A client that got no answer sends it again; the
  store remembers the last one applied and answers «done» without applying it twice.

An implementation turns its client's failures into `StoreUnavailable`, always within `timeout`
seconds.

Source: docs/architecture.md; S0.32, S2.29; C.12, C.20, C.35.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardbus.errors import StaleFence
from shardbus.ids import NodeId


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The shard table of one entity type, as stored. `layout` names the shard function, as in
    `crc32/100`."""

    epoch: int
    layout: str
    homes: Mapping[str, tuple[NodeId, int]]
    """Shard to its node and fence."""
    dropped: tuple[str, ...] = ()
    """What else was stored and cannot be true, each with the reason; see `store.rows`."""


@dataclass(frozen=True, slots=True)
class Save:
    """One write of one entity's state. `data` None removes the state and keeps the fence."""

    entity_type: str
    entity_id: str
    fence: int
    data: bytes | None
    op_id: int
    """Unique per write, 63 bits."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as granted. `counter` grows with each change of owner and fences what the owner does
    elsewhere."""

    name: str
    owner: str
    counter: int


class StateStore(Protocol):
    """A durable place for shard tables, entity state, remembered entities and leases."""

    async def start(self) -> None:
        """Connect, create what is missing, and refuse a server that may lose or evict what it is
        given.

        Raises:
            StoreUnavailable: it cannot be reached.
            ConfigError: it can, and is unfit; the message names the setting.
        """

    async def close(self) -> None:
        """Let go. Never raises."""

    async def load_table(self, entity_type: str) -> StoredTable | None:
        """The table, or None if none was ever claimed. Rows that cannot be true are left out and
        named in `dropped`.

        Raises:
            StoreError: the epoch or the layout cannot be read.
        """

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        """Become the writer of the table under `epoch`; the table keeps its homes. Returns the
        table as it is now, as `load_table` does.

        A repeated claim of the stored epoch with the same layout by the same store object answers
        as the first did.

        Raises:
            StaleEpoch: the stored epoch is not lower.
            ConfigError: the stored layout is another and the table is not empty; both are named.
        """
        ...

    async def write_homes(
        self,
        entity_type: str,
        epoch: int,
        homes: Mapping[str, tuple[NodeId, int] | None],
        op_id: int,
    ) -> None:
        """Set these shards' homes (None: the shard has none) in one atomic step.

        Raises:
            StaleEpoch: the stored epoch differs. Nothing was written.
        """

    async def remove_table(self, entity_type: str) -> bool:
        """Forget every home. Only for a cluster that is stopped. True if there was one.

        The epoch stays: fences are drawn above it, and entities' stored fences must not be ahead of
        those of the next cluster.
        """
        ...

    async def load_state(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        """The entity's state, None if there is none; raises the stored fence to `fence` in the same
        atomic step.

        Raises:
            StaleFence: the stored fence is higher. Nothing changed.
        """

    async def save_states(self, saves: Sequence[Save]) -> list[StaleFence | None]:
        """Write many entities' states in one round trip. Each is atomic by itself; the answer is in
        their order: None where it was written (or had been, under this operation id), StaleFence
        where it was refused."""
        ...

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        """Remember these entities as running in the shard. None at all raises the shard's fence,
        as a new home does before it reads.

        Raises:
            StaleFence: the shard's stored fence is higher (`entity_id` is then the shard). Nothing
        was written."""

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        """Forget them. Raises as `add_remembered`."""

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        """Up to `limit` (give or take) remembered entities after `cursor`, and the next cursor,
        None at the end. An entity that is there throughout is in at least one page; pages may
        repeat one."""
        ...

    async def remembered_shards(self, entity_type: str) -> list[str]:
        """Every shard that has remembered entities, and perhaps some that had."""
        ...

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        """The lease for `ttl` seconds if it is free, run out, or already `owner`'s; None while
        another holds it."""

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        """Hold it for `ttl` seconds from now. False: it is lost."""
        ...

    async def release_lease(self, lease: Lease) -> None:
        """Give it back if it is still held under this counter."""
