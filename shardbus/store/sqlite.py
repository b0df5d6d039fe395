"""The store in an SQLite file: the default, for one machine, whose processes may share the file.

The file is created with mode 0600, its folder with 0700. With `durability=disk` every answered
write has been synced. With `durability=cache` a loss of power may lose the last writes; a crash of
the process loses none.

Source: docs/architecture.md; N.23.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from shardbus.store.clock import machine_clock
from shardbus.store.protocol import Lease, StoreMethod, new_identity
from shardbus.store.repair import RawFence
from shardbus.store.sqlite_journals import SqliteJournals
from shardbus.store.sqlite_steps import Steps
from shardbus.store.sqlite_worker import SqliteWorker

P = ParamSpec("P")
T = TypeVar("T")

PAGE = 10_000
"""Fences that are read in one step of a repair."""


def _runs(step: Callable[Concatenate[Steps, P], T], *, writes: bool = True) -> StoreMethod[P, T]:
    """Return the method of the store that runs this step in the thread of the file, with copies of
    the caller's lists."""
    run: Callable[..., T] = step

    @wraps(step)
    async def method(self: SqliteStore, /, *args: P.args, **options: P.kwargs) -> T:
        copies = [_copied(argument) for argument in args]
        return await self._worker.call(lambda steps: run(steps, *copies, **options), writes=writes)

    return cast("StoreMethod[P, T]", method)


def _copied(argument: object) -> object:
    """Return an argument that its caller cannot change while the thread reads it."""
    return argument.copy() if isinstance(argument, list | dict) else argument


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

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        return await self._worker.call(
            lambda steps: steps.acquire_lease(name, owner, ttl, self._clock())
        )

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        return await self._worker.call(lambda steps: steps.renew_lease(lease, ttl, self._clock()))

    release_lease = _runs(Steps.release_lease)

    load_table = _runs(Steps.load_table, writes=False)
    claim_epoch = _runs(Steps.claim_epoch)
    write_homes = _runs(Steps.write_homes)
    remove_table = _runs(Steps.remove_table)

    load_state = _runs(Steps.load_state)
    save_states = _runs(Steps.save_states)
    page_stored = _runs(Steps.page_stored, writes=False)
    read_states = _runs(Steps.read_states, writes=False)
    expire_states = _runs(Steps.expire_states)

    add_remembered = _runs(Steps.add_remembered)
    remove_remembered = _runs(Steps.remove_remembered)
    page_remembered = _runs(Steps.page_remembered, writes=False)
    remembered_shards = _runs(Steps.remembered_shards, writes=False)

    load_reminders = _runs(Steps.load_reminders, writes=False)
    page_due = _runs(Steps.page_due, writes=False)
    due_shards = _runs(Steps.due_shards, writes=False)

    raw_table = _runs(Steps.raw_table, writes=False)
    mend_table = _runs(Steps.mend_table)
    mend_fences = _runs(Steps.mend_fences)

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
