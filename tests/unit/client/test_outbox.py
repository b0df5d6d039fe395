"""Outboxes of clients, with whole nodes in one process and in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import ConfigError, DeliveryFailed, Entity, ShardBus, handler
from shardbus.client.outbox import ClientOutbox
from shardbus.testing import TestCluster

bus = ShardBus("outboxes")
IDS = [f"e{n}" for n in range(5)]


@dataclass
class Taken:
    numbers: list[int] = field(default_factory=list)


@bus.entity(name="taker", shards=4)
class Taker(Entity):
    state: Taken

    @handler
    async def take(self, number: int) -> None:
        self.state.numbers.append(number)
        await self.save()

    @handler
    def fail(self) -> None:
        raise ValueError("always")

    @handler
    def taken(self) -> list[int]:
        return self.state.numbers


async def taken_by(client: Any) -> dict[str, list[int]]:
    return {entity_id: await client.ref(Taker, entity_id).taken() for entity_id in IDS}


def expected(last: int) -> dict[str, list[int]]:
    return {
        entity_id: [n for n in range(1, last + 1) if n % len(IDS) == at]
        for at, entity_id in enumerate(IDS)
    }


async def send(outbox: Any, client: Any, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await outbox.send(client.ref(Taker, IDS[number % len(IDS)]).take, number)


def end_its_process(bridge: Any) -> None:
    """Let an outbox renew, trim and deliver nothing more."""
    outbox: ClientOutbox = bridge.__dict__["_target"]
    outbox._tasks.cancel()
    outbox._sender.abandon()


async def test_what_an_outbox_takes_is_delivered_once_in_order() -> None:
    async with TestCluster(bus, nodes=2, seed=3) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            await send(outbox, client, 1, 40)
            assert outbox.unconfirmed >= 0
        assert outbox.unconfirmed == 0
        assert not outbox.failed
        assert await taken_by(client) == expected(40)


async def test_nodes_die_while_an_outbox_delivers() -> None:
    async with TestCluster(bus, nodes=3, seed=4) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            for begin in (1, 31, 61):
                await send(outbox, client, begin, begin + 29)
                await cluster.kill(cluster.nodes[0])
                await cluster.add()
        assert outbox.unconfirmed == 0
        assert await taken_by(client) == expected(90)


async def test_the_next_opener_delivers_what_a_process_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TestCluster(bus, nodes=2, seed=5) as cluster:
        first, second = cluster.client(), cluster.client("second")
        old = await first.outbox("orders").__aenter__()
        await send(old, first, 1, 10)
        outbox: ClientOutbox = old.__dict__["_target"]

        async def keep(number: int, entry: object) -> None:
            """Deliver nothing: the process dies before."""
            outbox._pending[number] = None

        monkeypatch.setattr(outbox, "_deliver", keep)
        await send(old, first, 11, 20)
        end_its_process(old)
        async with second.outbox("orders") as new:
            await send(new, second, 21, 40)
        assert new.unconfirmed == 0
        assert await taken_by(second) == expected(40)


async def test_a_former_opener_is_refused() -> None:
    async with TestCluster(bus, nodes=2, seed=6) as cluster:
        first, second = cluster.client(), cluster.client("second")
        old = await first.outbox("orders").__aenter__()
        await send(old, first, 1, 10)
        outbox: ClientOutbox = old.__dict__["_target"]
        outbox._tasks.cancel()  # it stands still, and renews nothing
        async with second.outbox("orders") as new:
            await send(new, second, 11, 20)

            async def append_late() -> None:
                """Go on as if nothing had happened."""
                outbox._tasks.spawn(outbox._append())
                await outbox.send(outbox_ref.take, 99)

            with cluster._time.entered():
                outbox_ref: Any = first.__dict__["_target"].ref(Taker, "e0")
            with pytest.raises(DeliveryFailed) as refused:
                await cluster._time.wait(cluster._time.begin(append_late()))
        assert refused.value.reason == "stale"
        assert await taken_by(second) == expected(20)


async def test_poison_is_given_up_and_what_follows_goes_on() -> None:
    async with TestCluster(bus, nodes=1, seed=7) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            await outbox.send(client.ref(Taker, "e0").fail)
            await outbox.send(client.ref(Taker, "e0").take, 5)
            await cluster.advance(120)
        assert outbox.failed == {"poison": 1}
        assert await client.ref(Taker, "e0").taken() == [5]


async def test_an_outbox_takes_handlers_of_references_only() -> None:
    async with TestCluster(bus, nodes=1, seed=8) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            with pytest.raises(ConfigError, match="a handler of a reference"):
                await outbox.send("take", 1)
