"""`data show`, `data remove`, `data repair` and `data migrate`: no running node loses a row."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from pathlib import Path

import pytest

from shardbus.config.settings import StoreSettings
from shardbus.errors import StoreError
from shardbus.ids import Address, NodeId, shard_of
from shardbus.store import node_registry
from shardbus.store.memory import MemoryStore
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore, StoredTable
from shardbus_cli.data import CALL_TIMEOUT_S, opened
from shardbus_cli.exit_codes import ExitCode
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S

NO_NODE = ("--node", "http://127.0.0.1:1")


class Stored:
    """A real store in a file, filled and read beside the command."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self.words = ("counter", "--store", self.url)

    async def _open(self) -> StateStore:
        store = open_store(self.url, cluster="shop", timeout=PATIENCE_S)
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
    result = json.loads(shell.out)
    assert (result["written"], len(result["found"]["counter"])) == (False, 1)
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


APP = """
from dataclasses import dataclass
from shardbus import Entity, ShardBus, handler

bus = ShardBus("shop")

@dataclass
class Lines:
    items: int = 0

@bus.entity("cart", shards=20)
class Cart(Entity):
    state: Lines

    @handler
    def get(self) -> int:
        return self.state.items
"""


def version_1(redis_server: RedisServer, db: int, port: int) -> None:
    """Write the rows of an earlier release: a cart, and a node that listens at this port."""
    v = b"%019d" % 7 + b"a" * 10 + b"0" * 15
    with redis_server.client(db) as client:
        client.hset("shardbus:shop:probe", "mark", "0123")
        client.hset("shardbus:shop:{cart}:table", mapping={"epoch": 1, "layout": "crc32/10"})
        client.hset("shardbus:shop:{cart}:entity:c-1", mapping={"v": v, "data": b"tea"})
        client.hset("shardbus:shop:{%24nodes}:shards", "all", v)
        client.zadd("shardbus:shop:{%24nodes}:remembered:all", {f"127.0.0.1:{port}": 0})


def test_states_are_moved_only_while_no_node_runs(shell, redis_server, redis_url, tmp_path):
    words = ("data", "migrate", "--store", redis_url, *NO_NODE)
    named = (*words, "--cluster", "shop")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        version_1(redis_server, int(redis_url.rpartition("/")[2]), port)
        assert shell("state", "list", "cart", "--store", redis_url, "--cluster", "shop") != 0
        assert "`shardbus data migrate --store URL`" in shell.err
        assert shell(*named, "--dry-run") == ExitCode.UNHEALTHY
        assert "cart: 1 of 1 state and 0 lists would move to the places of 'crc32/10'" in shell.out
        assert shell(*named) == ExitCode.REFUSED
        assert f"cluster 'shop' runs: a node answers at 127.0.0.1:{port}" in shell.err
    assert shell(*named) == ExitCode.OK
    assert "1 state and 1 list moved" in shell.out
    with socket.create_server(("127.0.0.1", port)):
        assert shell(*named, "--dry-run") == ExitCode.OK
        assert shell(*named) == ExitCode.REFUSED, "the registry was moved, too"
    (tmp_path / "carts.py").write_text(APP)
    assert shell("data", "migrate", str(tmp_path / "carts.py"), *words[2:], "--json") == ExitCode.OK
    result = json.loads(shell.out)
    assert result["types"]["cart"]["to"] == "crc32/20"
    assert (result["moved"], result["cluster"]) == (result["types"]["cart"]["misplaced"], "shop")

    async def read() -> bytes | None:
        store = open_store(redis_url, cluster="shop", timeout=60.0)
        await store.start()
        try:
            return await store.load_state("cart", shard_of("c-1", 20), "c-1", 9)
        finally:
            await store.close()

    assert asyncio.run(read()) == b"tea"


