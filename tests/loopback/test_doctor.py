"""The doctor looks at real nodes over HTTP: it is silent, and finds each planted fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shardbus import Entity, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.diagnosis import findings
from shardbus.admin.page_table import bound
from shardbus.admin.warning_signs import warning_signs
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.http.server import serve
from shardbus.node.node import Node
from shardbus_cli import doctor
from shardbus_cli.node_http import NodeHttp
from tests.loopback.nodes import Nodes
from tests.waiting import until

STARVED = {"late", "lagging"}
"""Findings that depend on how busy the machine is."""
WAITING = 300


@asynccontextmanager
async def http_of(node: Node) -> AsyncIterator[NodeHttp]:
    """The node's HTTP, as the command line uses it."""
    server = serve(create_app(bound(Administration(node)), HttpSettings()), "127.0.0.1", 0)
    await server.start()
    try:
        yield NodeHttp(f"http://127.0.0.1:{server.port}")
    finally:
        await server.stop()


async def found(http: NodeHttp) -> dict[str, list[tuple[str, str]]]:
    """The faults, by check: the groups and the subjects."""
    picture = await asyncio.to_thread(doctor.look, http, None)
    every = [*findings(picture), *warning_signs(picture)]
    checks = {finding.check: None for finding in every if finding.check not in STARVED}
    return {
        name: [(finding.of, finding.subject) for finding in every if finding.check == name]
        for name in checks
    }


async def test_a_healthy_cluster_is_silent_and_a_held_entity_is_named(nodes: Nodes) -> None:
    bus, gate = ShardBus("shop"), asyncio.Event()

    @bus.entity("page", shards=6, mailbox=2 * WAITING - 10)
    class Page(Entity):
        @handler
        async def put(self, wait: int) -> None:
            if wait:
                await gate.wait()

    first, second = await nodes.cluster(bus, 2)
    await asyncio.gather(*(first.ref(Page, f"page-{i}").put(0) for i in range(60)))
    async with http_of(second) as http:

        async def nothing() -> bool:
            return await found(http) == {}

        await until(nothing, "silence")
        held = [asyncio.ensure_future(first.ref(Page, "held").put(1))]
        held += [asyncio.ensure_future(first.ref(Page, "held").put(0)) for _ in range(WAITING)]

        page = ("page", "held")

        async def named() -> bool:
            return await found(http) == {"backlog": [page], "hot-entity": [page]}

        await until(named, "the backlog to be found")
        gate.set()
        await asyncio.gather(*held)

        async def forgotten() -> bool:
            return "backlog" not in await found(http)

        await until(forgotten, "an end of the backlog")
