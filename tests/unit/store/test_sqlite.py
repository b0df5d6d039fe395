"""Promises of the SQLite store alone: the file's rights, its neighbours, and errors in words."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.protocol import Save, on_new_server
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import LONG_S, insist
from tests.waiting import until

A = NodeId("10.0.0.1", 7355, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "bus.db"


async def test_only_the_owner_may_read_the_file(path: Path) -> None:
    umask = os.umask(0)
    try:
        store = SqliteStore(path, timeout=LONG_S)
        await store.start()
        await store.claim_epoch("counter", 1, "crc32/100")
    finally:
        os.umask(umask)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    await store.close()


async def test_clusters_of_one_file_do_not_meet(path: Path) -> None:
    shop, bank = (
        SqliteStore(path, cluster="shop", timeout=LONG_S),
        SqliteStore(path, cluster="bank", timeout=LONG_S),
    )
    for store in (shop, bank):
        await store.start()
        await store.claim_epoch("counter", 1, "crc32/100")
        assert await store.acquire_lease("sbr", "a", 60.0) is not None
    await shop.save_states([Save("counter", "7", "a", 5, b"shop", 1)])
    await shop.add_remembered("counter", "7", ["a"], 5)
    assert await bank.load_state("counter", "7", "a", 1) is None
    assert await bank.page_remembered("counter", "7", None, 10) == ([], None)
    await shop.close()
    await bank.close()


RACER = """
import asyncio, sys
from shardbus.errors import StaleEpoch
from shardbus.store.protocol import Save
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import LONG_S

async def main():
    store = SqliteStore(sys.argv[1], full_sync=False, timeout=LONG_S)
    await store.start()
    won = 0
    for epoch in range(1, 101):
        try:
            await store.claim_epoch("counter", epoch, "crc32/100")
            won += 1
        except StaleEpoch:
            pass
        await store.save_states([Save("counter", "7", sys.argv[2], 1, b"%d" % epoch, epoch)])
    await store.close()
    print(won)

