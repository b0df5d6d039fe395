"""Slow handlers of a real node are in its log and in its metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from tests.loopback.nodes import QUICK, Nodes, http
from tests.records import replace
from tests.waiting import until


async def test_a_handler_that_blocks_and_one_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    def told(what: str) -> Any:
        return next((r.getMessage() for r in caplog.records if what in r.getMessage()), None)

    bus = ShardBus("shop")

    @bus.entity("page", shards=4, slow_handler_after=0.1)
    class Page(Entity):
        gate: asyncio.Event

        @handler
        def block(self) -> None:
            deadline = time.monotonic() + 20
            while not told("blocks the loop") and time.monotonic() < deadline:
                time.sleep(0.01)

        @handler
        async def wait(self) -> None:
            await self.gate.wait()

        @handler
        async def reach(self, other: str) -> None:
            await self.context.ref("page", other).wait()

    Page.gate = asyncio.Event()
    async with Nodes(replace(QUICK, app_block_warning=0.3)) as nodes:
        node = await nodes.start(bus)
        await node.ref(Page, "a").block()
        assert told("blocks the loop").startswith("block of page 'a' blocks the loop since")
        ask = node.ref(Page, "b").reach("c")
        first = await until(lambda: told("has waited"), "the warning")
        assert first.startswith("reach of page 'b' has waited")
        assert first.endswith("; no answer yet from page 'c'")
        counted = 'shardbus_slow_handlers_total{entity_type="page",how="%s"} %d.0'
        async with http(node) as client:

            async def both() -> bool:
                return counted % ("waited", 2) in (await client.get("/metrics")).text

            await until(both, "the count of both that wait")
            assert counted % ("blocked", 1) in (await client.get("/metrics")).text
        Page.gate.set()
        await ask
