"""Unhandled messages when their shard moves: the next home handles them, before all later
messages."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.errors import EntityFailed, Unhandled
from shardbus.node import shutdown
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes, hosts
from tests.waiting import until


class Door(Entity):
    """Keeps everything aside until it is opened."""

    log: ClassVar[list[tuple[str, str, int]]]
    fails: ClassVar[list[str]]
    """Nodes on which it cannot start."""

    def __init__(self) -> None:
        if self.context.node in self.fails:
            raise ValueError("not here")
        self.open = False

    async def on_stop(self, reason: StopReason) -> None:
        self.log.append((self.context.node, reason.value, 0))

    @handler
    def unlock(self) -> str:
        self.open = True
        self.context.unstash_all()
        return self.context.node

    @handler
    def bye(self) -> None:
        self.context.stop()

    @handler
    async def stuck(self) -> None:
        await asyncio.Event().wait()

    @handler
    def enter(self, n: int) -> str:
        if not self.open:
            self.context.stash()
        else:
            self.log.append((self.context.node, "enter", n))
        return self.context.node

    @handler
    def at_once(self, n: int) -> str:
        self.log.append((self.context.node, "at once", n))
        return self.context.node


def application(**declared: Any) -> ShardBus:
    bus = ShardBus("shop")
    bus.entity("door", shards=1, **declared)(Door)
    Door.log, Door.fails = [], []
    return bus


async def two(nodes: Nodes, **declared: Any) -> tuple[Node, Node]:
    """The shard is at the first."""
    bus = application(**declared)
    first = await nodes.start(bus)
    await first.ref("door", "other").at_once(0)
    second = await nodes.start(bus)
    await nodes.agree(2)
    assert hosts(nodes.all, "door") == {"0": [first]}
    Door.log.clear()
    return first, second


def entered(node: Node) -> list[int]:
    return [n for where, what, n in Door.log if (where, what) == (str(node.me), "enter")]


async def test_S4_17_what_was_put_aside_travels_in_order_before_what_comes_later(
    nodes: Nodes,
) -> None:
    first, second = await two(nodes)
    client = await nodes.client(second)
    early = [asyncio.ensure_future(client.ask("door", "a", "enter", n)) for n in range(3)]
    asks = [asyncio.ensure_future(second.ref("door", "a").enter(n)) for n in range(10, 13)]
    activation = first.regions["door"].host.find
    await until(
        lambda: (c := activation("a", "0")) and c.extras and len(c.extras.stash) == 6, "stashes"
    )
    leaving = asyncio.ensure_future(shutdown.leave(first, lambda text: None))
    await until(lambda: hosts(nodes.all, "door").get("0") == [second], "the move")
    late = [asyncio.ensure_future(client.ask("door", "a", "enter", n)) for n in range(3, 5)]
    assert await second.ref("door", "a").unlock() == str(second.me)
    assert set(await asyncio.gather(*early, *asks, *late)) == {str(second.me)}
    for sender in ([0, 1, 2, 3, 4], [10, 11, 12]):
        assert [n for n in entered(second) if n in sender] == sender
    assert await leaving
    assert first.regions["door"].host.counts.dropped == {}


async def test_C18_what_waits_for_one_that_is_cut_off_is_handled_at_the_next_home(
    nodes: Nodes,
) -> None:
    first, second = await two(nodes, handoff_timeout=1.0)
    stuck = asyncio.ensure_future(second.ref("door", "b").stuck())
    busy = first.regions["door"].host.find
    await until(lambda: (c := busy("b", "0")) and c.busy, "the handler that does not end")
    early = [asyncio.ensure_future(second.ref("door", "b").at_once(n)) for n in range(1, 5)]
    await until(lambda: (c := busy("b", "0")) and len(c.mailbox or ()) == 4, "the mailbox")
    leaving = asyncio.ensure_future(shutdown.leave(first, lambda text: None))
    assert await asyncio.gather(*early) == [str(second.me)] * 4
    assert Door.log[-4:] == [(str(second.me), "at once", n) for n in range(1, 5)]
    with pytest.raises(EntityFailed):
        await stuck
    assert await leaving
    assert first.regions["door"].host.counts.cut_off == 1


@pytest.mark.parametrize("by_tell", [False, True])
async def test_what_waits_for_one_that_cannot_start_here_is_handled_at_the_next_home(
    nodes: Nodes, by_tell: bool
) -> None:
    first, second = await two(nodes, **({"stop_message": "bye"} if by_tell else {}))
    Door.fails.append(str(first.me))
    early = [asyncio.ensure_future(second.ref("door", "c").at_once(n)) for n in range(1, 4)]
    await until(lambda: first.regions["door"].host.counts.failures > 1, "attempts")
    leaving = asyncio.ensure_future(shutdown.leave(first, lambda text: None))
    assert await asyncio.gather(*early) == [str(second.me)] * 3
    assert await leaving


async def test_when_the_whole_cluster_stops_it_is_refused(nodes: Nodes) -> None:
    bus = application()
    node = await nodes.start(bus)
    client = await nodes.client(node)
    waiting = asyncio.ensure_future(client.ask("door", "a", "enter", 1))
    find = node.regions["door"].host.find
    await until(lambda: (c := find("a", "0")) and c.extras and c.extras.stash, "the stash")
    await node.regions["door"].stop_here()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    assert node.regions["door"].host.counts.dropped == {"stopped": 1}
