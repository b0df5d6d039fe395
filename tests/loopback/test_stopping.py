"""Stop messages where nodes are real: shards that move, and nodes that leave."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.membership import events
from shardbus.membership.member import Service
from shardbus.node import shutdown
from tests.loopback.nodes import Nodes
from tests.waiting import until

IDS = [f"page-{i}" for i in range(30)]


def application() -> tuple[ShardBus, Any]:
    bus = ShardBus("shop")

    @bus.entity("page", shards=6, stop_message="stop")
    class Page(Entity):
        """Stops one message after the request."""

        messages: ClassVar[dict[str, list[Any]]] = {}

        def __init__(self) -> None:
            self.mine = self.messages.setdefault(self.context.entity_id, [])

        async def on_stop(self, reason: StopReason) -> None:
            self.mine.append(reason)

        @handler
        def add(self, amount: int) -> int:
            return amount

        def receive(self, message: str) -> None:
            self.mine.append(message)
            if message == "stop":
                self.context.schedule_once(0.0, "last")
            elif message == "last":
                self.context.stop()

    return bus, Page


async def test_T_SU21_whoever_moves_is_told_and_has_the_time_it_needs(nodes: Nodes) -> None:
    bus, page = application()
    pair = await nodes.cluster(bus, 2)
    for i in IDS:
        await pair[0].ref("page", i).add(1)
    host = pair[1].regions["page"].host
    moving = [i for shard in host.shards for i in host.ids(shard)]
    assert moving
    pair[0].cluster.post(events.SetService(pair[1].me, Service.DRAINING))
    await until(lambda: not host.shards, "an empty node")
    assert {i: messages for i, messages in page.messages.items() if messages} == {
        i: ["stop", "last", StopReason.HANDOFF] for i in moving
    }
    assert [await pair[0].ref("page", i).add(n) for n, i in enumerate(IDS)] == list(range(len(IDS)))


async def test_T_SU21_whoever_leaves_with_its_node_is_told_too(nodes: Nodes) -> None:
    bus, page = application()
    pair = await nodes.cluster(bus, 2)
    for i in IDS:
        await pair[0].ref("page", i).add(1)
    host = pair[1].regions["page"].host
    moving = {i for shard in host.shards for i in host.ids(shard)}
    assert moving
    await nodes.leave(pair[1])
    assert {i: messages for i, messages in page.messages.items() if messages} == {
        i: ["stop", "last", StopReason.SHUTDOWN] for i in moving
    }
    assert host.counts.cut_off == 0
    assert await pair[0].ref("page", IDS[0]).add(7) == 7


@pytest.mark.parametrize("place", [0, 1])
async def test_clients_of_a_shard_that_was_stopped_part_from_a_node_that_leaves(
    nodes: Nodes, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They send there yet, and the node does not know where the shard will be: it has to ask while
    it is a member, be it the coordinator's node or another."""
    bus, page = application()
    pair = await nodes.cluster(bus, 2)
    client, leaving = await nodes.client(*pair), pair[place]
    for i in IDS:
        await client.ref(page, i).add(1)
    shards = list(leaving.regions["page"].host.shards)
    assert shards
    assert not await pair[0].singletons["page"].coordinator.stop_shards(shards, 10)
    monkeypatch.setattr(shutdown, "PART_FIRST_S", 9.0)
    nodes.all.remove(leaving)
    await shutdown.leave(leaving, lambda text: None)
    left = leaving.endpoint.clients, leaving.regions["page"].router.region.buffered[0]
    await leaving.close()
    assert left == (0, 0)
    assert [await client.ref(page, i).add(n) for n, i in enumerate(IDS)] == list(range(len(IDS)))
    assert client.lost_messages == 0


@pytest.mark.long
async def test_a_flush_that_finds_no_home_is_no_message_that_is_lost(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard was stopped on a node that leaves, and nobody can take it."""
    monkeypatch.setattr(shutdown, "PART_S", 0.4)
    bus, page = application()
    pair = await nodes.cluster(bus, 2)
    client, last = await nodes.client(*pair), pair[0]
    await nodes.leave(pair[1])
    for i in IDS:
        await client.ref(page, i).add(1)
    assert not await last.singletons["page"].coordinator.stop_shards(
        list(last.regions["page"].host.shards), 10
    )
    await nodes.leave(last)
    assert "undelivered" not in last.regions["page"].host.counts.dropped
