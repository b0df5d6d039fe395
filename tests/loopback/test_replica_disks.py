"""A store that is verified, backed up, restored and recovered: real replicas, sockets and disks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from shardbus.config.settings import DataSettings
from shardbus.data import Counter, ReplicatedData
from shardbus.errors import StaleEpoch, StaleFence
from shardbus.ids import Address
from shardbus.replica.backup_file import BackupWriter, read_backup
from shardbus.replica.disk_copies import DiskCopy, read_disk, write_alone
from shardbus.replication.journal_rows import HEAD_ENTRIES
from shardbus.replication.refounding import (
    EPOCHS_SKIPPED,
    merge_rows,
    remains,
    reopen_reminders,
    skip_epochs,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import RINGS_OF_ERA, renewed_ring
from shardbus.replication.values import bucket_of, state_key
from shardbus.store import ring_change, ring_reading
from shardbus.store.journal_protocol import Append
from shardbus.store.protocol import Reminders, Save
from shardbus.store.replica_status import ask_replicas
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.ring_change import RingOperator, adding, removing
from shardbus.store.ring_reading import RingReader
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire.replica_frames import ReplicaFrame
from tests.replicas import CLUSTER, Replicas
from tests.waiting import until

COUNT, EPOCH = 40, 7
FENCE, OPS = EPOCH << 32, count(1)


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_change, "LOOKS_MAX_S", 0.2)


@pytest.fixture
async def store(replicas: Replicas) -> AsyncIterator[ReplicatedStore]:
    async with replicas.opened(timeout=2.0) as store:
        yield store


async def save(store: ReplicatedStore, first: int, last: int, data: bytes = b"x") -> None:
    saves = [Save("cart", "0", f"e-{n}", FENCE, data, next(OPS)) for n in range(first, last)]
    assert await store.save_states(saves) == [None] * (last - first)


async def reading(replicas: Replicas) -> RingReader:
    reader = RingReader(CLUSTER, replicas.addresses, ZmqNetwork(), 20.0)
    await reader.open()
    return reader


async def backed_up(replicas: Replicas, path: Path) -> None:
    reader = await reading(replicas)
    with BackupWriter(path) as writer:
        async for registers in reader.copy():
            writer.add(registers)
        writer.complete(reader.ring)
    reader.close()


def founded_anew(path: Path, me: Address, copies: list[DiskCopy], store: int) -> dict[str, int]:
    rows, rings = Registers(), [copy.ring for copy in copies]
    merge_rows(rows, [copy.registers for copy in copies])
    epochs = skip_epochs(rows, 77)
    reopen_reminders(rows, 78)
    write_alone(path, 2**28, rows, me, lambda alone: renewed_ring(rings, alone, store))
    return epochs


async def test_replicas_are_compared_under_load(
    replicas: Replicas, store: ReplicatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_reading, "LOOK_AGAIN_S", 0.2)
    await save(store, 0, COUNT)
    servers = [server for server, _ in replicas.servers.values()]
    await until(lambda: all(s.status()["repairs"]["begun"] for s in servers), "first repairs")
    ended = asyncio.Event()

    async def load() -> None:
        while not ended.is_set():
            await save(store, COUNT, COUNT + 10, secrets.token_bytes(8))

    loading = asyncio.create_task(load())
    reader = await reading(replicas)
    differences, compared = await reader.compare()
    assert (differences, len(compared)) == ([], 3)
    server = replicas.servers[2][0]
    server.registers.forget([bucket_of(state_key("cart", "e-1"))])
    differences, _ = await reader.compare()
    lost = [row for row in differences if row.key == state_key("cart", "e-1")]
    assert [reader.address_of(row.disk) for row in lost] == [str(replicas.addresses[2])]
    reader.close()
    ended.set()
    await loading


async def test_a_running_replica_reads_its_log(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path
) -> None:
    await save(store, 0, COUNT)
    await save(store, 0, COUNT)
    [segment] = (tmp_path / "1").glob("log-*")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    reports = ask_replicas(ZmqNetwork(), CLUSTER, replicas.addresses, 10.0, ReplicaFrame.CHECK)
    spoiled = [facts["spoiled"] for facts in (await reports).values()]
    assert (spoiled[0], spoiled[2]) == ([], [])
    assert "segment 1 is damaged after" in spoiled[1][0]


async def test_a_backup_goes_on_when_the_ring_changes(
    replicas: Replicas, store: ReplicatedStore
) -> None:
    await save(store, 0, COUNT)
    reader, copied = await reading(replicas), Registers()
    async for registers in reader.copy():
        merge_rows(copied, [registers])
        if reader.ring.number == 1:
            operator = RingOperator(CLUSTER, replicas.addresses, ZmqNetwork())
            await operator.change(removing(replicas.addresses[2]), 60.0)
    assert reader.ring.number == 2
    assert {f"e-{n}" for n in range(COUNT)} <= {key.split("\x1f")[-1] for key in copied.rows}
    reader.close()


async def test_a_backup_of_a_time_is_restored_into_a_new_store(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path
) -> None:
    table = await store.claim_epoch("cart", EPOCH, "blake2b/4")
    await save(store, 0, COUNT)
    replicas.stop(2)
    await save(store, 0, COUNT, b"y")
    await backed_up(replicas, tmp_path / "backup")
    await save(store, 0, COUNT, b"later")
    replicas.stop()
    for number in range(3):
        (tmp_path / str(number)).rename(tmp_path / f"former-{number}")
    copy = read_backup(tmp_path / "backup")
    first, second, third = replicas.addresses
    epochs = founded_anew(tmp_path / "0", first, [copy], 5)
    assert epochs == {"cart": EPOCH + EPOCHS_SKIPPED}
    replicas.start()
    await until(lambda: replicas.servers[0][0].serves, "the restored replica")
    await until(lambda: "store add" in replicas.servers[1][0].waits_for, "the blank one")
    for address in (second, third):
        operator = RingOperator(CLUSTER, replicas.addresses, ZmqNetwork())
        ring = await operator.change(adding(address), 60.0)
    assert (ring.number, len(ring.members)) == (RINGS_OF_ERA + 2, 3)

    await until(lambda: all("of another store" in text for text in store.problems), "refusals")
    assert not any(row["serves"] for row in store.replicas), "no former activation writes"
    fresh = replicas.store()
    await fresh.start()
    states = await fresh.read_states("cart", [f"e-{n}" for n in range(COUNT)])
    assert states == [b"y"] * COUNT
    with pytest.raises(StaleEpoch):
        await fresh.claim_epoch("cart", EPOCH + EPOCHS_SKIPPED, table.layout)
    await fresh.claim_epoch("cart", EPOCH + EPOCHS_SKIPPED + 1, table.layout)
    await fresh.close()


class Rest:
    """Data besides states: values, a journal with a block, and reminders."""

    def __init__(self, store: ReplicatedStore) -> None:
        self.store, self.data = store, ReplicatedData(store, DataSettings())

    async def write(self) -> None:
        await self.store.add_remembered("cart", "0", ["e-1"], FENCE)
        await self.data.put("rate", 1.09)
        await self.data.update("hits", Counter, lambda hits: hits.add(3))
        await self.data.put("gone", 1)
        await self.data.delete("gone")
        for first in (0, HEAD_ENTRIES):
            entries = tuple(b"%d" % n for n in range(first, first + HEAD_ENTRIES))
            one = Append("cart", "0", "j", FENCE, entries, next(OPS), first)
            assert await self.store.journals.append([one]) == [None]
        await self.store.journals.trim("cart", "0", "j", FENCE, 10)
        await self.remind(COUNT, 0)

    async def remind(self, count: int, due: int) -> None:
        """Let some entities have reminders, each of which is due later than the one before."""
        saves = [
            Save("cart", "0", f"e-{n}", FENCE, b"r", next(OPS), Reminders(due + n + 1, b"%d" % n))
            for n in range(count)
        ]
        assert await self.store.save_states(saves) == [None] * count

    async def compare(self, *, due: int = 0) -> None:
        """Compare everything with the writes. `due`: as of the last `remind`."""
        rate, hits = await self.data.get("rate"), await self.data.get("hits")
        assert rate is not None
        assert hits is not None
        assert (rate.data, hits.data, await self.data.get("gone")) == (1.09, 3, None)
        page = await self.store.journals.read("cart", "0", "j", 0, 10_000)
        assert page.entries == [b"%d" % n for n in range(10, 2 * HEAD_ENTRIES)]
        assert await self.store.due_shards("cart") == ["0"]
        entries = await self.store.page_due("cart", "0", None, 1000)
        assert entries == [(due + n + 1, f"e-{n}") for n in range(COUNT)]
        names = [f"e-{n}" for n in range(COUNT)]
        assert await self.store.read_states("cart", names) == [b"r"] * COUNT
        assert await self.store.load_reminders("cart", "0", names) == [
            b"%d" % n for n in range(COUNT)
        ]

    async def go_on(self) -> None:
        """Write more, as the next home and its clients do."""
        await self.store.add_remembered("cart", "0", [], FENCE + 1)
        await self.data.update("hits", Counter, lambda hits: hits.add())
        last = (await self.store.journals.open("cart", "0", "j", FENCE + 1, 0, 1)).last
        one = Append("cart", "0", "j", FENCE + 1, (b"more",), next(OPS), last)
        assert await self.store.journals.append([one]) == [None]
        hits = await self.data.get("hits")
        assert hits is not None
        assert hits.data == 4


async def test_a_backup_has_values_journals_and_reminders(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path
) -> None:
    rest = Rest(store)
    await rest.write()
    replicas.stop(2)
    await rest.remind(COUNT, 7)
    await backed_up(replicas, tmp_path / "backup")
    await rest.remind(3, 9)
    replicas.stop()
    for number in range(3):
        (tmp_path / str(number)).rename(tmp_path / f"former-{number}")
    copy = read_backup(tmp_path / "backup")
    founded_anew(tmp_path / "0", replicas.addresses[0], [copy], 5)
    replicas.start(0)
    async with replicas.opened(timeout=5.0) as fresh:
        await Rest(fresh).compare(due=7)
        await Rest(fresh).go_on()


async def test_the_disks_of_a_majority_have_values_journals_and_reminders(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path
) -> None:
    rest = Rest(store)
    await rest.write()
    replicas.stop(2)
    await rest.remind(COUNT, 7)
    replicas.start(2)
    await replicas.serving()
    replicas.stop(1)
    await rest.remind(COUNT, 20)
    replicas.stop()
    copies = [read_disk(tmp_path / str(number)) for number in (0, 2)]
    left = remains([copy.place for copy in copies], ())
    assert left.suffices
    founded_anew(tmp_path / "0", replicas.addresses[0], copies, left.ring.store)
    replicas.start(0)
    await until(lambda: replicas.servers[0][0].serves, "the recovered replica")
    await rest.compare(due=20)
    await rest.go_on()


async def test_a_store_goes_on_from_the_disk_that_is_left(
    replicas: Replicas, store: ReplicatedStore, tmp_path: Path
) -> None:
    """A disk of the lost ones comes back when the store has gone on, and is left out."""
    met: list[int] = []
    store.on_new_server = lambda: met.append(1)
    await store.claim_epoch("cart", EPOCH, "blake2b/4")
    await save(store, 0, COUNT)
    replicas.stop()
    (tmp_path / "2").rename(tmp_path / "away")
    (tmp_path / "1").rename(tmp_path / "gone")
    copy = read_disk(tmp_path / "0")
    left = remains([copy.place], ())
    assert (left.suffices, len(left.lost)) == (False, 2)
    epochs = founded_anew(tmp_path / "0", replicas.addresses[0], [copy], left.ring.store)
    assert epochs == {"cart": EPOCH + EPOCHS_SKIPPED}
    assert len(list((tmp_path / "0").glob("former-*/log-*"))) == 1
    replicas.start(0, 1)
    await until(lambda: replicas.servers[0][0].serves, "the recovered replica")
    assert await store.read_states("cart", ["e-1"]) == [b"x"]
    assert met == [1], "fences are raised"
    with pytest.raises(StaleEpoch):
        await store.claim_epoch("cart", EPOCH + 1, "blake2b/4")
    assert await store.load_state("cart", "0", "e-2", FENCE + 1) == b"x"
    [refused] = await store.save_states([Save("cart", "0", "e-2", FENCE, b"z", next(OPS))])
    assert isinstance(refused, StaleFence)
    operator = RingOperator(CLUSTER, replicas.addresses, ZmqNetwork())
    ring = await operator.change(adding(replicas.addresses[1]), 60.0)
    assert ring.number == RINGS_OF_ERA + 1

    (tmp_path / "away").rename(tmp_path / "2")
    replicas.start(2)
    await until(lambda: replicas.failures, "the end of the former disk")
    assert "does not have this disk any more" in replicas.failures[0]
    replicas.stop(2)
    replicas.start(2)
    await until(lambda: "store add" in replicas.servers[2][0].waits_for, "a blank one")
    operator = RingOperator(CLUSTER, replicas.addresses, ZmqNetwork())
    await operator.change(adding(replicas.addresses[2]), 60.0)
    await save(store, 3, COUNT, b"w")
    assert await store.read_states("cart", ["e-3"]) == [b"w"]
