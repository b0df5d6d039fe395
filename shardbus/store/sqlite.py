"""The store in an SQLite file: the default, for one machine, whose processes may share the file.

The file is created with mode 0600, its folder with 0700. With `durability=disk` every answered
write has been synced. With `durability=cache` a loss of power may lose the last writes; a crash of
the process loses none.

Source: docs/architecture.md; N.23.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from shardbus.errors import StoreError
from shardbus.ids import NodeId
from shardbus.store.clock import machine_clock
from shardbus.store.protocol import Due, Lease, Save, StoredTable, new_identity
from shardbus.store.repair import RawFence, RawTable
from shardbus.store.sqlite_journals import SqliteJournals
from shardbus.store.sqlite_worker import SqliteWorker

PAGE = 10_000
"""Fences that are read in one step of a repair."""


class SqliteStore:
    """A `StateStore` in the file at `path`. `cluster` separates the clusters of one file; `timeout`
    bounds each call, in seconds; `clock` times leases."""

    def __init__(
        self,
        path: str | Path,
        *,
        cluster: str = "",
        timeout: float = 2.0,
        full_sync: bool = True,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._clock = clock
        self._worker = SqliteWorker(
            Path(path), cluster, secrets.token_hex(8), full_sync=full_sync, timeout=timeout
        )
        self.journals = SqliteJournals(self._worker)

    async def start(self) -> None:
        self._worker.start()
        try:
            await self._worker.call(lambda steps: None)
        except BaseException:
            await self._worker.close()
            raise

    async def close(self) -> None:
        await self._worker.close()

    @property
    def on_new_server(self) -> Callable[[], None]:
        return self._worker.on_new_file

    @on_new_server.setter
    def on_new_server(self, call: Callable[[], None]) -> None:
        self._worker.on_new_file = call

    async def identity(self, known: str = "") -> str:
        fresh = new_identity()
        return await self._worker.call(lambda steps: steps.identity(known, fresh))

    async def load_table(self, entity_type: str) -> StoredTable | None:
        return await self._worker.call(lambda steps: steps.load_table(entity_type), writes=False)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        return await self._worker.call(lambda steps: steps.claim_epoch(entity_type, epoch, layout))

    async def write_homes(
        self,
        entity_type: str,
        epoch: int,
        homes: Mapping[str, tuple[NodeId, int] | None],
        op_id: int,
    ) -> None:
        kept = dict(homes)
        await self._worker.call(lambda steps: steps.write_homes(entity_type, epoch, kept, op_id))

    async def remove_table(self, entity_type: str) -> bool:
        return await self._worker.call(lambda steps: steps.remove_table(entity_type))

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        return await self._worker.call(
            lambda steps: steps.load_state(entity_type, entity_id, fence)
        )

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        kept = tuple(saves)
        return await self._worker.call(lambda steps: steps.save_states(kept))

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        return await self._worker.call(
            lambda steps: steps.page_stored(entity_type, prefix, cursor, limit), writes=False
        )

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        kept = tuple(entity_ids)
        return await self._worker.call(
            lambda steps: steps.read_states(entity_type, kept), writes=False
        )

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        kept = tuple(entity_ids)
        return await self._worker.call(
            lambda steps: steps.expire_states(entity_type, kept, now, since)
        )

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        kept = tuple(entity_ids)
        await self._worker.call(lambda steps: steps.add_remembered(entity_type, shard, kept, fence))

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        kept = tuple(entity_ids)
        await self._worker.call(
            lambda steps: steps.remove_remembered(entity_type, shard, kept, fence)
        )

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        return await self._worker.call(
            lambda steps: steps.page_remembered(entity_type, shard, cursor, limit), writes=False
        )

    async def remembered_shards(self, entity_type: str) -> list[str]:
        return await self._worker.call(
            lambda steps: steps.remembered_shards(entity_type), writes=False
        )

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        kept = tuple(entity_ids)
        return await self._worker.call(
            lambda steps: steps.load_reminders(entity_type, kept), writes=False
        )

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        return await self._worker.call(
            lambda steps: steps.page_due(entity_type, shard, after, limit), writes=False
        )

    async def due_shards(self, entity_type: str) -> list[str]:
        return await self._worker.call(lambda steps: steps.due_shards(entity_type), writes=False)

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        return await self._worker.call(
            lambda steps: steps.acquire_lease(name, owner, ttl, self._clock())
        )

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        return await self._worker.call(lambda steps: steps.renew_lease(lease, ttl, self._clock()))

    async def release_lease(self, lease: Lease) -> None:
        await self._worker.call(lambda steps: steps.release_lease(lease))

    async def raw_table(self, entity_type: str) -> RawTable | None:
        return await self._worker.call(lambda steps: steps.raw_table(entity_type), writes=False)

    async def raw_fences(self, entity_type: str) -> AsyncIterator[list[RawFence]]:
        yield await self._worker.call(
            lambda steps: steps.raw_shard_fences(entity_type), writes=False
        )
        page, after = [RawFence("", -1, 0)], -1
        while page:
            page = await self._worker.call(
                lambda steps, after=after: steps.raw_fences(entity_type, after, PAGE),  # type: ignore[misc]
                writes=False,
            )
            after = page[-1].key if page else after
            yield page

    async def mend_table(
        self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]
    ) -> None:
        kept = tuple(gone)
        await self._worker.call(lambda steps: steps.mend_table(entity_type, epoch, layout, kept))

    async def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        kept = tuple(fences)
        await self._worker.call(lambda steps: steps.mend_fences(entity_type, kept, fence))
