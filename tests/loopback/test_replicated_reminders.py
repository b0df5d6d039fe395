"""Reminders of the store inside the cluster, on real replicas: operators' changes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shardbus.bounds import EPOCH_SHIFT
from shardbus.shells.reminded_shards import RemindedShards, SelfActing
from shardbus.store.protocol import Reminders, Save, StateStore, StoredTable
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.transfer import Imported, Importer, StoredEntity
from tests.replicas import Replicas

NAMES = [f"e-{n}" for n in range(30)]


@pytest.fixture
async def store(replicas: Replicas) -> AsyncIterator[ReplicatedStore]:
    async with replicas.opened(timeout=30.0) as store:
        yield store


def shard_of(entity_id: str, shards: int) -> str:
    return str(int(entity_id[2:]) % shards)


async def index(store: StateStore, shards: int) -> dict[str, list[tuple[int, str]]]:
    assert isinstance(store, ReplicatedStore)
    pages = await asyncio.gather(
        *(store.page_due("alarm", str(shard), None, 100) for shard in range(shards))
    )
    return {str(shard): page for shard, page in enumerate(pages) if page}


def expected(shards: int) -> dict[str, list[tuple[int, str]]]:
    due: dict[str, list[tuple[int, str]]] = {}
    for n, name in enumerate(NAMES):
        due.setdefault(shard_of(name, shards), []).append((n + 1, name))
    return due


async def remind(store: ReplicatedStore, shards: int, fence: int) -> None:
    saves = [
        Save("alarm", shard_of(name, shards), name, fence, b"x", n + 1, Reminders(n + 1, b"r"))
        for n, name in enumerate(NAMES)
    ]
    assert await store.save_states(saves) == [None] * len(NAMES)


ALARMS_IN_7 = SelfActing({"alarm": lambda one: shard_of(one, 7)})


async def test_they_follow_another_number_of_shards_though_the_first_attempt_ends(
    replicas: Replicas, store: ReplicatedStore
) -> None:
    for shard in range(4):
        await store.add_remembered("alarm", str(shard), (), 1 << EPOCH_SHIFT)
    await remind(store, 4, 1 << EPOCH_SHIFT)
    table = StoredTable(1, "crc32/4", {})
    other = replicas.store()
    await other.start()
    for each in (store, other):
        moving = RemindedShards(each, lambda: ALARMS_IN_7, list)
        if each is store:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await moving.move(table, "crc32/7")
        else:
            await moving.move(table, "crc32/7")
    assert await index(other, 7) == expected(7)
    assert await other.load_reminders("alarm", "0", NAMES) == [b"r"] * len(NAMES)
    assert await other.read_states("alarm", NAMES) == [b"x"] * len(NAMES)
    await other.close()


async def test_they_are_imported_above_the_fences_that_are_stored(store: ReplicatedStore) -> None:
    await remind(store, 3, 5)
    await store.add_remembered("alarm", "1", [], 9)
    rows = [
        StoredEntity("alarm", name, shard_of(name, 3), None, Reminders(n + 1, b"new", alone=True))
        for n, name in enumerate(NAMES)
    ]
    importer = Importer(store, lambda _, one: shard_of(one, 3), existing="replace")
    assert await importer.put(rows) is None
    assert importer.done == Imported(reminded=len(NAMES))
    assert await index(store, 3) == expected(3)
    assert await store.load_reminders("alarm", "0", NAMES) == [b"new"] * len(NAMES)
    assert await store.read_states("alarm", NAMES) == [b"x"] * len(NAMES)
