"""Disks that are lost, set back, behind, added and removed: real replicas, sockets and disks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.ids import Address
from shardbus.replication import disk_life
from shardbus.replication.values import StateValue, state_key
from shardbus.store.protocol import Save
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.ring_change import RingOperator, RingRefused, adding, removing
from shardbus.transport.zmq.network import ZmqNetwork
from tests.replicas import CLUSTER, Replicas
from tests.waiting import until

COUNT, KEYS = 60, 100


@pytest.fixture
async def store(replicas: Replicas) -> AsyncIterator[ReplicatedStore]:
    async with replicas.opened(timeout=30.0) as store:
        yield store


async def save(
    store: ReplicatedStore, first: int, last: int, data: bytes = b"x", op: int = 1
) -> None:
    saves = [Save("cart", "0", f"e-{n}", 1, data, n + op) for n in range(first, last)]
    assert await store.save_states(saves) == [None] * (last - first)


def rows(replicas: Replicas, number: int) -> dict[str, object]:
    registers = replicas.servers[number][0].registers
    return {key: row.value for key, row in registers.rows.items() if key[0] == "s"}


def expected(count: int, data: bytes = b"x") -> dict[str, object]:
    return {state_key("cart", f"e-{n}"): StateValue(n + 1, data) for n in range(count)}


async def test_a_wiped_disk_votes_again_once_it_has_merged(
    replicas: Replicas, store: ReplicatedStore
) -> None:
    await save(store, 0, COUNT)
    replicas.wipe(2)
    replicas.start(2)
    blank = replicas.servers[2][0]
    assert not blank.serves
    assert blank.status()["state"] == "blank"
    await replicas.serving()
    assert rows(replicas, 2) == expected(COUNT)
    assert [server.status()["ring"] for server, _ in replicas.servers.values()] == [2, 2, 2]
    replicas.stop(0)
    await save(store, COUNT, COUNT + 10)
    assert await store.read_states("cart", ["e-1", f"e-{COUNT + 1}"]) == [b"x", b"x"]
    replicas.start(0)
    await replicas.serving()


async def test_a_store_that_lost_a_majority_of_its_disks_does_not_go_on(
    replicas: Replicas, store: ReplicatedStore
) -> None:
    await save(store, 0, 1)
    replicas.wipe(1, 2)
    replicas.start(1, 2)
    blank = replicas.servers[1][0]
    await until(lambda: "a majority of the disks of ring 1" in blank.waits_for, "the reason")
    assert not any(replicas.servers[n][0].serves for n in (1, 2))


async def test_a_disk_that_was_set_back_is_given_up_and_a_blank_one_follows(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_life, "GRACE_S", 1.0)
    replicas.stop(2)
    shutil.copytree(tmp_path / "2", tmp_path / "copy")
    replicas.start(2)
    await replicas.serving()
    await save(store, 0, COUNT)
    replicas.stop(2)
    shutil.rmtree(tmp_path / "2")
    (tmp_path / "copy").rename(tmp_path / "2")
    replicas.start(2)
    server = replicas.servers[2][0]
    await until(lambda: "it knows a later state of this disk" in server.waits_for, "the refusal")
    assert not server.serves
    await until(lambda: replicas.failures, "the end of the disk")
    assert server.gave_up
    replicas.stop(2)
    replicas.start(2)
    await replicas.serving()
    assert rows(replicas, 2) == expected(COUNT)
    assert "set back" in replicas.servers[2][0].status()["damage"]


async def test_replicas_in_memory_keep_all_while_a_majority_runs(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 3)
    replicas.in_memory = True
    replicas.start()
    await replicas.serving()
    store = replicas.store(timeout=30.0)
    await store.start()
    await save(store, 0, COUNT)
    for number in range(3):
        replicas.stop(number)
        replicas.start(number)
        await replicas.serving()
        assert rows(replicas, number) == expected(COUNT)
    await store.close()
    replicas.stop()
    replicas.start()
    await replicas.serving()
    assert [rows(replicas, number) for number in range(3)] == [{}] * 3, "a new store"
    assert list(tmp_path.iterdir()) == []
    replicas.stop()


async def test_missed_writes_come_without_reads(replicas: Replicas, store: ReplicatedStore) -> None:
    replicas.stop(2)
    large = bytes(30_000)
    await save(store, 0, COUNT, large)
    replicas.start(2)
    await until(lambda: rows(replicas, 2) == expected(COUNT, large), "the missed rows")
    status = replicas.servers[2][0].status()
    assert status["repairs"]["rows"] == COUNT
    assert status["memory"] > COUNT * len(large)
    digests = [server.registers.digests for server, _ in replicas.servers.values()]
    assert digests[0] == digests[1] == digests[2]


async def change(addresses: list[Address], step: object) -> int:
    operator = RingOperator(CLUSTER, addresses, ZmqNetwork())
    return (await operator.change(step, 60.0)).number  # type: ignore[arg-type]


@pytest.mark.long
async def test_replicas_are_added_and_removed_under_load(
    replicas: Replicas, store: ReplicatedStore
) -> None:
    acked, ended = dict[str, bytes](), asyncio.Event()

    async def load() -> None:
        written = 0
        while not ended.is_set():
            first, data = written % KEYS, b"%d" % written
            await save(store, first, first + 10, data, op=1000 * written)
            acked.update({f"e-{n}": data for n in range(first, first + 10)})
            written += 10
            await asyncio.sleep(0.01)

    loading = asyncio.create_task(load())
    first = list(replicas.addresses)
    added = replicas.add()
    await until(lambda: "store add" in replicas.servers[3][0].waits_for, "the wait")
    assert await change([*first, added], adding(added)) == 2
    assert replicas.servers[3][0].serves
    assert await change(first, removing(first[0])) == 3
    replicas.stop(0)
    assert await change(first[1:], removing(first[1])) == 4
    ended.set()
    await loading
    assert len(acked) == KEYS
    survivors = [first[2], added]
    fresh = ReplicatedStore("cluster://", CLUSTER, survivors, ZmqNetwork, timeout=30.0)
    await fresh.start()
    assert await fresh.read_states("cart", list(acked)) == list(acked.values())
    await fresh.close()
    assert {row["address"] for row in store.replicas if row["member"]} == set(map(str, survivors))


async def test_the_last_disk_stays(tmp_path: Path) -> None:
    alone = Replicas(tmp_path, 1)
    alone.start()
    await alone.serving()
    with pytest.raises(RingRefused, match="the last disk"):
        await change(list(alone.addresses), removing(alone.addresses[0]))
    alone.stop()


async def test_a_spare_takes_the_place_of_a_replica_that_is_away_for_long(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 5)
    replicas.members, replicas.zones, replicas.repair_after = 3, "aabbc", 1.0
    replicas.start()
    servers = {number: server for number, (server, _) in replicas.servers.items()}

    def members(number: int) -> set[int]:
        names = servers[number].status()["members"]
        return {n for n, address in enumerate(replicas.addresses) if str(address) in names}

    def is_spare(number: int) -> bool:
        return bool(servers[number].status()["state"] == "spare")

    await until(lambda: all(servers[n].serves for n in (0, 2, 4)), "one member in each zone")
    await until(lambda: is_spare(1) and is_spare(3), "the spares")
    async with replicas.opened(timeout=30.0) as store:
        await save(store, 0, COUNT)
        replicas.stop(2)
        await until(lambda: servers[3].serves, "the spare of the zone without a member")
        assert members(0) == {0, 3, 4}
        assert is_spare(1)
        await save(store, COUNT, COUNT + 10)
        await until(lambda: rows(replicas, 3) == expected(COUNT + 10), "all rows there")

        replicas.start(2)
        await until(lambda: replicas.failures, "the end of its former disk")
        replicas.stop(2)
        replicas.start(2)
        servers[2] = replicas.servers[2][0]
        await until(lambda: is_spare(2), "it is a spare")

        replicas.stop(4)
        await until(lambda: servers[1].serves, "the next repair")
        assert members(0) == {0, 1, 3}
        await save(store, COUNT + 10, COUNT + 20)
        assert await store.read_states("cart", ["e-1", f"e-{COUNT + 15}"]) == [b"x", b"x"]
    replicas.stop()
