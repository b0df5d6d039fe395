"""`data show`, `data remove` and `data repair`: stored tables, which no running node may lose."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from pathlib import Path

import pytest

from shardbus.errors import StoreError
from shardbus.ids import Address, NodeId
from shardbus.store import node_registry
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore, StoredTable
from shardbus_cli.exit_codes import ExitCode

NO_NODE = ("--node", "http://127.0.0.1:1")


class Stored:
    """A real store in a file, filled and read beside the command."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self.words = ("counter", "--store", self.url)

    async def _open(self) -> StateStore:
        store = open_store(self.url, cluster="shop")
        await store.start()
        return store

    def fill(self, home: NodeId) -> None:
        async def fill() -> None:
            store = await self._open()
            await store.claim_epoch("counter", 3, "crc32/10")
            await store.write_homes("counter", 3, {"1": (home, 9)}, 1)
            await store.close()

        asyncio.run(fill())

    def register(self, port: int) -> None:
        async def register_it() -> None:
            store = await self._open()
            await node_registry.register(store, Address("127.0.0.1", port))
            await store.close()

        asyncio.run(register_it())

    def spoil(self, epoch: int) -> None:
        """Write an epoch past the store."""
        with sqlite3.connect(self.url.removeprefix("sqlite:///")) as db:
            db.execute("UPDATE shard_table SET epoch = ?", (epoch,))

    def table(self) -> StoredTable | None:
        async def load() -> StoredTable | None:
            store = await self._open()
            table = await store.load_table("counter")
            await store.close()
            return table

        return asyncio.run(load())

    def homes(self) -> dict[str, tuple[NodeId, int]]:
        table = self.table()
        return {} if table is None else dict(table.homes)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_data_is_shown(shell, stored):
    stored.fill(NodeId("192.0.2.1", 1, 5))
    words = ("data", "show", "none", *stored.words, "--cluster", "shop", *NO_NODE)
    assert shell(*words, "--json") == ExitCode.OK
    none, counter = json.loads(shell.out)["types"]
    assert (counter["epoch"], counter["layout"], counter["shards"]) == (3, "crc32/10", 1)
    assert counter["nodes"] == ["192.0.2.1:1#0000000000000005"]
    assert none["epoch"] is None
    assert shell(*words) == ExitCode.OK
    assert shell.out.splitlines()[2].split()[:4] == ["counter", "3", "crc32/10", "1"]


def test_data_is_not_removed_while_a_node_runs(shell, stored, url):
    stored.fill(NodeId("192.0.2.1", 1, 5))
    assert shell("data", "remove", *stored.words) == ExitCode.REFUSED
    assert "cluster 'shop' runs" in shell.err
    assert stored.table() is not None


def test_TSU19_data_is_not_removed_while_something_listens_at_a_home(shell, stored):
    words = ("data", "remove", *stored.words, "--cluster", "shop", *NO_NODE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stored.fill(NodeId("127.0.0.1", listener.getsockname()[1], 5))
        assert shell(*words) == ExitCode.REFUSED
        assert stored.homes()
    assert shell(*words) == ExitCode.OK
    assert not stored.homes()


def test_S2_54_data_is_not_removed_while_a_node_runs_that_hosts_nothing(shell, stored):
    words = ("data", "remove", *stored.words, "--cluster", "shop", *NO_NODE)
    stored.fill(NodeId("127.0.0.1", 1, 5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stored.register(port)
        assert shell(*words) == ExitCode.REFUSED
        assert f"cluster 'shop' runs: a node answers at 127.0.0.1:{port}" in shell.err
        assert stored.homes()
    assert shell(*words) == ExitCode.OK, "it was killed"
    assert not stored.homes()
    with socket.create_server(("127.0.0.1", port)):
        assert shell(*words) == ExitCode.OK, "another process listens there now"


def test_data_is_repaired_only_while_no_node_runs(shell, stored):
    words = ("data", "repair", *stored.words, "--cluster", "shop", *NO_NODE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stored.fill(NodeId("127.0.0.1", listener.getsockname()[1], 5))
        stored.spoil(2**62)
        assert shell("data", "show", *stored.words, "--cluster", "shop", *NO_NODE) != ExitCode.OK
        assert "data repair" in shell.err
        assert "Traceback" not in shell.err
        assert shell(*words) == ExitCode.REFUSED
        assert "cluster 'shop' runs" in shell.err
        assert shell(*words, "--dry-run") == ExitCode.UNHEALTHY, "it may run beside nodes"
        assert f"counter: the table's epoch is {2**62}" in shell.out
        assert shell("doctor", *stored.words, "--cluster", "shop", *NO_NODE) != ExitCode.OK
        assert "stored-damaged: counter table" in shell.out
    assert shell(*words, "--dry-run", "--json") == ExitCode.UNHEALTHY
    found = json.loads(shell.out)
    assert (found["written"], len(found["found"]["counter"])) == (False, 1)
    assert shell(*words) == ExitCode.OK
    assert shell(*words, "--dry-run") == ExitCode.OK
    assert shell.out == "counter: nothing is wrong\n"
    table = stored.table()
    assert table is not None
    assert table.epoch < 2**30


def test_data_is_not_repaired_while_a_node_answers(shell, stored, url):
    stored.fill(NodeId("192.0.2.1", 1, 5))
    stored.spoil(2**62)
    assert shell("data", "repair", *stored.words) == ExitCode.REFUSED
    assert shell("data", "repair", *stored.words, "--dry-run") == ExitCode.UNHEALTHY
    with pytest.raises(StoreError):
        stored.table()


def test_data_needs_a_clusters_name(shell, stored):
    assert shell("data", "show", *stored.words, *NO_NODE) == ExitCode.USAGE
    assert "--cluster" in shell.err
