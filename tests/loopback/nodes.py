"""Real nodes in the test's own event loop: real sockets, real membership threads, one store in
memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import httpx

from shardbus.admin.administration import Administration
from shardbus.admin.page_table import answer_questions, bound
from shardbus.admin.pages import health
from shardbus.app import ShardBus
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.blocking import Client
from shardbus.config.settings import (
    ClusterSettings,
    HttpSettings,
    KubernetesSettings,
    NodeSettings,
    SecuritySettings,
    Settings,
    StoreSettings,
    TracingSettings,
)
from shardbus.http.app import create_app
from shardbus.membership.member import Status
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import StateStore
from tests.laws import left_over
from tests.ports import free_port
from tests.records import replace
from tests.waiting import PATIENCE_S, turns, until

QUICK = ClusterSettings(gossip_interval=0.1, leader_actions_interval=0.1, seed_node_timeout=1.0)
SHORT_CLAIM = replace(QUICK, discovery_interval=1.0, founding_claim=3.0)
"""Nodes that start after every other one was closed wait for the claim of the former cluster."""


class Nodes:
    """Nodes that share one store, closed at the end of the test. The last to close leave nothing
    on the loop."""

    open: ClassVar = 0
    """How many of these are open."""

    def __init__(self, cluster: ClusterSettings = QUICK) -> None:
        self.data = MemoryData()
        self.open_store: Callable[[], StateStore] = lambda: MemoryStore(self.data)
        """Makes the store of those that start from now on."""
        self.all: list[Node] = []
        self.node_settings: dict[str, Any] = {}
        """Settings of section `node` for those that start from now on."""
        self.store, self.security = StoreSettings(), SecuritySettings()
        self.tracing, self.kubernetes = TracingSettings(), KubernetesSettings()
        self.cluster_settings = cluster
        self._clients: list[AsyncClient] = []

    async def __aenter__(self) -> Nodes:
        Nodes.open += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self._clients:
            await client.close()
        await asyncio.gather(*(node.close() for node in self.all))
        Nodes.open -= 1
        if error[0] is None and not Nodes.open:
            await turns()
            left = left_over(asyncio.get_running_loop())
            assert not left, f"nodes and clients have ended, and have left {left}"

    async def start(
        self, bus: ShardBus, *, up: bool = True, roles: tuple[str, ...] = (), **sharding: Any
    ) -> Node:
        """Another node; waits until it is ready."""
        seeds = tuple(str(node.me.address) for node in self.all[:1])
        place = NodeSettings(port=free_port(), gossip_port=free_port(), seeds=seeds, roles=roles)
        place = replace(place, **self.node_settings)
        settings = Settings(
            node=place,
            cluster=self.cluster_settings,
            store=self.store,
            security=self.security,
            tracing=self.tracing,
            kubernetes=self.kubernetes,
        )
        settings = replace(settings, sharding=replace(settings.sharding, **sharding))
        node = Node(bus.name, bus.types, settings, self.open_store())
        answer_questions(Administration(node))
        await node.start()
        self.all.append(node)
        node.join("127.0.0.1:0")
        if up:
            await until(lambda: ready(node), f"readiness of {node.me}")
        return node

    async def cluster(self, bus: ShardBus, count: int, **sharding: Any) -> list[Node]:
        """Several nodes that agree on who is Up."""
        nodes = [await self.start(bus, **sharding) for _ in range(count)]
        await self.agree(count)
        return nodes

    async def agree(self, count: int) -> None:
        """Wait until every running node sees `count` members, all Up."""

        def seen() -> bool:
            views = [node.view for node in self.all if not node.membership.stopped.done()]
            return all(v and [m.status for m in v.members] == [Status.UP] * count for v in views)

        await until(seen, f"{count} members up")

    def remembered(self, entity_type: str) -> list[str]:
        """The ids on the type's lists in the store."""
        lists = self.data.remembered
        return [
            i for (name, _), row in lists.items() if name == entity_type for i in row.entity_ids
        ]

    async def leave(self, node: Node) -> None:
        """Hand off, leave and close, as at a SIGTERM."""
        self.all.remove(node)
        await shutdown.leave(node, lambda text: None)
        await node.close()

    async def client(self, *nodes: Node, timeout: float = PATIENCE_S, **more: Any) -> AsyncClient:
        """A client that knows these nodes, or the first."""
        contacts = nodes or self.all[:1]
        addresses = [f"tcp://{node.me.address}" for node in contacts]
        more = {"connect_timeout": PATIENCE_S} | more
        cluster = contacts[0].membership.cluster_name
        client = AsyncClient(*addresses, cluster=cluster, timeout=timeout, **more)
        self._clients.append(client)
        return await client.__aenter__()


def blocking_client(node: Node, **options: Any) -> Client:
    """A blocking client of one node's cluster, for a thread of its own."""
    patient: dict[str, Any] = {"timeout": PATIENCE_S, "connect_timeout": PATIENCE_S}
    return Client(
        f"tcp://{node.me.address}", cluster=node.membership.cluster_name, **patient | options
    )


def ready(node: Node) -> bool:
    """The answer of /readyz."""
    return all(check.ok for check in health.readiness(Administration(node)).values())


def http(node: Node) -> httpx.AsyncClient:
    """The node's HTTP, without a port."""
    transport = httpx.ASGITransport(app=create_app(bound(Administration(node)), HttpSettings()))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def hosts(nodes: list[Node], entity_type: str) -> dict[str, list[Node]]:
    """Shard to the nodes that host it now."""
    by_shard: dict[str, list[Node]] = {}
    for node in nodes:
        for shard in node.regions[entity_type].host.shards:
            by_shard.setdefault(shard, []).append(node)
    return by_shard