@pytest.mark.parametrize(
    "command",
    [
        ("state", "export", "cart"),
        ("state", "list", "cart"),
        ("state", "check", "good_app"),
        ("journal", "show", "cart", "7"),
        ("outbox", "list"),
        ("data", "show", "cart"),
        ("data", "remove", "cart"),
        ("data", "migrate", "--dry-run"),
    ],
    ids=" ".join,
)
def test_a_command_makes_no_empty_store_of_a_mistyped_file(shell, apps, command):
    words = () if "good_app" in command else ("--cluster", "shop")
    node = () if command[:2] == ("state", "check") else NO_NODE
    url = f"sqlite:///{apps}/typo.db"
    assert shell(*command, "--store", url, *words, *node) == ExitCode.UNREACHABLE
    assert f"there is no file '{apps}/typo.db'; correct --store" in shell.err
    assert not (apps / "typo.db").exists()


def test_an_export_of_a_type_that_nobody_has_fails(shell, apps, stored):
    Path(stored.url.removeprefix("sqlite:///")).touch()
    words = ("state", "export", "conter", "--app", "good_app", "--store", stored.url, *NO_NODE)
    assert shell(*words) == ExitCode.REFUSED
    assert "no entity type 'conter'" in shell.err


def test_a_store_without_places_has_nothing_to_move(shell, stored):
    Path(stored.url.removeprefix("sqlite:///")).touch()
    words = ("data", "migrate", "--store", stored.url, "--cluster", "shop", *NO_NODE)
    assert shell(*words, "--dry-run") == ExitCode.OK
    assert "nothing is to be moved" in shell.out


def test_an_import_puts_states_where_nodes_look_for_them(shell, redis_url, tmp_path):
    """Whatever shards the lines name, which may belong to another layout."""
    app, lines = tmp_path / "carts.py", tmp_path / "carts.jsonl"
    app.write_text(APP)
    row = {"type": "cart", "id": "c-1", "shard": "999", "version": 1, "state": {"items": 3}}
    lines.write_text(json.dumps(row))
    words = ("--store", redis_url, "--app", str(app), *NO_NODE)
    assert shell("state", "import", str(lines), *words) == ExitCode.OK, shell.err

    async def read() -> tuple[bytes | None, str]:
        store = open_store(redis_url, cluster="shop", timeout=60.0)
        await store.start()
        try:
            data = await store.load_state("cart", shard_of("c-1", 20), "c-1", 2**40)
            return data, await store.placement("cart")
        finally:
            await store.close()

    data, placement = asyncio.run(read())
    assert data is not None
    assert placement == "crc32/20"
    app.write_text(APP.replace("shards=20", "shards=100"))
    assert shell("state", "import", str(lines), *words) == ExitCode.REFUSED
    assert "`shardbus data migrate APP --store URL`" in shell.err


async def test_a_command_waits_longer_for_the_store_than_a_node(monkeypatch):
    opened_with: dict[str, object] = {}

    def open_memory(url: str, **options: object) -> MemoryStore:
        opened_with.update(options)
        return MemoryStore()

    monkeypatch.setattr("shardbus.store.opening.open_store", open_memory)
    async with opened("memory://", "shop"):
        pass
    within = {"timeout": CALL_TIMEOUT_S, "start_within": CALL_TIMEOUT_S}
    assert opened_with == {"cluster": "shop", **within}
    assert StoreSettings().timeout < CALL_TIMEOUT_S


async def test_a_command_reaches_replicas_by_the_keys_of_the_environment(monkeypatch):
    opened_with: dict[str, object] = {}

    def open_memory(url: str, **options: object) -> MemoryStore:
        opened_with.update(options)
        return MemoryStore()

    monkeypatch.setattr("shardbus.store.opening.open_store", open_memory)
    monkeypatch.setenv("SHARDBUS_SECURITY__SECRET", "cluster.secret")
    async with opened("cluster://127.0.0.1:9", "shop"):
        pass
    assert opened_with["security"].secret == "cluster.secret"
