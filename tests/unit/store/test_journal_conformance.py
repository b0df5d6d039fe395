"""The suite for journals against memory, SQLite, Redis's own Lua in fakeredis, and the guard."""

from __future__ import annotations

from pathlib import Path

import fakeredis
import pytest

from shardbus.store.guarded import GuardedStore
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from shardbus.testing import JournalSuite
from shardbus.testing.store_suite import StoreFactory
from tests.unit.entities.scan_suite import ScanSuite
from tests.unit.store.store_suite import LONG_S
from tests.waiting import PATIENCE_S


class TestJournals(JournalSuite, ScanSuite):
    @pytest.fixture(params=["memory", "sqlite", "fakeredis", "guarded"])
    def store_factory(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
        match request.param:
            case "memory":
                data = MemoryData()
                return lambda: MemoryStore(data)
            case "guarded":
                data = MemoryData()
                return lambda: GuardedStore(MemoryStore(data), "own://host", PATIENCE_S)
            case "sqlite":
                path = tmp_path / "new" / "bus.db"
                return lambda: SqliteStore(path, cluster="shop", timeout=LONG_S, full_sync=False)
            case _:
                server = fakeredis.FakeServer()
                return lambda: RedisStore(
                    "redis://fake",
                    timeout=LONG_S,
                    connect=lambda: fakeredis.FakeAsyncRedis(server=server),
                )
