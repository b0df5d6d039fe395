"""Reminders whose handler a later release of the application has under another name."""

from __future__ import annotations

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.testing import TestCluster

old, new = ShardBus("shop"), ShardBus("shop")


@old.entity("parcel")
class Parcel(Entity):
    @handler
    async def ready(self, recipient: str | None) -> None:
        if recipient is None:
            await self.context.remind("later", handler="leave", after="1m")
        else:
            await self.context.remind("later", handler="call", after="1m", data=recipient)

    @handler
    def call(self, recipient: str) -> None: ...

    @handler
    def leave(self) -> None: ...


@new.entity("parcel", reminders=True)
class ParcelOfToday(Entity):
    @handler
    def ring(self, recipient: str) -> None: ...


@pytest.mark.parametrize("recipient", ["courier", None])
async def test_a_reminder_of_a_handler_that_is_gone_is_a_dead_letter(recipient: str | None) -> None:
    async with TestCluster(old, nodes=1) as cluster:
        await cluster.client().ref(Parcel, "5").ready(recipient)
        former = cluster.nodes[0]
        node = await cluster.add(bus=new)
        await cluster.leave(former)
        await cluster.advance(600)
        rings = node._process.node.records.letters.rings.values()
        kept = [(one.reason, one.entity_id, one.method) for ring in rings for one in ring]
        assert kept == [("failed", "5", "leave" if recipient is None else "call")]
