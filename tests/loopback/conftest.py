"""Fixtures for tests with real nodes in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import shardbus.app
import shardbus.node.node
import shardbus.routing.instance_sender
from tests.loopback.nodes import Nodes
from tests.loopback.redis_proxy import RedisProxy
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


@pytest.fixture(autouse=True)
def patient_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let asks of nodes wait as long as tests do: on a busy machine the default may run out."""
    for module in (shardbus.app, shardbus.node.node):
        monkeypatch.setattr(module, "ASK_TIMEOUT_MS", int(PATIENCE_S * 1000))


@pytest.fixture(autouse=True)
def patient_alls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first `all` of a process wait for homes as long as tests do."""
    monkeypatch.setattr(shardbus.routing.instance_sender, "HOMES_WITHIN_S", PATIENCE_S)
