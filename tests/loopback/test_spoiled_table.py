"""A stored table with rows that cannot be true: the coordinator takes the sound rows, reports the
others, and gives those shards homes anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from tests.loopback.nodes import Nodes, http, ready
from tests.waiting import until


def application() -> tuple[ShardBus, Any]:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=8)
    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        @handler
        def add(self) -> int:
            self.value += 1
            return self.value

    return bus, Counter


async def test_the_next_coordinator_rules_over_what_is_sound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, counter = application()
    ids = [f"e{i}" for i in range(40)]
    async with Nodes() as nodes:
        first, second = await nodes.cluster(bus, 2)
        await asyncio.gather(*(first.ref(counter, i).add() for i in ids))
        homes: Any = nodes.data.tables["counter"].homes
        before = dict(homes)
        for number, shard in enumerate(sorted(homes)[:4]):
            node, fence = homes[shard]
            homes[shard] = [("rubbish", fence), (node, -1), (node, "soon"), (None, None)][number]
        homes["bad\n"] = homes["0"]
        nodes.all.remove(first)
        await first.close()  # as a crash: nothing is handed off, so nothing is written before
        await until(lambda: second.coordinator_of("counter") == second.me, "the next coordinator")
        assert await asyncio.gather(*(second.ref(counter, i).add() for i in ids))
        messages = [r.getMessage() for r in caplog.records if "rows dropped 5: " in r.getMessage()]
        assert len(messages) == 1
        async with http(second) as client:
            text = (await client.get("/metrics")).text
        line = 'shardbus_sharding_notes_total{entity_type="counter",kind="rows_dropped"} 5.0'
        assert line in text
        stored: Any = nodes.data.tables["counter"].homes
        now = {shard: home[0] for shard, home in stored.items() if shard in before}
        assert now == dict.fromkeys(before, second.me)


async def test_a_table_that_cannot_be_read_is_asked_for_again() -> None:
    bus, counter = application()
    async with Nodes() as nodes:
        first, second = await nodes.cluster(bus, 2, coordinator_failure_backoff=0.1)
        assert await first.ref(counter, "x").add() == 1
        table: Any = nodes.data.tables["counter"]
        epoch, table.epoch = table.epoch, "rubbish"
        nodes.all.remove(first)
        await first.close()
        failed = ("counter", "store_failed")
        await until(lambda: second.records.notes.get(failed, 0) >= 2, "attempts to load it")
        assert not ready(second)
        table.epoch = epoch
        await until(lambda: ready(second), "a coordinator")
        assert await second.ref(counter, "x").add()
