"""The suite for state stores, run against memory, SQLite, and Redis's own Lua in fakeredis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest

from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from shardbus.testing.store_suite import StoreFactory, StoreSuite
from tests.unit.store.store_suite import LONG_S, DamagedTables


class StoreConformance(StoreSuite, DamagedTables):
    """The public suite, and the duties of shardbus's stores beyond it."""


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class TestStores(StoreConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def pass_time(self, clock: FakeClock) -> Callable[[float], None]:
        return clock.move

    @pytest.fixture(params=["memory", "sqlite", "fakeredis"])
    def store_factory(
        self, request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
    ) -> StoreFactory:
        match request.param:
            case "memory":
                data = MemoryData()
                return lambda: MemoryStore(data, clock=clock)
            case "sqlite":
                path = tmp_path / "new" / "bus.db"
                return lambda: SqliteStore(
                    path, cluster="shop", timeout=LONG_S, full_sync=False, clock=clock
                )
            case _:
                server = fakeredis.FakeServer()
                return lambda: RedisStore(
                    "redis://fake",
                    timeout=LONG_S,
                    connect=lambda: fakeredis.FakeAsyncRedis(server=server),
                )
