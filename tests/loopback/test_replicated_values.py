"""Replicated values on three replicas with real sockets and disks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from shardbus.config.settings import DataSettings
from shardbus.data import Counter, Flag, Map, ReplicatedData, Set, Versioned
from shardbus.errors import ConfigError, StoreUnavailable, ValueRefused
from shardbus.replica.backup_file import BackupWriter, read_backup
from shardbus.replication.kinds import versioned
from shardbus.replication.values import bucket_of, data_key
from shardbus.replication.versions import DataValue
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import value_conflicts_of, value_counts_of
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.replicated_values import CONFLICTS_MANY
from shardbus.store.ring_reading import RingReader
from shardbus.store.state_values import StateValues
from shardbus.transport.zmq.network import ZmqNetwork
from tests.replicas import CLUSTER, Replicas
from tests.waiting import until

WITHIN_S = 30.0


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    replicas = Replicas(tmp_path, 3)
    replicas.repair = 0.3
    replicas.start()
    await replicas.serving()
    yield replicas
    replicas.stop()


@pytest.fixture
async def store(replicas: Replicas) -> AsyncIterator[ReplicatedStore]:
    store = replicas.store(timeout=WITHIN_S)
    await store.start()
    yield store
    await store.close()


@pytest.fixture
def data(store: ReplicatedStore) -> ReplicatedData:
    return ReplicatedData(store, DataSettings())


async def test_a_put_is_in_the_next_get_and_replaces_the_version_before(
    data: ReplicatedData,
) -> None:
    assert await data.get("rate:eur") is None
    first = await data.put("rate:eur", 1.08)
    read = await data.get("rate:eur", r="all")
    assert read == first
    assert read.data == 1.08
    second = await data.put("rate:eur", {"bid": 1.09}, after=read, w="all")
    assert second.contains(first)
    third = await data.get("rate:eur", r=1)
    assert third is not None
    assert (third.data, third.conflicts) == ({"bid": 1.09}, ())


async def test_puts_at_the_same_time_both_stay_until_one_replaces_both(
    data: ReplicatedData,
) -> None:
    first = await data.put("k", "a")
    await asyncio.gather(*(data.put("k", text, after=first) for text in ("b", "c")))
    both = await data.get("k", r="all")
    assert both is not None
    assert sorted([both.data, *both.conflicts]) == ["b", "c"]
    assert (await data.put("k", "d")).conflicts == ()


async def test_a_key_with_many_conflicts_is_named_until_a_put_replaces_them(
    store: ReplicatedStore, data: ReplicatedData
) -> None:
    first = await data.put("rate", 0)
    for n in range(CONFLICTS_MANY - 1):
        await data.put("rate", n, after=first)
    assert value_conflicts_of(store) == {}
    await data.put("rate", 99, after=first)
    assert value_conflicts_of(store) == {"rate": CONFLICTS_MANY}
    await data.update("names", Set, lambda names: names.add(*range(CONFLICTS_MANY)))
    assert value_conflicts_of(store) == {"rate": CONFLICTS_MANY}, "elements are no conflicts"
    await data.put("rate", 1)
    assert value_conflicts_of(store) == {}
    assert value_conflicts_of(MemoryStore()) == {}


async def test_additions_from_all_sides_are_counted_while_a_replica_is_away(
    replicas: Replicas, data: ReplicatedData
) -> None:
    other = replicas.store(timeout=WITHIN_S)
    await other.start()
    sides = [data, ReplicatedData(other, DataSettings())]
    kept = await data.put("kept", 1, w="majority")

    async def add(side: ReplicatedData, times: int) -> None:
        for _ in range(times):
            await side.update("hits", Counter, lambda hits: hits.add())

    await asyncio.gather(*(add(side, 10) for side in sides for _ in range(3)))
    replicas.stop(2)
    await until(lambda: len(_serving(data)) == 2, "its end")
    await asyncio.gather(*(add(side, 5) for side in sides for _ in range(3)))
    hits = await data.get("hits")
    assert hits is not None
    assert hits.data == 90
    assert await data.get("kept") == kept
    with pytest.raises(StoreUnavailable, match="few replicas"):
        await ReplicatedData(_quick(other), DataSettings()).put("all", 1, w="all")
    replicas.start(2)
    await replicas.serving()
    assert (await data.get("hits", r="all")) == hits
    await other.close()


def _serving(data: ReplicatedData) -> list[object]:
    store = data._store
    assert isinstance(store, ReplicatedStore)
    return [row for row in store.replicas if row["serves"]]


def _quick(store: ReplicatedStore) -> ReplicatedStore:
    store.values._timeout = 0.2
    return store


async def test_a_replica_that_was_away_gets_values_by_repair_and_tombstones_go(
    replicas: Replicas, data: ReplicatedData
) -> None:
    replicas.stop(1)
    await data.update("members", Set, lambda members: members.add("ann", "bob"))
    await data.put("gone", 1)
    assert await data.delete("gone")
    assert not await data.delete("gone")
    replicas.start(1)
    await replicas.serving()

    def rows(number: int) -> dict[str, object]:
        return dict(replicas.servers[number][0].registers.rows)

    def alike() -> bool:
        keys = {data_key("members"), f"r\x1f{bucket_of(data_key('gone')):04d}"}
        return all(keys <= rows(n).keys() and data_key("gone") not in rows(n) for n in range(3))

    await until(alike, "repair")
    assert await data.get("gone", r="all") is None
    assert await data.keys() == ["members"]
    replicas.stop()
    replicas.start()
    await replicas.serving()
    assert await data.get("gone", r="all") is None
    members = await data.get("members", r="all")
    assert members is not None
    assert members.data == {"ann", "bob"}
    assert (await data.put("gone", 2)).data == 2


async def test_a_watcher_sees_the_values_that_are_there_and_each_that_changes(
    replicas: Replicas, data: ReplicatedData
) -> None:
    await data.put("rate:eur", 1)
    await data.put("other", 1)
    seen: dict[str, object] = {}

    async def watch() -> None:
        async with aclosing(data.watch("rate:")) as changes:
            async for key, value in changes:
                seen[key] = None if value is None else value.data

    watcher = asyncio.create_task(watch())
    await until(lambda: seen == {"rate:eur": 1}, "the first value")
    await data.put("rate:usd", 2)
    await until(lambda: seen == {"rate:eur": 1, "rate:usd": 2}, "a new key")
    replicas.stop(0)
    await data.put("rate:eur", 3)
    await data.delete("rate:usd")
    await until(lambda: seen == {"rate:eur": 3, "rate:usd": None}, "changes with two replicas")
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)


async def test_a_backup_has_values_and_a_comparison_finds_no_difference(
    replicas: Replicas, data: ReplicatedData, tmp_path: Path
) -> None:
    put = await data.put("rate:eur", 1.09, w="all")
    hits = await data.update("hits", Counter, lambda hits: hits.add(7), w="all")
    reader = RingReader(CLUSTER, replicas.addresses, ZmqNetwork(), WITHIN_S)
    try:
        ring = await reader.open()
        with BackupWriter(tmp_path / "backup") as backup:
            async for registers in reader.copy():
                backup.add(registers)
            backup.complete(ring)
        differences, disks = await reader.compare()
    finally:
        reader.close()
    assert differences == []
    assert disks == ring.disks
    rows = read_backup(tmp_path / "backup").registers
    shown = {}
    for key in ("rate:eur", "hits"):
        value = rows.row(data_key(key)).value
        assert isinstance(value, DataValue)
        shown[key] = versioned(value)
    assert shown == {"rate:eur": put, "hits": hits}


async def test_what_cannot_be_written_is_refused_with_a_hint(data: ReplicatedData) -> None:
    small = ReplicatedData(data._store, DataSettings(value_limit=200))
    with pytest.raises(ValueRefused, match="limit is 200"):
        await small.put("large", "x" * 300)
    await data.put("text", "x")
    with pytest.raises(ValueRefused, match="is a register"):
        await data.update("text", Counter, lambda hits: hits.add())
    with pytest.raises(ConfigError, match="set"):
        await data.put("text", {1, 2})
    with pytest.raises(ConfigError, match="majority"):
        await data.get("text", r="most")
    with pytest.raises(ConfigError, match="3 replicas, fewer than 4"):
        await data.put("text", "y", w=4)
    with pytest.raises(ConfigError, match="a key"):
        await data.get("")
    for clock in (((1, 2**60),), ((1, 0),), ((-1, 5),), ((1.5, 5),)):
        with pytest.raises(ConfigError, match="no version"):
            await data.put("text", "y", after=Versioned(1, clock, "x"))  # type: ignore[arg-type]
    text = await data.get("text", r="all")
    assert text is not None
    assert text.data == "x"
    counts = value_counts_of(data._store)
    assert counts["write", "done"] == 1
    assert counts["write", "refused"] == 3
    assert counts["get", "done"] > 1
    assert value_counts_of(MemoryStore()) == {}
    elsewhere = ReplicatedData(MemoryStore(), DataSettings())
    with pytest.raises(ConfigError, match="cluster://"):
        await elsewhere.get("text")


async def test_changes_of_a_map_and_a_flag_merge(data: ReplicatedData) -> None:
    changes = [
        data.update("settings", Map, lambda m, n=n: m.set(f"field-{n}", n)) for n in range(4)
    ]
    await asyncio.gather(*changes)
    shown = await data.get("settings")
    assert shown is not None
    assert shown.data == {f"field-{n}": n for n in range(4)}
    await data.update("on", Flag, lambda flag: flag.enable())
    off = await data.update("on", Flag, lambda flag: flag.disable())
    assert off.data is False
    assert await data.get("on", r="all") is None


async def test_states_of_entities_are_apart_from_the_values_and_have_long_names(
    store: ReplicatedStore, data: ReplicatedData
) -> None:
    """A type and an id of the greatest length, and types whose names begin alike."""
    long = "x" * 256
    states, alike = (
        StateValues(name, store, DataSettings(), time.time) for name in (long, long[:-1])
    )
    change = Counter().add(3).changes.change()
    assert change is not None
    assert (await states.read(long)).dots == ()
    written = await states.write(long, change)
    assert await states.read(long) == written
    await alike.write("other", change)
    await data.put(long, 1)
    since: dict[int, tuple[int, int]] = {}
    assert await states.changed(since) == (set(), False), "the first look remembers nothing"
    await states.write(long, change)
    await alike.write("other", change)
    await data.put(long, 2)
    assert await states.changed(since) == ({long}, True)
    assert await states.changed(since) == (set(), True)
    assert (await states.ids(), await alike.ids()) == ([long], ["other"])
    assert await data.keys() == [long]
    async with aclosing(data.watch()) as changes:
        key, value = await anext(changes)
    assert (key, value and value.data) == (long, 2)
