"""The roll of the nodes that run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.ids import Address
from shardbus.store import node_registry
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from tests.waiting import PATIENCE_S

NODES = [Address("10.0.0.1", 7355), Address("::1", 7357), Address("a.b-c", 1)]


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}
    url = urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))
    opened = open_store(url, cluster="shop", timeout=PATIENCE_S)
    await opened.start()
    yield opened
    await opened.close()


async def test_a_node_is_registered_until_it_is_removed(store: StateStore) -> None:
    assert await node_registry.registered(store) == set()
    for node in (*NODES, NODES[0]):
        await node_registry.register(store, node)
    assert await node_registry.registered(store) == set(NODES)
    await node_registry.remove(store, NODES[:1])
    await node_registry.remove(store, NODES[:1])
    assert await node_registry.registered(store) == set(NODES[1:])


async def test_a_registry_of_many_pages_is_read_to_its_end(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_registry, "PAGE", 2)
    for node in NODES:
        await node_registry.register(store, node)
    assert await node_registry.registered(store) == set(NODES)


async def test_entries_that_are_no_address_are_left_out(store: StateStore) -> None:
    await store.add_remembered(
        node_registry.RESERVED,
        node_registry.SHARD,
        ["nobody", "10.0.0.1:7355"],
        node_registry.FENCE,
    )
    assert await node_registry.registered(store) == {NODES[0]}
