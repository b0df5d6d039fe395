"""Store URLs: the store of each, and refusals."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from shardbus.store import opening
from shardbus.store.memory import MemoryStore
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from shardbus.store.sqlite import SqliteStore
from shardbus.store.urls import default_url


def test_memory() -> None:
    assert isinstance(open_store("memory://", cluster="shop"), MemoryStore)


async def test_sqlite_paths_are_read_as_sqlalchemy_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in [
        ("sqlite:///relative.db", tmp_path / "relative.db"),
        (f"sqlite:///{tmp_path}/absolute.db?durability=cache", tmp_path / "absolute.db"),
        ("sqlite:///./a%20b/c.db?durability=disk", tmp_path / "a%20b" / "c.db"),
    ]:
        store = open_store(url, cluster="shop")
        assert isinstance(store, SqliteStore)
        await store.start()
        await store.close()
        assert path.is_file()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not a URL"),
        ("/var/lib/bus.db", "not a URL"),
        ("memory://x", "stands alone"),
        ("sqlite://bus.db", "names a host"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        (
            "sqlite:///bus.db?durabilty=disk",
            "'durabilty' of 'sqlite:///bus.db?durabilty=***' is unknown",
        ),
        ("sqlite:///bus.db?durability=ram", "disk, cache"),
        ("sqlite:///bus.db?durability=disk&durability=disk", "twice"),
        ("mysql://root:hush@h/db", "memory, sqlite, redis"),
    ],
)
def test_a_wrong_url_is_refused_in_words(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url, cluster="shop")
    assert says in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ConfigError):
        open_store("memory://", cluster="shop", timeout=0)


@pytest.mark.parametrize("cluster", ["shop", ".", "..", "a b", "ü/x", "x" * 256])
def test_the_default_can_be_opened(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert isinstance(open_store(default_url(cluster), cluster=cluster), SqliteStore)


def plugged(url: str, *, cluster: str, timeout: float) -> StateStore:
    assert (url, cluster, timeout) == ("plug://x?y", "shop", 1.5)
    return MemoryStore()


def test_other_schemes_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        [
            EntryPoint("plug", f"{__name__}:plugged", opening.ENTRY_POINTS),
            EntryPoint("broken", "no_such_module_at_all:x", opening.ENTRY_POINTS),
        ]
    )
    monkeypatch.setattr(opening, "entry_points", lambda **query: entries.select(**query))
    assert isinstance(open_store("plug://x?y", cluster="shop", timeout=1.5), MemoryStore)
    with pytest.raises(ConfigError, match="no_such_module_at_all"):
        open_store("broken://", cluster="shop")
    with pytest.raises(ConfigError, match=r"known schemes are .*, broken, plug"):
        open_store("other://", cluster="shop")


def test_a_store_pays_only_for_what_it_imports() -> None:
    code = (
        "import sys; from shardbus.store.opening import open_store; "
        "assert 'sqlite3' not in sys.modules; open_store('sqlite:///x.db', cluster='c'); "
        "assert 'sqlite3' in sys.modules and 'redis' not in sys.modules; "
        "assert 'asyncpg' not in sys.modules; open_store('postgresql://h/db', cluster='c'); "
        "assert 'asyncpg' in sys.modules and 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from shardbus.errors import ConfigError\n"
        "from shardbus.store.opening import open_store\n"
        "try:\n    open_store('postgresql://bus:hush@h/db', cluster='c')\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.endswith("needs the package 'asyncpg'; pip install 'shardbus[postgres]'\n")
    assert "hush" not in said