asyncio.run(main())
"""


@pytest.mark.long
async def test_processes_that_race_share_the_file(path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, path, name], stdout=subprocess.PIPE)
        for name in ("a", "b", "c")
    ]
    outputs = [await asyncio.to_thread(racer.communicate) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    won = [int(out) for out, _ in outputs]
    assert 0 < sum(won) <= 100
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    table = await store.load_table("counter")
    assert table is not None
    assert table.epoch == 100
    for name in ("a", "b", "c"):
        assert await store.load_state("counter", "7", name, 1) == b"100"
    await store.close()


async def test_many_waiting_calls_share_transactions(path: Path) -> None:
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    await asyncio.gather(
        *(store.save_states([Save("counter", "7", f"e-{n}", 1, b"x", n + 1)]) for n in range(2000))
    )
    assert await store.load_state("counter", "7", "e-1999", 1) == b"x"
    await store.close()


async def test_a_refused_call_undoes_nothing_of_its_neighbours(path: Path) -> None:
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    answers = await asyncio.gather(
        store.save_states([Save("counter", "7", "a", 1, b"a", 1)]),
        store.save_states(
            [Save("counter", "7", "b", 1, b"b", 2), Save("counter", "7", "\ud800", 1, b"", 3)]
        ),
        store.save_states([Save("counter", "7", "c", 1, b"c", 4)]),
        return_exceptions=True,
    )
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    loaded = [await store.load_state("counter", "7", entity_id, 1) for entity_id in "abc"]
    assert loaded == [b"a", None, b"c"]
    await store.close()


async def test_a_lock_held_elsewhere_is_named_and_outlived(path: Path) -> None:
    store = SqliteStore(path, timeout=0.5)
    await store.start()
    with sqlite3.connect(path, isolation_level=None) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert await insist(lambda: store.load_table("counter")) is None

        async def named() -> bool:
            with pytest.raises(StoreUnavailable) as refused:
                await store.claim_epoch("counter", 1, "crc32/100")
            return "locked by another process" in str(refused.value)

        await until(named, "the cause")
        holder.execute("ROLLBACK")
    holder.close()
    await insist(lambda: store.claim_epoch("counter", 1, "crc32/100"))
    await store.close()


@pytest.mark.parametrize("content", [b"not a database at all", b"x" * 10_000])
async def test_a_file_that_is_no_database_is_named_and_left_alone(
    path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        await SqliteStore(path, timeout=LONG_S).start()
    assert path.read_bytes() == content


async def test_a_damaged_file_is_named(path: Path) -> None:
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    await store.save_states(
        [Save("counter", "7", f"e-{n}", 1, b"x" * 1000, n + 1) for n in range(200)]
    )
    await store.close()
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * 4096 * 20 + content[8192 + 4096 * 20 :])

    async def use() -> None:
        await store.start()
        await store.save_states(
            [Save("counter", "7", f"e-{n}", 1, b"y", n) for n in range(201, 400)]
        )

    with pytest.raises(StoreUnavailable, match="damaged"):
        await use()
    await store.close()


async def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(ConfigError, match="another program"):
        await SqliteStore(path, timeout=LONG_S).start()


async def test_a_newer_format_is_refused(path: Path) -> None:
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="format 99"):
        await store.start()


async def test_a_full_disk_is_named_and_nothing_is_half_written(path: Path) -> None:
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    await store.claim_epoch("counter", 1, "crc32/100")
    await store._worker.call(lambda steps: steps.db.execute("PRAGMA max_page_count = 20").close())
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.save_states(
            [Save("counter", "7", "a", 1, b"x", 1), Save("counter", "7", "b", 1, b"x" * 10**6, 2)]
        )
    assert await store.load_state("counter", "7", "a", 1) is None
    await store.save_states([Save("counter", "7", "b", 1, b"x" * 10**6, 3)])
    await store.close()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        await SqliteStore(tmp_path / "file" / "bus.db", timeout=LONG_S).start()


async def test_a_file_that_was_replaced_is_opened_anew(path: Path) -> None:
    store, other = SqliteStore(path, timeout=LONG_S), SqliteStore(path, timeout=LONG_S)
    met: list[str] = []
    on_new_server(store, lambda: met.append("another file"))
    await store.start()
    await store.claim_epoch("counter", 1, "crc32/100")
    await store.load_table("counter")
    assert met == []
    for file in path.parent.iterdir():
        file.unlink()
    await other.start()
    await other.claim_epoch("counter", 7, "crc32/100")
    table = await store.load_table("counter")
    assert table is not None
    assert table.epoch == 7
    await store.load_table("counter")
    assert met == ["another file"]
    await store.close()
    await other.close()


async def test_answered_writes_survive_the_process(path: Path) -> None:
    code = (
        "import asyncio, os, sys\n"
        "from shardbus.store.protocol import Save\n"
        "from shardbus.store.sqlite import SqliteStore\n"
        "async def main():\n"
        "    store = SqliteStore(sys.argv[1], timeout=60)\n"
        "    await store.start()\n"
        "    await store.save_states([Save('counter', '7', 'a', 3, b'kept', 1)])\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    store = SqliteStore(path, timeout=LONG_S)
    await store.start()
    assert await store.load_state("counter", "7", "a", 3) == b"kept"
    await store.close()


async def test_a_clock_that_was_set_back_holds_a_lease_no_longer_than_its_length(
    path: Path,
) -> None:
    now = [10_000.0]
    store = SqliteStore(path, timeout=LONG_S, clock=lambda: now[0])
    await store.start()
    assert await store.acquire_lease("sbr", "a", 10.0) is not None
    now[0] = 5.0
    assert await store.acquire_lease("sbr", "b", 10.0) is None
    now[0] = 15.0
    assert await store.acquire_lease("sbr", "b", 10.0) is not None
    await store.close()
