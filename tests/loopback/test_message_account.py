"""Each real node accounts, in its metrics, for every message that it has accepted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, RequestError, ShardBus, handler
from shardbus.errors import Rejection
from shardbus.node.node import Node
from shardbus.shells.message_account import MessageAccount, account_of
from tests.loopback.nodes import Nodes, http
from tests.message_accounts import missing
from tests.waiting import until

IDS = [f"page-{n}" for n in range(24)]


@dataclass
class No(Rejection):
    why: str = ""


class Application:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.bus = bus = ShardBus("shop")
        app = self
        bus.message(No)

        @bus.entity("page", shards=8, mailbox=4, mailbox_patience=0.0)
        class Page(Entity):
            @handler
            def hit(self, number: int) -> int:
                return number

            @handler
            async def wait(self) -> None:
                await app.gate.wait()

            @handler
            def fail(self) -> None:
                raise ValueError

            @handler
            async def refuse(self) -> None:
                await asyncio.sleep(0)
                raise No("never")

            @handler
            def put_aside(self) -> None:
                if not app.gate.is_set():
                    self.context.stash()

            @handler
            def take_up(self) -> None:
                self.context.unstash_all()

            @handler
            def tick_soon(self) -> None:
                self.context.schedule_once(0.0, "refuse")
                self.context.schedule_once(0.0, "fail")  # ends the other timers
                self.context.schedule_once(0.0, "hit_own")

            @handler
            def hit_own(self) -> None: ...

            @handler
            def leave(self) -> None:
                self.context.passivate()

            def receive(self, message: object) -> object:
                return self.unhandled(message)


def account(node: Node) -> MessageAccount:
    return account_of(node.regions["page"])


async def misses(nodes: list[Node]) -> dict[str, dict[str, int]]:
    """The messages that the pages of the nodes lack."""
    by_type = {}
    for node in nodes:
        async with http(node) as client:
            by_type[str(node.me)] = missing((await client.get("/metrics")).text)
    return {name: lack for name, lack in by_type.items() if lack}


async def balanced(nodes: list[Node]) -> bool:
    return not await misses(nodes)


async def send_everything(sender: Any) -> list[Any]:
    """Tell and ask every handler, with values that fit and with values that do not."""
    asks = []
    for entity_id in IDS:
        await sender.cast("page", entity_id, "hit", "no number")
        for number in range(3):
            await sender.cast("page", entity_id, "hit", number)
            asks.append(asyncio.ensure_future(sender.call("page", entity_id, "hit", number)))
        for method in ("fail", "refuse", "put_aside", "tick_soon", "leave", "no_such"):
            await sender.cast("page", entity_id, method)
            asks.append(asyncio.ensure_future(sender.call("page", entity_id, method)))
        await sender.tell("page", entity_id, {"to": "receive"})
    await sender.flush()
    return asks


async def test_N3_each_accepted_message_is_delivered_forwarded_kept_or_dropped(
    nodes: Nodes,
) -> None:
    app = Application()
    first, second = pair = await nodes.cluster(app.bus, 2)
    client = await nodes.client(first, second)
    asks = await send_everything(client)
    for entity_id in IDS[:6]:
        for _ in range(7):
            await client.cast("page", entity_id, "wait")
    await client.flush()
    await until(lambda: balanced(pair), "the accounts of what waits")
    assert sum(account(node).waiting for node in pair) > 6
    assert sum(account(node).dropped for node in pair) > 0
    app.gate.set()
    for entity_id in IDS:
        await client.cast("page", entity_id, "take_up")
    outcomes = await asyncio.gather(*asks, return_exceptions=True)
    assert all(not isinstance(o, BaseException) or isinstance(o, RequestError) for o in outcomes)
    await until(lambda: all(account(node).waiting == 0 for node in pair), "the end of all work")
    await until(lambda: balanced(pair), "the accounts of all")
    reasons = set().union(*(node.regions["page"].host.counts.dropped for node in pair))
    assert reasons >= {"failed", "rejected", "unhandled", "schema", "mailbox_full"}
    assert min(account(node).delivered for node in pair) > 0


async def test_N3_the_account_is_exact_after_moves_and_after_a_kill(nodes: Nodes) -> None:
    app = Application()
    app.gate.set()
    first, second = await nodes.cluster(app.bus, 2)
    client = await nodes.client(first)
    region = first.regions["page"]

    async def load() -> None:
        number = 0
        while True:
            for entity_id in IDS:
                await client.cast("page", entity_id, "hit", number)
                region.router.tell(region.router.key("hit"), entity_id, b"\x91\x01")
            number += 1
            await asyncio.sleep(0)

    work = asyncio.ensure_future(load())
    third = await nodes.start(app.bus)
    await nodes.agree(3)
    await until(lambda: third.regions["page"].host.counts.accepted > 0, "messages at the third")
    await nodes.leave(second)
    await nodes.agree(2)
    nodes.all.remove(third)
    await third.close()  # without a hand-off, as at a kill
    await nodes.agree(1)
    await until(lambda: len(region.host.shards) == 8, "all shards at the first")
    work.cancel()
    await asyncio.wait([work])
    await client.flush()

    def at_rest() -> bool:
        here = account(first)
        return (here.buffered, here.waiting) == (0, 0)

    await until(at_rest, "the end of all work")
    await until(lambda: balanced([first]), "the account of the first")
    assert account(first).forwarded > 0


async def test_drops_of_an_entitys_own_timers_are_no_messages_that_arrived(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus)
    await node.ref("page", "page-1").tick_soon()
    counts = node.regions["page"].host.counts
    await until(lambda: counts.dropped.get("rejected"), "the timer that is refused")
    assert await misses([node]) == {}


async def test_a_message_whose_home_is_here_after_all_was_not_forwarded(nodes: Nodes) -> None:
    app = Application()
    node = await nodes.start(app.bus)
    client = await nodes.client(node)
    await client.call("page", "page-1", "hit", 1)
    region = node.regions["page"]
    region.host.set_arrivals(region.router.shard_of("page-1"), False, None)
    await client.call("page", "page-1", "hit", 2)
    assert region.relayed_messages == 1
    assert (account(node).forwarded, await misses([node])) == (0, {})


async def test_an_ask_that_is_given_up_before_it_has_a_home_is_counted(nodes: Nodes) -> None:
    app = Application()
    nodes.node_settings["join"] = "manual"
    first = await nodes.start(app.bus, up=False)
    region = first.regions["page"]
    ask = first.ref("page", "page-1").hit(1)
    task = asyncio.ensure_future(ask)
    await until(lambda: account(first).buffered == 1, "the ask that waits")
    task.cancel()
    await asyncio.wait([task])
    assert await misses([first]) == {}
    first.membership.joins.by(())
    await until(lambda: account(first).buffered == 0, "a home")
    assert region.host.counts.dropped == {"abandoned": 1}
    assert await misses([first]) == {}


@pytest.mark.parametrize("lost", ["delivered", "forwarded", "buffered", "waiting", "dropped"])
def test_a_message_of_which_nothing_is_known_is_missing(lost: str) -> None:
    figures = {"delivered": 5, "forwarded": 4, "buffered": 3, "waiting": 2, "dropped": 1}
    assert MessageAccount(accepted=15, **figures).missing == 0
    assert MessageAccount(accepted=15, **{**figures, lost: figures[lost] - 1}).missing == 1
