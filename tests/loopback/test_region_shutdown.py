"""One type's region shuts down, and its node stays a member."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import members as member_pages
from shardbus.errors import ConfigError, UnknownEntityType
from tests.loopback.nodes import Nodes
from tests.waiting import until

IDS = [f"page-{i}" for i in range(80)]
FEW = IDS[:6]
"""They leave most shards without a home."""
NODES, SHARDS = 2, 60


def application() -> tuple[ShardBus, type[Entity]]:
    bus = ShardBus("shop")

    @bus.entity("page", shards=SHARDS)
    class Page(Entity):
        """Writes down why it stops."""

        stops: ClassVar[list[StopReason]] = []

        async def on_stop(self, reason: StopReason) -> None:
            self.stops.append(reason)

        @handler
        def where(self) -> str:
            return self.context.node

    @bus.entity("other", shards=SHARDS)
    class Other(Page):
        pass

    return bus, Page


async def test_S2_50_a_region_hands_off_its_shards_and_stays_a_proxy(nodes: Nodes) -> None:
    bus, page = application()
    first, second = await nodes.cluster(bus, NODES)
    for kind in ("page", "other"):
        await asyncio.gather(*(first.ref(kind, i).where() for i in FEW))
    assert second.regions["page"].host.shards
    others = set(second.regions["other"].host.shards)
    bus.attach(second)

    await bus.shutdown_region(page)

    assert bus.region_state("page") == {}
    assert set(second.regions["other"].host.shards) == others
    assert StopReason.SHUTDOWN in page.stops
    # The shut region still sends, and gets no shard, whichever node coordinates.
    homes = await asyncio.gather(*(second.ref("page", i).where() for i in FEW))
    assert set(homes) == {str(first.me)}
    third = await nodes.start(bus)
    await nodes.agree(NODES + 1)
    await nodes.leave(first)
    homes = await asyncio.gather(*(second.ref("page", i).where() for i in IDS))
    assert set(homes) == {str(third.me)}
    await bus.shutdown_region(page)  # a second call finds nothing left to do


async def test_S2_50_an_operator_shuts_a_region_of_another_node(nodes: Nodes) -> None:
    bus, _ = application()
    first, second = await nodes.cluster(bus, NODES)
    await asyncio.gather(*(first.ref("page", i).where() for i in IDS))
    pages = Administration(first)
    answer = await member_pages.shutdown_region(pages, str(second.me.address), "page")
    assert answer["node"] == str(second.me)
    assert answer["shards"] > 0
    await until(lambda: not second.regions["page"].host.shards, "an empty region")
    with pytest.raises(UnknownEntityType):
        await member_pages.shutdown_region(pages, "self", "nothing")
    with pytest.raises(ConfigError):
        await member_pages.shutdown_region(pages, "10.0.0.1:1", "page")


async def test_S2_82_a_regions_state_names_its_shards_and_their_entities(nodes: Nodes) -> None:
    bus, page = application()
    first, second = await nodes.cluster(bus, NODES)
    await asyncio.gather(*(first.ref("page", i).where() for i in IDS))
    states = []
    for node in (first, second):
        bus.attach(node)
        states.append(bus.region_state(page))
    merged = {shard: ids for state in states for shard, ids in state.items()}
    assert len(merged) == sum(map(len, states))
    assert sorted(i for ids in merged.values() for i in ids) == sorted(IDS)
    assert all(ids == sorted(ids) for ids in merged.values())
    with pytest.raises(UnknownEntityType):
        bus.region_state("nothing")
