"""No request makes a page of a real node fail, whatever bytes it has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from shardbus import Entity, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.page_table import bound
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from tests.loopback.nodes import Nodes
from tests.malformed_requests import BODIES, PageRequest, answer_to, changed, pages

TOKEN = "t" * 16
BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
CHANGES = 6
"""Changed requests of each page."""
ENDS = (b"/shutdown", b"/down", b"/shutdown-region", b"/leave", b"/cordon", b"/join")
"""Pages that end the node, or keep the others from their work."""


@dataclass
class Ledger:
    total: int = 0
    note: str = ""
    rest: list[object] | None = None


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=6)
    class Counter(Entity):
        state: Ledger

        @handler
        async def add(self) -> None:
            self.state.total += 1
            await self.save()

    return bus


async def test_no_request_makes_a_page_of_a_node_fail(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)
    await node.ref("counter", "page-7").add()
    app = create_app(bound(Administration(node)), HttpSettings(write=True, token=TOKEN))
    requested = pages(b"counter", b"page-7", str(node.me.address).encode())
    requested = [page for page in requested if not page.path.endswith(ENDS)]
    random = Random(7)
    requests = [changed(page, random) for page in requested for _ in range(CHANGES)]
    requests += [PageRequest("POST", b"/v1/state/counter/page-7", b"", body) for body in BODIES]
    requests = [candidate for candidate in requests if not candidate.path.endswith(ENDS)]
    for request in [*requested, *requests]:
        answer = await asyncio.wait_for(answer_to(app, request, BEARER), 30)
        assert answer.status < 500, (request, answer)
        if answer.status >= 400:
            assert answer.error["message"], (request, answer)
    assert (await answer_to(app, requested[0])).status == 200
