"""A node with its store and its HTTP interface: a process runs it (`run`), or an application embeds
it in its own event loop (`shardbus.embedding`).

    start   the store answers, sockets listen, the stored tables fit, HTTP answers, the node joins
    ready   the member is Up, and its regions are registered
    close   callbacks end, HTTP stops, the node leaves the store's registry and closes its sockets

`close` hands nothing off: to leave in good order, `shutdown.leave` comes first.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shardbus.config.settings import Settings
from shardbus.config.validation import WILDCARDS
from shardbus.entities.entity_type import EntityType
from shardbus.errors import ShardBusError
from shardbus.http.app import create_app
from shardbus.http.guard import with_tokens
from shardbus.http.page import NodePages
from shardbus.http.server import scheme, serve, tls_files
from shardbus.ids import Address
from shardbus.node.app_version import VersionSource
from shardbus.node.node import Node
from shardbus.node.shutdown import longest_move
from shardbus.node.stored_layouts import check_layouts
from shardbus.shells.cluster_thread import ClusterThread
from shardbus.store import node_registry
from shardbus.store.opening import open_store
from shardbus.store.urls import default_url, mask_url

READY_POLL_S = 0.02
CALLBACKS_S = 5.0
AFTERWARDS_S = 10.0
"""For callbacks and sockets, after the last phase."""
REMOVE_S = 1.0
"""For the store to remove this node from its registry. A node that stays there costs a command one
connection attempt."""


class Application(Protocol):
    """The application that a node runs: a ShardBus."""

    name: str
    types: dict[str, EntityType]
    version_source: VersionSource | None

    def attach(self, node: Node | None) -> None: ...


class ServedNode:
    """A node, its store, its HTTP interface and its application. Started once, closed once.

    Args:
        administer: lets the node answer operators, and returns its pages.
        membership: makes the thread of membership.

    Raises:
        ConfigError: the URL of the store, a certificate or a token is invalid.
    """

    def __init__(
        self,
        bus: Application,
        settings: Settings,
        administer: Callable[[Node], NodePages],
        membership: Callable[..., Any] = ClusterThread,
    ) -> None:
        self.bus, self.settings = bus, settings
        url = settings.store.url or default_url(bus.name)
        self.store_url = mask_url(url)
        store = open_store(
            url,
            cluster=bus.name,
            timeout=settings.store.timeout,
            guard=True,
            security=settings.security,
        )
        self.node = Node(bus.name, bus.types, settings, store, membership=membership)
        pages = administer(self.node)
        self._checks = pages["readyz"]
        http = with_tokens(settings.http)
        app = create_app(pages, http, settings.node.advertise or settings.node.host)
        self.server = serve(app, http.host, http.port, tls_files(http))

    @property
    def http_url(self) -> str:
        """The URL of the node's HTTP interface."""
        http = self.settings.http
        return f"{scheme(http)}://{Address(http.host, self.server.port)}"

    async def start(
        self, on_leave: Callable[[], None], rejoins_by: Sequence[str] = (), turn: int = 1
    ) -> None:
        """Start the node, and begin to join.

        Args:
            on_leave: called when an operator asks the node to leave.
            rejoins_by: the members through which it joins again after it was downed, HOST:PORT.
            turn: how many times in a row it does so.

        Raises:
            ConfigError: a port is taken, a setting is invalid, or a stored table does not fit.
            StoreUnavailable: the store does not answer.
        """
        node = self.node
        await node.start()
        await check_layouts(node.store, self.bus.types)
        await node_registry.register(node.store, node.me.address)
        self.bus.attach(node)
        await self.server.start()
        node.phases.begin = on_leave
        # Bound to every interface, HTTP is where the node is.
        wildcard = self.settings.http.host in WILDCARDS
        host = node.me.host if wildcard else self.settings.http.host
        node.join(str(Address(host, self.server.port)), rejoins_by, turn)

    async def ready(self) -> None:
        """Wait until the node is Up and its regions are registered."""
        while not all(check.ok for check in (await self._checks()).values()):
            await asyncio.sleep(READY_POLL_S)

    async def close(self) -> None:
        """Close everything that `start` has opened, at whatever point it ended."""
        node = self.node
        if node.store_identity is not None:
            await node.subscriptions.end(CALLBACKS_S)
        self.bus.attach(None)
        await self.server.stop()
        if node.store_identity is not None:
            with contextlib.suppress(TimeoutError, ShardBusError):
                async with asyncio.timeout(REMOVE_S):
                    await node_registry.remove(node.store, [node.me.address])
            await node.close()


def leaves_within(node: Node) -> float:
    """Seconds within which a leaving node has ended, by force if necessary."""
    return node.phases.total(longest_move(node)) + AFTERWARDS_S
