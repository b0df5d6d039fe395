"""Many reminders that are due at the same moment, as at midnight."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities import reminding
from shardbus.testing import TestCluster

bus = ShardBus("shop")
AT_ONCE, REMINDERS = 3, 40
SENT = Counter[str]()


@bus.entity("invoice", shards=20)
class Invoice(Entity):
    @handler
    async def write(self) -> None:
        await self.context.remind("send", after="1h")

    @handler
    def send(self) -> None:
        SENT[self.context.entity_id] += 1


async def test_the_entities_of_all_shards_are_woken_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = list[int]()
    wake = reminding.Reminding._wake_each

    def noted(self: Any, wakes: list[Any]) -> None:
        steps.append(len(wakes))
        self._host.loop.call_soon(steps.append, 0)
        wake(self, wakes)

    monkeypatch.setattr(reminding.Reminding, "_wake_each", noted)
    monkeypatch.setattr(reminding, "WAKES_AT_ONCE", AT_ONCE)
    async with TestCluster(bus, nodes=1) as cluster:
        client = cluster.client()
        for number in range(REMINDERS):
            await client.ref(Invoice, str(number)).write()
        await cluster.advance(3590)
        steps.clear()
        await cluster.advance(20)
    assert Counter({str(number): 1 for number in range(REMINDERS)}) == SENT
    assert sum(steps) >= REMINDERS
    woken = ",".join(map(str, steps)).split("0")
    assert all(len(turn.strip(",").split(",")) == 1 for turn in woken), "another turn in between"
    assert max(steps) <= AT_ONCE
