"""Nodes announce their replicas, and agree on which of them vote about a split. One store in memory
stands for the replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shardbus import ShardBus
from shardbus.config.settings import StoreSettings
from shardbus.membership.downing.electorate import MEMBERS, Electorate, VoterSet
from shardbus.store.memory import MemoryStore
from tests.loopback.nodes import Nodes
from tests.ports import free_port
from tests.waiting import until


class VotingStore(MemoryStore):
    """A store in memory that has a ring."""

    voters: tuple[int, tuple[str, ...]] | None = None


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        yield nodes


async def agree(nodes: Nodes, electorate: Electorate) -> None:
    def agreed() -> bool:
        views = [node.view for node in nodes.all]
        return all(view is not None and view.electorate == electorate for view in views)

    await until(agreed, f"agreement on {electorate}")


async def test_all_nodes_agree_on_the_replicas_that_vote(nodes: Nodes) -> None:
    ports = [free_port() for _ in range(3)]
    places = tuple(sorted(f"127.0.0.1:{port}" for port in ports))
    nodes.open_store = lambda: VotingStore(nodes.data)
    url = f"cluster://{','.join(places)}"
    for port in ports[:2]:
        nodes.store = StoreSettings(url=url, port=port, replicas=3)
        node = await nodes.start(ShardBus("shop"))
        assert node.view is not None
        mine = node.view.member(node.me)
        assert mine is not None
        assert mine.replica == f"127.0.0.1:{port}"
    nodes.store = StoreSettings(url=url, port=free_port(), replicas=3)
    other = await nodes.start(ShardBus("shop"))
    await nodes.agree(3)
    assert other.view is not None
    assert [bool(m.replica) for m in other.view.members if m.node == other.me] == [False]
    await agree(nodes, MEMBERS)
    for node in nodes.all:
        node.store.voters = (4, places)  # type: ignore[attr-defined]
    announced = tuple(place for place in places if place != f"127.0.0.1:{ports[2]}")
    await agree(nodes, (VoterSet(4, announced, 1),))
    for node in nodes.all:
        node.store.voters = (5, announced[:1])  # type: ignore[attr-defined]
    await agree(nodes, (VoterSet(5, announced[:1]),))
