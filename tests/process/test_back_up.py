"""The commands of the page "Back up and restore", as they stand there: a backup beside a node that
works, a later save, and a restore that brings back the states of the backup."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doc_blocks import ROOT, blocks
from tests.postgres_server import PostgresServer
from tests.process.terminal import Step, Terminal
from tests.redis_server import RedisServer, server_binary
from tests.waiting import PATIENCE_S

PAGE = "docs/how-to/back-up.md"
APP = """\
from dataclasses import dataclass

from shardbus import Entity, ShardBus, handler

bus = ShardBus("shop")


@dataclass
class Cart:
    items: int = 0


@bus.entity("cart")
class CartEntity(Entity):
    state: Cart

    @handler
    async def put(self, count: int) -> int:
        self.state.items += count
        await self.save()
        return self.state.items
"""

pytestmark = pytest.mark.long


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test on a machine without a tool that the page names."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is missing")


def section(title: str) -> list[str]:
    """The shell blocks of a section of the page."""
    lines = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()
    blocks_of = []
    for block in blocks(PAGE):
        headings = [line for line in lines[: block.line] if line.startswith("## ")]
        if block.language == "sh" and headings[-1] == f"## {title}":
            blocks_of.append(block.text)
    return blocks_of


class Shop:
    """One node at a time, in a folder with the application of the page."""

    def __init__(self, terminal: Terminal, folder: Path, store: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "shop.py").write_text(APP, encoding="utf-8")
        terminal.folder = folder
        self._programs(folder)
        terminal.environment["PYTHONPATH"] += f":{folder}"
        terminal.environment["PATH"] = f"{folder / 'bin'}:{terminal.environment['PATH']}"
        self.terminal, self.store = terminal, store

    @staticmethod
    def _programs(folder: Path) -> None:
        """Let `redis-server` be the server of the tests, if there is none on the PATH."""
        (folder / "bin").mkdir()
        if shutil.which("redis-server") is None:
            (folder / "bin" / "redis-server").symlink_to(server_binary())

    def start(self) -> None:
        [ready] = self.terminal.run(Step(f"shardbus node start shop:bus --store '{self.store}'"))
        assert ready.startswith("ready: ")

    def put(self, count: int) -> int:
        [answer] = self.terminal.run(Step(f"shardbus ask cart anna put {count}"))
        return int(answer)

    def stop(self) -> None:
        self.terminal.run(Step("^C"))

    def run(self, block: str, **places: str) -> str:
        """Run a block of the page; `places`: texts of the page by names of this test's."""
        for name, place in places.items():
            block = block.replace(PLACES[name], place)
        done = subprocess.run(
            ["bash", "-euc", block], cwd=self.terminal.folder, text=True, check=False,
            env=self.terminal.environment, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        return done.stdout

    def comes_back(self, back_up: str, restore: str, **places: str) -> None:
        """Back up beside a node, save more, restore, and find the states of the backup."""
        self.start()
        assert self.put(3) == 3
        self.run(back_up, **places)
        assert self.put(4) == 7
        self.stop()
        self.run(restore, **places)
        self.start()
        assert self.put(0) == 3
        assert self.put(1) == 4
        self.stop()


PLACES = {"redis": "6379", "postgres": "postgresql://shop@127.0.0.1:5432/shop"}


@needs("sqlite3")
def test_sqlite(terminal: Terminal, tmp_path: Path) -> None:
    shop = Shop(terminal, tmp_path / "shop", "sqlite:///shop.db")
    back_up, restore = section("SQLite")
    shop.comes_back(back_up, restore)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server in a folder of its own, also one that the page starts there in its place."""
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        yield server
        subprocess.run(["redis-cli", "-p", str(server.port), "shutdown", "nosave"], check=False)


@needs("redis-cli")
def test_redis(terminal: Terminal, redis: RedisServer) -> None:
    shop = Shop(terminal, redis.folder, redis.url())
    back_up, restore = section("Redis")
    shop.comes_back(back_up, restore, redis=str(redis.port))
    assert redis.client().config_get("appendonly") == {"appendonly": "yes"}


@needs("pg_dump")
def test_postgres(terminal: Terminal, own_postgres: PostgresServer, tmp_path: Path) -> None:
    shop = Shop(terminal, tmp_path / "shop", own_postgres.url())
    back_up, restore = section("PostgreSQL")
    shop.comes_back(back_up, restore, postgres=own_postgres.url())


@needs("redis-cli")
def test_from_one_store_into_another(terminal: Terminal, redis: RedisServer) -> None:
    shop = Shop(terminal, redis.folder, "sqlite:///shop.db")
    [move] = section("By shardbus, from any store into any")
    shop.start()
    assert shop.put(5) == 5
    shop.stop()
    said = shop.run(move, redis=str(redis.port))
    assert "1 line\n" in said
    shop.store = redis.url()
    shop.start()
    assert shop.put(0) == 5
    shop.stop()
