"""Calls between entities that leave a node together: they are answered, in every mode of a move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, cast

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.entities.draining import CALLS_S, TELLS_S, Drain
from shardbus.ids import NodeId
from shardbus.sharding.handoff_modes import MODES
from shardbus.sharding.messages import Home
from shardbus.testing import TestCluster

IDS = [str(n) for n in range(40)]
WAIT_S = 0.3


@dataclass
class Sum:
    value: int = 0


class Account(Entity):
    """Asks the accounts after it, so that no calls form a circle."""

    seen: ClassVar[dict[str, list[int]]] = {}
    gate: ClassVar[asyncio.Event | None] = None

    @handler
    async def total(self, depth: int) -> int:
        await asyncio.sleep(WAIT_S)
        at = int(self.context.entity_id)
        if not depth or at % 4 == 3:
            return 1
        after = self.context.ref(type(self), IDS[at + 1]).within(20)
        return 1 + await after.total(depth - 1)

    @handler
    def note(self, number: int) -> None:
        self.seen.setdefault(self.context.entity_id, []).append(number)

    @handler
    async def send(self, to: str, numbers: list[int], ask_at: int) -> None:
        """Send numbers to another account, one of them by an ask."""
        for number in numbers:
            note = self.context.ref(type(self), to).note
            await (note.ask(number) if number == ask_at else note.tell(number))
            await asyncio.sleep(WAIT_S)


class Saved(Account):
    state: Sum

    @handler
    async def note(self, number: int) -> None:
        self.state.value += number
        await self.save()
        super().note(number)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    Account.seen.clear()


def application(kind: type, **options: Any) -> ShardBus:
    bus = ShardBus("bank")
    bus.entity(name="account", **{"shards": 16, **options})(kind)
    return bus


def totals(
    cluster: TestCluster, kind: type, depth: int, ids: list[str] = IDS
) -> list[asyncio.Future[int]]:
    client = cluster.client()
    return [asyncio.ensure_future(client.ref(kind, id_).within(25).total(depth)) for id_ in ids]


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("end", ["leave", "join"])
async def test_no_call_between_entities_waits_for_a_move_that_waits_for_it(
    mode: str, end: str
) -> None:
    bus = application(Account, handoff=mode, shards=4)
    async with TestCluster(bus, nodes=2) as cluster:
        await asyncio.gather(*totals(cluster, Account, 0))
        ids = cluster.nodes[0].entities("account")
        calls = totals(cluster, Account, 1, ids)  # some of them within one shard
        await cluster.advance(WAIT_S / 2)
        before = cluster.now
        await (cluster.leave(cluster.nodes[0]) if end == "leave" else cluster.add())
        await cluster.settle()
        took = cluster.now - before
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert not [one for one in outcomes if "AskTimeout" in repr(one)]
        if mode == "buffer":
            assert outcomes == [1 + (int(id_) % 4 < 3) for id_ in ids]
        assert took < 20 * WAIT_S, "virtual seconds"


async def test_chains_of_calls_within_one_node_are_answered() -> None:
    bus = application(Account)
    async with TestCluster(bus, nodes=1) as cluster:
        await asyncio.gather(*totals(cluster, Account, 0))
        calls = totals(cluster, Account, 3)
        await cluster.advance(WAIT_S * 1.5)
        await cluster.add()
        await cluster.leave(cluster.nodes[0])
        assert await asyncio.gather(*calls) == [4 - number % 4 for number in range(len(IDS))]


@pytest.mark.parametrize("ask_at", [0, 2, 9, -1])
@pytest.mark.parametrize("kind", [Account, Saved])
async def test_messages_of_one_sender_stay_in_order(kind: type[Account], ask_at: int) -> None:
    """Tells stay for a second; the first that waits for the next home takes all later ones with
    it, asks too, which the hand-off then waits for."""
    bus = application(kind)
    numbers = list(range(10))
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        await asyncio.gather(*totals(cluster, kind, 0))
        pairs = list(zip(IDS[:20], IDS[20:], strict=True))
        for sender, receiver in pairs:
            await client.ref(kind, sender).send.tell(receiver, numbers, ask_at)
        await cluster.advance(WAIT_S * 1.5)
        await cluster.leave(cluster.nodes[0])
        await cluster.settle()
        await cluster.advance(WAIT_S * len(numbers) + 10)
        for _, receiver in pairs:
            assert Account.seen[receiver] == sorted(set(Account.seen[receiver]))
            assert ask_at == 9 or Account.seen[receiver] == numbers


@pytest.mark.parametrize(
    ("asks", "until_end", "waits", "after"),
    list(product([False, True], [False, True], [False, True], [0.0, TELLS_S, CALLS_S])),
)
def test_a_message_stays_by_the_rules(
    asks: bool, until_end: bool, waits: bool, after: float
) -> None:
    home = Home("1", NodeId("10.0.0.1", 7355, 1), 7)
    drain, sender, other = Drain(home, 100.0), cast("Any", object()), cast("Any", object())
    if waits:
        assert not drain.takes(sender, 100.0, asks=False, until_end=False)
    now = 100.0 + after
    in_time = after < CALLS_S if asks else after < TELLS_S
    stays = not waits and ((asks and until_end) or ((asks or until_end) and in_time))
    assert drain.takes(sender, now, asks=asks, until_end=until_end) == stays
    assert drain.takes(sender, now, asks=True, until_end=True) == stays, "in order"
    assert drain.takes(other, now, asks=True, until_end=True), "each sender alone"


class Step(Entity):
    """Calls back, by another entity, into the shard that awaits it."""

    @handler
    async def begin(self, via: str, back: str, seconds: float) -> int:
        return 1 + await self.context.ref(Step, via).within(60).work(back, seconds)

    @handler
    async def work(self, back: str, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 1 + await self.context.ref(Step, back).within(60).count()

    @handler
    def count(self) -> int:
        return 1


@pytest.mark.parametrize("end", ["leave", "join"])
async def test_a_call_back_into_a_leaving_shard_that_awaits_it_stays_however_late(end: str) -> None:
    bus = application(Step, shards=6)
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        await asyncio.gather(*[client.ref(Step, id_).count() for id_ in IDS])
        first, second = (node.entities("account") for node in cluster.nodes)
        triples = list(zip(first[:8], second, first[::-1], strict=False))
        early, late = WAIT_S, CALLS_S + 3 * WAIT_S  # the early ones begin the 5 s
        work = [
            asyncio.ensure_future(client.ref(Step, a).within(60).begin(via, back, seconds))
            for seconds in (early, late)
            for a, via, back in triples
        ]
        await cluster.advance(WAIT_S)
        before = cluster.now
        await (cluster.leave(cluster.nodes[0]) if end == "leave" else cluster.add())
        await cluster.settle()
        assert await asyncio.gather(*work) == [3] * 2 * len(triples)
        assert cluster.now - before < 3 * CALLS_S, "virtual seconds"


class Order(Entity):
    """Asks its items when it stops, and while it works."""

    stopped: ClassVar[list[str]] = []

    @handler
    async def price(self) -> int:
        await asyncio.sleep(WAIT_S)
        return await self._items()

    async def on_stop(self, reason: StopReason) -> None:
        self.stopped.append(f"{self.context.entity_id} {await self._items()}")

    async def _items(self) -> int:
        entity_id = self.context.entity_id
        items = [self.context.ref(Item, f"{entity_id}/{n}") for n in range(3)]
        return sum(await asyncio.gather(*[item.price() for item in items]))


class Item(Entity):
    @handler
    async def price(self) -> int:
        await asyncio.sleep(WAIT_S / 3)
        return 5


@pytest.mark.parametrize("end", ["leave", "add", "stop"])
async def test_an_entity_calls_those_within_it_until_it_has_stopped(end: str) -> None:
    Order.stopped.clear()
    bus = ShardBus("shop")
    bus.entity(name="order", shards=4)(Order)
    bus.entity(name="item", within=Order)(Item)
    async with TestCluster(bus, nodes=2) as cluster:
        client, ids = cluster.client(), IDS[:12]
        orders = [client.ref(Order, id_).within(25) for id_ in ids]
        await asyncio.gather(*[order.price() for order in orders])
        calls = [asyncio.ensure_future(order.price()) for order in orders]
        await cluster.advance(WAIT_S / 2)
        leaving = [id_ for id_ in ids if cluster.nodes[0].hosts(Order, id_)]
        before = cluster.now
        for node in cluster.nodes[: {"leave": 1, "add": 0, "stop": 2}[end]]:
            await cluster.leave(node)
        if end == "add":
            await cluster.add()
        if end != "stop":
            await cluster.settle()
        assert await asyncio.gather(*calls) == [15] * len(ids)
        assert cluster.now - before < 20 * WAIT_S, "virtual seconds"
        stopped = {"leave": leaving, "add": [], "stop": ids}[end]
        assert {f"{id_} 15" for id_ in stopped} <= set(Order.stopped)
