"""Fixtures for tests with real nodes in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import shardbus.app
import shardbus.node.node
import shardbus.routing.instance_sender
from tests.laws import pytest_pyfunc_call as pytest_pyfunc_call
from tests.loopback.nodes import Nodes
from tests.loopback.redis_proxy import RedisProxy
from tests.redis_cluster import RedisClusterServers
from tests.replicas import Replicas
from tests.waiting import PATIENCE_S


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Nodes that end with the test."""
    async with Nodes() as nodes:
        yield nodes


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[RedisProxy]:
    """A proxy in front of the session's Redis server."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with RedisProxy(port) as proxy:
        yield proxy


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Three replicas of a store, which serve."""
    replicas = Replicas(tmp_path, 3)
    replicas.start()
    await replicas.serving()
    yield replicas
    replicas.stop()


@pytest.fixture(scope="module")
def redis_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterServers]:
    """The servers of a Redis Cluster."""
    with RedisClusterServers(tmp_path_factory.mktemp("cluster")) as servers:
        asyncio.run(servers.form())
        yield servers


@pytest.fixture
def empty_cluster(redis_masters: RedisClusterServers) -> RedisClusterServers:
    """A Redis Cluster without keys."""
    for master in redis_masters.masters:
        with redis_masters.client(master) as client:
            client.flushall()
    return redis_masters


@pytest.fixture(autouse=True)
def patient_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let asks of nodes wait as long as tests do: on a busy machine the default may run out."""
    for module in (shardbus.app, shardbus.node.node):
        monkeypatch.setattr(module, "ASK_TIMEOUT_MS", int(PATIENCE_S * 1000))


@pytest.fixture(autouse=True)
def patient_alls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first `all` of a process wait for homes as long as tests do."""
    monkeypatch.setattr(shardbus.routing.instance_sender, "HOMES_WITHIN_S", PATIENCE_S)
