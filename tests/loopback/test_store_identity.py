"""Nodes compare the identity of their stores when one joins: those with different stores refuse
each other, those with one store are one cluster.
"""

from __future__ import annotations

from pathlib import Path

from shardbus.config.settings import StoreSettings
from shardbus.store.memory import MemoryData
from shardbus.store.sqlite import SqliteStore
from tests.loopback.nodes import Nodes
from tests.loopback.test_node import application
from tests.waiting import until


async def test_nodes_with_a_file_each_refuse_each_other(nodes: Nodes, tmp_path: Path) -> None:
    bus = application()[0]
    first_file, two = tmp_path / "one.db", tmp_path / "two.db"
    nodes.open_store = lambda: SqliteStore(first_file, timeout=10.0)
    first = await nodes.start(bus)
    nodes.open_store = lambda: SqliteStore(two, timeout=10.0)
    other = await nodes.start(bus, up=False)
    await until(lambda: other.membership.refusals, "the refusal")
    [reason] = other.membership.refusals
    for node in (first, other):
        assert await node.store.identity() in reason
    assert "the identity of the store is" in reason
    assert "set store.url to one store for all nodes" in reason
    assert "\n" not in reason
    assert first.view is not None
    assert len(first.view.members) == 1


async def test_nodes_with_one_file_are_one_cluster(nodes: Nodes, tmp_path: Path) -> None:
    nodes.open_store = lambda: SqliteStore(tmp_path / "shared.db", timeout=10.0)
    await nodes.cluster(application()[0], 2)


async def test_stores_in_memory_are_compared_by_their_kind_only(nodes: Nodes) -> None:
    nodes.store = StoreSettings(url="memory://")
    bus = application()[0]
    await nodes.start(bus)
    nodes.data = MemoryData()
    await nodes.start(bus)
    await nodes.agree(2)


async def test_a_node_can_join_after_the_store_was_replaced(nodes: Nodes, tmp_path: Path) -> None:
    """A running node writes the identity that it knows into the new file."""
    path = tmp_path / "shared.db"
    nodes.open_store = lambda: SqliteStore(path, timeout=10.0)
    bus = application()[0]
    first = await nodes.start(bus)
    before = await first.store.identity()
    for file in tmp_path.iterdir():
        file.unlink()

    async def known_again() -> bool:
        return await first.store.identity() == before

    await until(known_again, "the identity in the new file")
    await nodes.start(bus)
    await nodes.agree(2)
