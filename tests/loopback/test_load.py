"""Balance by the time of handlers, on real nodes: the measurements, and that measuring changes
nothing else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, Instances, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import shards as shard_pages
from shardbus.config.settings import LOADS
from shardbus.ids import shard_of
from shardbus.sharding.coordinator import instance_rows
from tests.loopback.nodes import Nodes, hosts
from tests.waiting import until

SHARDS = 12
MESSAGES = 400


@dataclass
class Put:
    n: int


def entity(shard: str) -> str:
    """An entity of that shard."""
    return next(i for i in map(str, range(10_000)) if shard_of(i, SHARDS) == shard)


@pytest.mark.parametrize("load", LOADS)
async def test_S3_20_sampled_messages_are_handled_once_and_in_order(
    nodes: Nodes, load: str
) -> None:
    bus = ShardBus("shop")

    bus.message(Put)

    @bus.entity("log", shards=SHARDS, allocation="least-load", load=load)
    class Log(Entity):
        def __init__(self) -> None:
            self.seen: list[int] = []

        @handler
        def add(self, n: int) -> int:
            self.seen.append(n)
            return n

        @handler
        async def wait(self, n: int) -> int:
            if n % 3 == 0:
                await asyncio.sleep(0)
            self.seen.append(n)
            return n

        @handler(thread=True)
        def block(self, n: int) -> int:
            self.seen.append(n)
            return n

        @handler
        def put(self, message: Put) -> int:
            self.seen.append(message.n)
            return message.n

        @handler
        def all(self) -> list[int]:
            return self.seen

    node = await nodes.start(bus)
    await nodes.agree(1)
    client = await nodes.client()
    for name in ("add", "wait", "block", "put"):
        ref: Any = client.ref(Log, f"{name}-1")
        numbers = range(MESSAGES if name != "block" else 20)
        for n in numbers:
            await getattr(ref, name).tell(Put(n) if name == "put" else n)
        assert await getattr(ref, name)(Put(-1) if name == "put" else -1) == -1
        assert await ref.all() == [*numbers, -1], name
    sampling = node.regions["log"].sampling
    assert sampling.timed is (load in ("time", "mailbox", "mixed"))
    assert (sampling.handled > 0) is sampling.timed


async def test_S3_20_shards_with_long_handlers_are_spread(nodes: Nodes) -> None:
    """Every shard gets the same number of messages, so the balance by messages moves none."""
    bus = ShardBus("shop")
    slow: set[str] = set()

    @bus.entity(
        "task",
        shards=SHARDS,
        allocation="least-load",
        load="time",
        rebalance_interval=0.5,
        rebalance_cool_down=0,
    )
    class Task(Entity):
        @handler
        def work(self) -> None:
            time.sleep(0.004 if self.context.shard_id in slow else 0.0)

    first, second = await nodes.cluster(bus, 2)
    client = await nodes.client()
    for shard in map(str, range(SHARDS)):
        await client.call("task", entity(shard), "work")
    slow.update(list(first.regions["task"].host.shards)[:4])

    async def busy() -> None:
        while True:
            calls = (client.call("task", entity(str(n)), "work") for n in range(SHARDS))
            await asyncio.gather(*calls)

    sending = asyncio.ensure_future(busy())

    def moved() -> int:
        return len(slow & hosts([second], "task").keys())

    await until(lambda: 0 < moved() < 4, "some of the slow shards to move")

    async def shown() -> bool:
        page: Any = await shard_pages.shards(Administration(second), "task")
        assert page["load_unit"] == "handler s/s"
        return all((row["load"] or 0) > 0 for row in page["shards"] if row["shard"] in slow)

    await until(shown, "the load of each of them")
    sending.cancel()
    await asyncio.wait([sending])


async def test_S3_49_more_instances_for_handlers_that_take_long(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_rows, "RISES_AFTER_S", 0.1)
    bus = ShardBus("market")

    @bus.entity(
        "price",
        shards=SHARDS,
        rebalance_interval=0.5,
        instances=Instances(most=2, busy_per_instance=0.005),
    )
    class Price(Entity):
        @handler
        def work(self) -> int:
            time.sleep(0.02)
            return self.context.instance

    await nodes.cluster(bus, 2)
    client = await nodes.client()
    acme = client.ref(Price, "ACME")
    assert await acme.work() == 1
    answered: set[int] = set()

    async def two() -> bool:
        answered.add(await acme.to("random").work())
        return len(answered) == 2

    await until(two, "a second instance")
