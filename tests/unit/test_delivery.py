"""A work queue as an entity: no answer leaves before its events are stored, and neither kills nor
moves nor a failing store lose an item, repeat a put or lease a confirmed item again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from shardbus import (
    AsyncClient,
    ConfigError,
    Entity,
    EntityFailed,
    RequestError,
    SchemaError,
    ShardBus,
    Unhandled,
    handler,
)
from shardbus.admin.queues import queue_sizes
from shardbus.config.settings import ShardingSettings
from shardbus.deliveries.work_items import QueueSizes
from shardbus.delivery import WorkQueue
from shardbus.entities.event_log import EventLogs
from shardbus.entities.gate import SuspensionGate
from shardbus.testing import EntityProbe, TestCluster
from tests.markers import long_only

bus = ShardBus("post")


@dataclass(frozen=True)
class Email:
    to: str


@bus.entity(name="emails", shards=10)
class Emails(WorkQueue[Email]):
    lease = 10.0
    attempts = 3
    limit = 100


@bus.entity(name="plain", shards=10)
class Plain(WorkQueue[Any]):
    limit = 5


@bus.entity(name="asker", shards=10)
class Asker(Entity):
    """Puts and works from inside a node."""

    @handler
    async def order(self, to: str) -> None:
        await bus.queue(Emails, "a").put(Email(to))


def journal(store: Any, entity_id: str, kind: str = "emails") -> Any:
    return store._server.data.journals[kind, entity_id]


def at(to: str) -> bytes:
    return b"\x81\xa2to" + bytes([0xA0 + len(to)]) + to.encode()


async def test_items_and_leases_outlive_the_process() -> None:
    async with EntityProbe(Emails, "a") as probe:
        assert await probe.ref.put([at("ada"), at("bob")], "p", 1) == 2
        assert await probe.ref.pull(1, 0.0, "w/1") == [(1, 1, 10.0, at("ada"))]
        await probe.crash()
        assert await probe.ref.put([at("ada"), at("bob")], "p", 1) == 2
        [again] = await probe.ref.pull(1, 0.0, "w/1", True)
        assert again[:2] == (1, 1)
        [other] = await probe.ref.pull(9, 0.0, "w/2")
        assert other[:2] == (2, 1)
        assert await probe.ref.confirm([1]) == 1
        await probe.crash()
        await probe.advance(11)
        assert [row[0] for row in await probe.ref.pull(9, 0.0, "w/3")] == [2]


async def test_requests_that_come_together_share_an_append() -> None:
    async with EntityProbe(Emails, "a") as probe:
        await probe.ref.put([at("first")])
        before = journal(probe.store, "a").op_id
        puts = [probe.ref.put([at(f"n{n}")]) for n in range(40)]
        assert [await one for one in puts] == [1] * 40
        stored = journal(probe.store, "a")
        assert stored.last == 41
        assert stored.op_id <= before + 3


async def test_a_pull_waits_and_does_not_keep_others_waiting() -> None:
    async with EntityProbe(Emails, "a") as probe:
        pull = probe.ref.pull(1, 4.0, "w/1")
        late = probe.ref.pull(1, 2.0, "w/2")
        await probe.advance(1)
        assert await probe.ref.put([at("ada")]) == 1
        assert [row[3] for row in await pull] == [at("ada")]
        assert await late == []


async def test_the_journal_keeps_one_event_behind_a_snapshot() -> None:
    settings = {"sharding.types.emails.snapshot_after": 10}
    async with EntityProbe(Emails, "a", settings=settings) as probe:
        for n in range(24):
            await probe.ref.put([at(f"n{n}")], "p", n + 1)
        stored = journal(probe.store, "a")
        assert (stored.trimmed, stored.last) == (19, 24)
        await probe.crash()
        assert len(await probe.ref.pull(50, 0.0, "w/1")) == 24


async def test_nothing_is_answered_that_the_store_does_not_have() -> None:
    async with EntityProbe(Emails, "a") as probe:
        await probe.ref.put([at("ada")], "p", 1)
        probe.store.stop()
        with pytest.raises(RequestError):
            await probe.ask("put", [at("bob")], "p", 2, timeout=30.0)
        with pytest.raises(RequestError):
            await probe.ask("pull", 1, 0.0, "w/1", timeout=30.0)
        probe.store.start()
        assert await probe.ask("put", [at("bob")], "p", 2, timeout=60.0) == 1
        rows = await probe.ask("pull", 9, 0.0, "w/1", True, timeout=60.0)
        rows += await probe.ask("pull", 9, 0.0, "w/2")
        assert sorted(row[3] for row in rows) == [at("ada"), at("bob")]


@pytest.mark.parametrize("seed", [0, 1, *long_only(*range(2, 7))])
async def test_a_store_that_fails_at_times_loses_and_doubles_nothing(seed: int) -> None:
    with EntityProbe(Emails, "a", seed=seed) as probe:
        worked: list[str] = []

        async def work() -> None:
            async for item in probe.client.queue(Emails, "a").work(most=2):
                async with item:
                    worked.append(item.value.to)

        async def scenario() -> None:
            queue = probe.client.queue(Emails, "a")
            workers = [asyncio.ensure_future(work()) for _ in range(2)]
            for n in range(30):
                probe.store.fail(0.4 if n % 5 == 1 else 0.0)
                await queue.put(Email(f"n{n}"), timeout=300.0)
            probe.store.fail(0.0)
            await settled(probe.client, 30)
            for worker in workers:
                worker.cancel()

        probe.run(scenario())
        assert set(worked) == {f"n{n}" for n in range(30)}
        assert probe.run(figures(probe.client))["confirmed"] == 30


async def figures(client: AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = await client.ref(Emails, "a").within(60.0).show()  # type: ignore[attr-defined]
    return found


async def settled(client: AsyncClient, count: int) -> None:
    """Wait until this many items are confirmed."""
    for _ in range(2000):
        with suppress(RequestError):
            if (await figures(client))["confirmed"] >= count:
                return
        await asyncio.sleep(0.5)
    raise AssertionError(await figures(client))


@pytest.mark.parametrize("seed", [0, *long_only(1, 2, 3)])
async def test_kills_and_moves_lose_no_item_and_lease_no_confirmed_one_again(seed: int) -> None:
    """Two producers and three workers; nodes are killed, join and leave."""
    with TestCluster(bus, nodes=3, seed=seed) as cluster:
        client = cluster.client()
        put: list[str] = []
        confirmed: set[str] = set()
        problems: list[str] = []

        async def produce(name: str) -> None:
            queue = client.queue(Emails, "a")
            for n in range(40):
                await queue.put(Email(f"{name}{n}"), timeout=600.0)
                put.append(f"{name}{n}")
                await asyncio.sleep(0.3)

        async def work() -> None:
            async for item in client.queue(Emails, "a").work(most=2, patience=600.0):
                if item.value.to in confirmed:
                    problems.append(f"{item.value.to} was confirmed")
                async with item:
                    await asyncio.sleep(0.2)
                confirmed.add(item.value.to)

        async def trouble() -> None:
            for turn in range(4):
                await asyncio.sleep(3)
                node = cluster.where(Emails, "a")
                if node is not None:
                    await (cluster.leave(node) if turn % 2 else cluster.kill(node))
                await cluster.add()

        async def scenario() -> None:
            work_tasks = [asyncio.ensure_future(work()) for _ in range(3)]
            tasks: list[Awaitable[None]] = [produce("x"), produce("y"), trouble()]
            await asyncio.gather(*tasks)
            await settled(client, 80)
            for task in work_tasks:
                task.cancel()

        cluster.run(scenario())
        assert len(put) == 80
        assert confirmed == set(put)
        assert problems == []
        assert cluster.run(figures(client))["confirmed"] == 80, "an item was in the queue twice"


async def test_a_queue_that_moves_answers_its_long_polls_at_once() -> None:
    with TestCluster(bus, nodes=2, seed=5) as cluster:
        client = cluster.client()

        async def scenario() -> float:
            await client.ref(Emails, "a").show()
            pull = asyncio.ensure_future(client.queue(Emails, "a").pull(wait=20.0))
            await asyncio.sleep(1)
            begun = cluster.now
            home = cluster.where(Emails, "a")
            assert home is not None
            await cluster.leave(home)
            took = cluster.now - begun
            assert await pull == []
            return took

        assert cluster.run(scenario()) < 15.0


async def test_a_queue_without_requests_leaves_memory_and_comes_back() -> None:
    settings = {"sharding.types.emails.passivate_after": 5}
    async with EntityProbe(Emails, "a", settings=settings) as probe:
        await probe.ref.put([at("ada")])
        await probe.ref.pull(1, 0.0, "w/1")
        await probe.advance(8)
        assert not probe.running
        await probe.advance(4)
        assert [row[1] for row in await probe.ref.pull(1, 0.0, "w/2")] == [2]


async def test_operators_see_items_and_end_those_that_are_set_aside() -> None:
    async with EntityProbe(Emails, "a") as probe:
        await probe.ref.put([at("ada"), at("bob"), b"\xc1", b"x" * 2000])
        for n in range(3):
            rows = await probe.ref.pull(1, 0.0, f"w/{n}")
            await probe.ref.release([rows[0][0]], f"w/{n}", "ValueError: no")
            await probe.advance(8)
        await probe.ref.pull(1, 0.0, "w/9")
        shown = await probe.ref.show()
        assert (shown["aside"], shown["leased"], shown["ready"]) == (1, 1, 2)
        values = [item["value"] for item in shown["items"]]
        assert values == [{"to": "ada"}, {"to": "bob"}, None, None]
        [aside] = (await probe.ref.show(10, "aside"))["items"]
        assert (aside["number"], aside["attempts"], aside["error"]) == (1, 3, "ValueError: no")
        assert await probe.ref.retry([1]) == 1
        assert [row[:2] for row in await probe.ref.pull(1, 0.0, "w/10")] == [(1, 1)]
        assert await probe.ref.drop([1, 2]) == 0


async def test_an_entity_puts_by_the_application_inside_its_node() -> None:
    async with EntityProbe(Asker, "x") as probe:
        await probe.ref.order("ada")
        shown = await probe.client.ref(Emails, "a").show()
        assert shown["items"][0]["value"] == {"to": "ada"}


async def test_a_message_that_no_queue_takes_is_declined() -> None:
    async with EntityProbe(Emails, "a") as probe:
        with pytest.raises(Unhandled):
            await probe.client.ask("emails", "a", {"no": "such"})
        assert await probe.ref.put([at("ada")]) == 1


async def test_values_of_another_class_are_refused_before_they_are_sent() -> None:
    async with EntityProbe(Emails, "a") as probe:
        queue = probe.client.queue(Emails, "a")
        with pytest.raises(SchemaError, match=r"an item of Emails .*: is a str"):
            await queue.put("ada")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is no class of queues"):
            probe.client.queue(Asker, "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("lease", 0.0), ("lease", "30s"), ("attempts", 0), ("limit", 2.5), ("bytes_limit", 2**40)],
)
def test_a_rule_out_of_its_range_is_refused_where_it_is_declared(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"Odd.{name} is"):
        type("Odd", (WorkQueue,), {name: value})


class Shape(msgspec.Struct, tag=True):
    sides: int


class Disc(msgspec.Struct):
    radius: float


@pytest.mark.parametrize("item", [complex, Shape | Disc, "Nowhere"])
def test_a_value_that_cannot_travel_is_refused_where_the_queue_is_declared(item: Any) -> None:
    class Odd(WorkQueue[item]):
        pass

    with pytest.raises(ConfigError, match="Odd"):
        ShardBus("odd").entity(name="odd")(Odd)


Small = Annotated[int, msgspec.Meta(le=9)]


@pytest.mark.parametrize(
    ("item", "resolved"),
    [("Email", Email), (list["Email"], list[Email]), (Small, Small), (Any, Any)],
)
def test_a_class_of_values_may_be_named_before_it_is_there(item: Any, resolved: Any) -> None:
    class Queue(WorkQueue[item]):
        pass

    class Heir(Queue):
        pass

    for kind in (Queue, Heir):
        ShardBus("early").entity(name="early")(kind)
        assert kind.__shardbus_item__ == resolved


async def no_snapshot(entity_type: str, shard: str, entity_id: str, fence: int) -> None:
    """Load nothing."""


def test_a_store_without_journals_is_refused_at_the_start() -> None:
    kind = bus.types["emails"]
    with pytest.raises(ConfigError, match="this store has no journals"):
        EventLogs(kind, ShardingSettings(), None, SuspensionGate(), no_snapshot)


async def test_one_type_has_queues_of_any_plain_value() -> None:
    with EntityProbe(Plain, "p") as probe:

        async def scenario() -> list[Any]:
            queue = probe.client.queue(Plain, "p")
            values: list[Any] = [1, "two", {"three": [3]}, None, b"\x00"]
            await queue.put_many(values)
            return [item.value for item in await queue.pull(9)]

        assert probe.run(scenario()) == [1, "two", {"three": [3]}, None, b"\x00"]


async def test_a_failure_of_the_writer_ends_the_activation_whatever_supervision_says() -> None:
    own = ShardBus("resumes")

    @own.entity(name="stubborn", supervision={Exception: "resume"})
    class Stubborn(WorkQueue[str]):
        pass

    async def fail(*events: object) -> None:
        raise RuntimeError("as by a defect of the store")

    async with EntityProbe(Stubborn, "a") as probe:
        assert await probe.ref.put([b"\xa1a"], "p", 1) == 1
        vars(probe.entity)["persist"] = fail
        with pytest.raises(EntityFailed):
            await probe.ref.put([b"\xa1b"], "p", 2)
        assert await probe.ref.put([b"\xa1c"], "p", 3) == 1
        rows = await probe.ref.pull(9, 0.0, "w/1")
        assert [row[3] for row in rows] == [b"\xa1a", b"\xa1c"], "the failed put is not there"


async def test_the_figures_of_queues_add_up_over_those_in_memory() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        client = cluster.client()
        a, b = client.ref(Emails, "a"), client.ref(Emails, "b")
        assert await a.put([at("ada"), at("bob")]) == 2
        assert await b.put([at("eve")]) == 1
        for _ in range(Emails.attempts):
            [(number, *_)] = await b.pull(1, 4.0, "w")
            await b.release([number], "w", "it is broken")
        waiting = asyncio.ensure_future(b.pull(1, 4.0, "w"))
        [process] = cluster.world.sim_nodes.values()
        await cluster.until(lambda: dict(queue_sizes(process.node))["emails"].waiting_pulls == 1)
        sizes = dict(queue_sizes(process.node))
        assert sizes == {"emails": QueueSizes(2, 3, 1, 1, 0), "plain": QueueSizes()}
        waiting.cancel()
