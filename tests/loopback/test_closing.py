"""A client that closes: its messages get the time to arrive, and that time has an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client import asynchronous
from shardbus.client.asynchronous import AsyncClient
from shardbus.config.settings import Settings
from shardbus.errors import ShardBusError
from shardbus.node.node import Node
from shardbus.store.opening import open_store
from shardbus.transport.zmq.network import ZmqNetwork
from tests.loopback.nodes import Nodes
from tests.ports import free_port
from tests.proxy import Proxy
from tests.waiting import PATIENCE_S, until

bus = ShardBus("closing")
told: list[int] = []


@bus.entity("line", shards=4)
class Line(Entity):
    """Writes down its messages."""

    @handler
    def put(self, number: int, payload: bytes) -> None:
        told.append(number)

    @handler
    def ping(self) -> int:
        return 1


@pytest.fixture
async def way() -> AsyncIterator[Proxy]:
    """A node behind a proxy."""
    told.clear()
    async with Nodes() as nodes:
        proxy = Proxy(free_port())
        await proxy.start()
        nodes.node_settings = {"port": proxy.target, "advertise": f"127.0.0.1:{proxy.port}"}
        await nodes.start(bus)
        yield proxy
        await proxy.close()


async def entered(proxy: Proxy) -> AsyncClient:
    client = AsyncClient(
        f"tcp://127.0.0.1:{proxy.port}",
        cluster="closing",
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )
    await client.__aenter__()
    await client.ref(Line, "a").ping()
    return client


async def test_tells_arrive_over_a_slow_connection(
    way: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous, "CLOSE_S", PATIENCE_S)
    client = await entered(way)
    way.rate = 500_000.0
    for number in range(400):
        await client.ref(Line, "a").put.tell(number, bytes(1000))
    await client.close()
    assert told == list(range(400))
    assert client.lost_messages == 0


async def test_a_close_ends_without_acknowledgements_and_counts_possible_losses(
    way: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous, "CLOSE_S", 0.2)
    client = await entered(way)
    way.mute()
    for number in range(25):
        await client.ref(Line, "a").put.tell(number, b"")
    await client.close()
    assert told == []
    await until(lambda: not client._endpoint.sessions(), "the end of the sessions")
    assert client.lost_messages == 25


@pytest.mark.parametrize("way", ["cancelled", "timed out", "refused"])
async def test_a_client_that_does_not_get_in_keeps_no_socket(nodes: Nodes, way: str) -> None:
    node = await nodes.start(ShardBus("shop"))
    cluster = "another" if way == "refused" else "shop"
    address = f"127.0.0.1:{node.me.port if way == 'refused' else free_port()}"
    client = AsyncClient(
        address, cluster=cluster, connect_timeout=0.1 if way == "timed out" else 60
    )
    entering = asyncio.ensure_future(client.__aenter__())
    if way == "cancelled":
        await until(lambda: client._entered, "the client to begin")
        entering.cancel()
    (outcome,) = await asyncio.gather(entering, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError if way == "cancelled" else ShardBusError)
    network = client._endpoint.network
    assert isinstance(network, ZmqNetwork)
    assert network.context.closed


async def test_a_node_that_is_not_started_has_no_threads_of_zeromq(redis_url: str) -> None:
    node = Node("shop", {}, Settings(), open_store(redis_url, cluster="shop"))
    assert not hasattr(node.environment.network, "context")
