"""A real node in the test's own event loop, and a client that reaches it by its port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shardbus import AsyncClient, ShardBus
from tests.ports import free_block
from tests.waiting import PATIENCE_S


def settings(**more: object) -> dict[str, object]:
    """Return the settings of a node on free ports; `more` has others, `__` for a dot."""
    port = free_block(3)
    return {
        "node.port": port,
        "node.gossip_port": port + 1,
        "http.port": port + 2,
        "store.url": "memory://",
        "cluster.gossip_interval": 0.1,
        "cluster.leader_actions_interval": 0.1,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


@asynccontextmanager
async def served(bus: ShardBus, **more: object) -> AsyncIterator[AsyncClient]:
    """Run a node of the application, and yield a client of it."""
    async with (
        bus.run(settings(**more)) as node,
        AsyncClient(
            f"tcp://{node.address}",
            cluster=bus.name,
            timeout=PATIENCE_S,
            connect_timeout=PATIENCE_S,
        ) as client,
    ):
        yield client
