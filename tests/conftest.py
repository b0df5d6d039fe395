"""Fixtures that several floors share. Nothing starts before a test asks for it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.redis_server import RedisServer

pytest.register_assert_rewrite("store_suite")

settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("wild", deadline=None, max_examples=2_000)
"""The same examples in every run, and no clock; `--hypothesis-profile=wild` looks for others."""
settings.load_profile("default")

DATABASES = 16


def pytest_configure() -> None:
    """A job in a shell's background ignores SIGINT, and so would every process that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server for the whole session. A test that kills or pauses one starts its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def _redis_databases() -> Iterator[int]:
    return itertools.cycle(range(DATABASES))


@pytest.fixture
def redis_url(redis_server: RedisServer, _redis_databases: Iterator[int]) -> str:
    """The URL of an empty database of the session's server."""
    db = next(_redis_databases)
    with redis_server.client(db) as client:
        client.flushdb()
    return redis_server.url(db)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that this test may kill, pause and restart."""
    with RedisServer(tmp_path / "redis") as server:
        yield server
