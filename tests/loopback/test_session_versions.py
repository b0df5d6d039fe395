"""The versions that the two sides of a session declare, and builds that declare none."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus import AsyncClient, Entity, Refused, ShardBus, handler
from shardbus.transport import incoming, outgoing
from shardbus.transport.session import Session
from shardbus.wire.batch import SESSION_FEATURES, Hello, LinkWelcome, SessionVersions
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("stock", shards=4)
    class Stock(Entity):
        @handler
        def take(self, n: int) -> int:
            return n

    return bus


async def ends(nodes: Nodes) -> tuple[Session, Session]:
    """Both ends of the session of a client to a node, which has carried an ask."""
    [node] = await nodes.cluster(application(), 1)
    client = await nodes.client(node)
    assert await client.call("stock", "fig", "take", 3) == 3
    [of_client] = client._endpoint.outgoing_sessions
    [of_node] = [incoming.session for incoming in node.endpoint.incoming.by_name.values()]
    return of_client, of_node


async def test_N19_each_side_says_what_it_speaks(nodes: Nodes) -> None:
    of_client, of_node = await ends(nodes)
    assert of_client.features == of_node.features == set(SESSION_FEATURES)
    assert of_node.wants_drop_reports


@pytest.mark.parametrize("older", ["client", "node"])
async def test_N19_a_build_that_does_not_say_it_is_understood(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    if older == "client":

        def hello(*fields: Any, listens: bool, secret: bytes, **_: Any) -> Hello:
            cluster, name, node, session = fields
            return Hello(cluster, name, node, session, listens, secret)

        monkeypatch.setattr(outgoing, "Hello", hello)
    else:
        monkeypatch.setattr(incoming, "LinkWelcome", lambda *fields: LinkWelcome(*fields[:2]))
    of_client, of_node = await ends(nodes)
    assert of_client.features == (set(SESSION_FEATURES) if older == "client" else set())
    assert of_node.features == (set() if older == "client" else set(SESSION_FEATURES))
    assert of_node.wants_drop_reports


async def test_N19_a_feature_that_only_the_other_side_knows_is_no_error(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "SESSION_FEATURES", (*SESSION_FEATURES, "of tomorrow"))
    monkeypatch.setattr(outgoing, "SESSION_VERSIONS", SessionVersions(1, 2))
    _, of_node = await ends(nodes)
    assert "of tomorrow" in of_node.features


async def test_N19_versions_without_a_common_one_are_refused_with_both_ranges(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    [node] = await nodes.cluster(application(), 1)
    monkeypatch.setattr(outgoing, "SESSION_VERSIONS", SessionVersions(2, 3))
    address = f"tcp://{node.me.address}"
    with pytest.raises(Refused, match="sessions of version 2 to 3 are not 1 to 1"):
        async with AsyncClient(address, cluster="shop", connect_timeout=PATIENCE_S):
            pass
    assert not node.endpoint.incoming.by_name
