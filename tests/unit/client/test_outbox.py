"""Outboxes of clients, with whole nodes in one process and in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import ConfigError, DeliveryFailed, Entity, ShardBus, handler
from shardbus.admin.pages import findings
from shardbus.admin.pages import outboxes as pages
from shardbus.admin.warning_signs import OUTBOX_STUCK_S
from shardbus.client.outbox import ClientOutbox
from shardbus.errors import Refused
from shardbus.testing import TestCluster
from shardbus.testing.bridge import Bridge, call

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


def kept_by(outbox: ClientOutbox) -> Any:
    """Return a function that delivers nothing, in the place of `_deliver`: the process dies
    before."""

    async def keep(number: int, entry: object) -> None:
        outbox._pending[number] = None

    return keep


async def test_a_test_uses_an_outbox_from_its_own_loop() -> None:
    """Else it would wait for a loop that stands still. So this comes first."""
    async with TestCluster(bus, nodes=1, seed=2) as cluster:
        assert isinstance(cluster.client().outbox("orders"), Bridge)


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

        monkeypatch.setattr(outbox, "_deliver", kept_by(outbox))
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


@pytest.mark.parametrize("seed", range(6))
async def test_an_outbox_goes_on_whose_lease_ran_out_with_steps_under_way(seed: int) -> None:
    """Its appends and trims may meet the later fence before it knows of it."""
    async with TestCluster(bus, nodes=2, seed=seed) as cluster:
        client = cluster.client()

        async def produce() -> None:
            async with client.outbox("orders") as outbox:
                for number in range(1, 101):
                    await send(outbox, client, number, number)
                    await asyncio.sleep(0.05)
            assert outbox.unconfirmed == 0

        sending = cluster.spawn(produce())
        await cluster.advance(1 + seed / 10)
        cluster.store.stop()
        await cluster.advance(6 + seed)
        cluster.store.start()
        await sending
        assert await taken_by(client) == expected(100)


async def test_poison_is_given_up_and_what_follows_goes_on() -> None:
    async with TestCluster(bus, nodes=1, seed=7) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            await outbox.send(client.ref(Taker, "e0").fail)
            await outbox.send(client.ref(Taker, "e0").take, 5)
            await cluster.advance(120)
        assert outbox.failed == {"poison": 1}
        assert await client.ref(Taker, "e0").taken() == [5]
        assert await found(cluster, "poison") == [("taker", "e0")]


async def test_an_outbox_takes_handlers_of_references_only() -> None:
    async with TestCluster(bus, nodes=1, seed=8) as cluster:
        client = cluster.client()
        async with client.outbox("orders") as outbox:
            with pytest.raises(ConfigError, match="a handler of a reference"):
                await outbox.send("take", 1)


# ---- its client ends before it


async def test_an_outbox_ends_with_its_client() -> None:
    """It renews nothing, refuses waiting messages, and the next opener need not wait for it."""
    async with TestCluster(bus, nodes=1, seed=9) as cluster:
        first = cluster.client()
        old = await first.outbox("orders").__aenter__()
        await send(old, first, 1, 4)
        outbox: ClientOutbox = old.__dict__["_target"]
        await cluster.kill(cluster.nodes[0])
        with cluster._time.entered():
            waiting = cluster._time.begin(send(outbox, first.__dict__["_target"], 5, 5))
        await cluster.advance(1)
        assert not waiting.done()
        await first.close()
        with pytest.raises(DeliveryFailed) as refused:
            await cluster._time.wait(waiting)
        assert (refused.value.reason, refused.value.definite) == ("closed", False)
        assert not outbox._tasks
        began = cluster.now
        await old.close()
        assert cluster.now - began < 1
        await cluster.add()
        await cluster.advance(10)
        second = cluster.client("second")
        async with second.outbox("orders") as new:
            await send(new, second, 6, 10)
        numbers = await taken_by(second)
        assert sorted(n for taken in numbers.values() for n in taken if n != 5) == [
            *range(1, 5),
            *range(6, 11),
        ]


# ---- operators


def asked(cluster: TestCluster, page: Any, *arguments: Any) -> Any:
    """Return the answer of a page of the first node."""
    process: Any = cluster.nodes[0]._process
    return call(cluster._time, process.loop, page, process.admin, *arguments)


async def found(cluster: TestCluster, check: str) -> list[tuple[str, str]]:
    """Return the groups and the subjects of the findings with this name."""
    groups = (await asked(cluster, findings.findings))["findings"]
    of_check = [group for group in groups if group["check"] == check]
    assert all(group["advice"] for group in of_check)
    return [(group["of"], subject) for group in of_check for subject in group["subjects"]]


async def test_the_doctor_finds_an_outbox_whose_first_message_waits() -> None:
    async with TestCluster(bus, nodes=2, seed=11) as cluster:
        client = cluster.client()
        old = await client.outbox("orders").__aenter__()
        await old.send(client.ref(Taker, "e0").fail)
        end_its_process(old)
        await cluster.advance(OUTBOX_STUCK_S - 5)
        assert await found(cluster, "outbox-stuck") == []
        await cluster.advance(10)
        assert await found(cluster, "outbox-stuck") == [("cluster", "orders")]
        await asked(cluster, pages.drop_outbox, "orders", "me")
        await cluster.advance(pages.FRESH_S + 1)
        assert await found(cluster, "outbox-stuck") == []


async def test_an_operator_sees_an_outbox_and_gives_up_what_nobody_will_deliver() -> None:
    async with TestCluster(bus, nodes=2, seed=10) as cluster:
        first, second = cluster.client(), cluster.client("second")
        assert await asked(cluster, pages.outboxes) == {"outboxes": [], "more": False, "silent": []}
        old = await first.outbox("orders").__aenter__()
        outbox: ClientOutbox = old.__dict__["_target"]
        await old.send(first.ref(Taker, "e0").fail)
        await send(old, first, 1, 6)
        await cluster.advance(5)
        end_its_process(old)
        [row] = (await asked(cluster, pages.outboxes))["outboxes"]
        assert (row["name"], row["producer"], row["open"]) == ("orders", outbox._owner, True)
        assert (row["pending"], row["type"], row["id"], row["method"]) == (7, "taker", "e0", "fail")
        assert 5 <= row["age"] < 8
        with pytest.raises(Refused, match="is open in a process"):
            await asked(cluster, pages.drop_outbox, "orders", "me")
        await cluster.advance(6)
        shown = await asked(cluster, pages.outbox, "orders", 2, 3)
        assert [(letter["number"], letter["id"]) for letter in shown["messages"]] == [
            (4, "e3"),
            (5, "e4"),
        ]
        assert shown["open"] is False
        assert 11 <= shown["age"] < 15
        dropped = await asked(cluster, pages.drop_outbox, "orders", "me", 1)
        assert dropped == {"name": "orders", "dropped": 1, "left": 6}
        letters = cluster.nodes[0]._process.node.records.letters
        assert [
            (letter.reason, letter.entity_id, letter.method, letter.sender) for letter in letters
        ] == [("dropped_by_operator", "e0", "fail", "outbox orders")]
        notes = cluster.nodes[0]._process.node.records.notes
        assert notes["$outbox", "outbox_dropped"] == 1
        async with second.outbox("orders") as new:
            await send(new, second, 7, 10)
        assert not new.failed
        assert await taken_by(second) == expected(10)
        assert (await asked(cluster, pages.outboxes))["outboxes"] == []


async def test_a_node_delivers_what_a_process_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestCluster(bus, nodes=2, seed=12) as cluster:
        client = cluster.client()
        old = await client.outbox("orders").__aenter__()
        outbox: ClientOutbox = old.__dict__["_target"]
        outbox._sender.abandon()
        monkeypatch.setattr(outbox, "_deliver", kept_by(outbox))
        await send(old, client, 1, 10)
        await old.send(client.ref(Taker, "e0").fail)
        with pytest.raises(Refused, match="open in another process"):
            await asked(cluster, pages.retry_outbox, "orders", "me")
        end_its_process(old)
        await cluster.advance(6)
        answer = await asked(cluster, pages.retry_outbox, "orders", "me")
        assert answer == {"name": "orders", "confirmed": 10, "failed": {}, "left": 1}
        assert await taken_by(client) == expected(10)
        [row] = (await asked(cluster, pages.outboxes))["outboxes"]
        assert (row["pending"], row["method"], row["open"]) == (1, "fail", False)
        process: Any = cluster.nodes[0]._process
        with monkeypatch.context() as without:
            without.setattr(process.node, "regions", {})
            with pytest.raises(Refused, match="this node has no entity type 'taker'"):
                await asked(cluster, pages.retry_outbox, "orders", "me")
        assert (await asked(cluster, pages.outbox, "orders", 9))["pending"] == 1


async def test_a_node_delivers_a_part_of_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.store.outboxes.PAGE", 2)
    monkeypatch.setattr(pages, "RETRY_PAGES", 2)
    async with TestCluster(bus, nodes=1, seed=13) as cluster:
        client = cluster.client()
        old = await client.outbox("orders").__aenter__()
        outbox: ClientOutbox = old.__dict__["_target"]
        monkeypatch.setattr(outbox, "_deliver", kept_by(outbox))
        await send(old, client, 1, 10)
        end_its_process(old)
        await cluster.advance(6)
        parts = [await asked(cluster, pages.retry_outbox, "orders", "me") for _ in range(3)]
        assert [(part["confirmed"], part["left"]) for part in parts] == [(4, 6), (4, 2), (2, 0)]
        assert await taken_by(client) == expected(10)
