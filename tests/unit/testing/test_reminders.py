"""Reminders of whole nodes in virtual time: set, fired once, kept over everything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from shardbus import Entity, EventSourced, Rejection, ShardBus, StopReason, event, handler
from shardbus.admin.pages import shards as shard_pages
from shardbus.errors import EntityFailed
from shardbus.ids import shard_of
from shardbus.testing import TestCluster
from shardbus.testing.virtual_time import Pending

CALLS: list[tuple[str, str, str, datetime]] = []
"""Entity, the callback, the delivery, and when."""


@dataclass
class Count:
    fired: int = 0
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rang:
    times: int


def application(shards: int = 8) -> ShardBus:
    bus = ShardBus("reminded")
    CALLS.clear()

    @bus.entity(name="timer", shards=shards)
    class Timer(Entity):
        """Without state."""

        @handler
        async def set(self, name: str, seconds: float, every: float = 0.0) -> None:
            await self.context.remind(
                name, handler="ring", after=seconds, every=every or None, data=name
            )

        @handler
        async def forget(self, name: str) -> None:
            await self.context.forget(name)

        @handler
        def names(self) -> list[str]:
            return [each.name for each in self.context.reminders()]

        @handler
        def ring(self, name: str) -> None:
            reminder = self.context.reminder
            assert reminder is not None
            now = self.context.now()
            assert now >= reminder.due
            if name == "early" and not CALLS:
                self.context.stash()
            CALLS.append((self.context.entity_id, name, reminder.delivery, now))

    @bus.entity(name="stored", shards=shards)
    class Stored(Entity):
        state: Count

        @handler
        async def set(self, seconds: float, saves: bool, fails: bool = False) -> None:
            await self.context.remind("ring", after=seconds)
            self.state.log.append("set")
            if saves:
                await self.save()
            if fails:
                raise ValueError("after it was set")

        @handler
        async def reject(self) -> None:
            await self.context.remind("ring", after=1)
            raise Rejection("no")

        @handler
        async def ring(self) -> None:
            reminder = self.context.reminder
            assert reminder is not None
            CALLS.append((self.context.entity_id, "ring", reminder.delivery, self.context.now()))
            self.state.fired += 1
            await self.save()

        @handler
        async def wipe(self) -> None:
            await self.clear()

        @handler
        def seen(self) -> tuple[int, int]:
            return self.state.fired, len(self.context.reminders())

        @handler
        def note(self) -> None:
            self.state.log.append("noted")

        async def on_stop(self, reason: StopReason) -> None:
            if "remind when it stops" in self.state.log:
                await self.context.remind("ring", after=5)

        @handler
        def leave(self) -> None:
            self.state.log.append("remind when it stops")
            self.context.passivate()

        @handler
        async def leave_later(self) -> None:
            await asyncio.sleep(1)
            self.leave()

    @bus.entity(name="sourced", shards=shards)
    class Sourced(EventSourced):
        state: Count

        @event
        def rang(self, rang: Rang) -> None:
            self.state.fired += rang.times

        @handler
        async def set(self, seconds: float, saves: bool) -> None:
            await self.context.remind("ring", after=seconds)
            if saves:
                await self.save()

        @handler
        async def note(self) -> None:
            await self.persist(Rang(1))

        @handler
        async def ring(self) -> None:
            CALLS.append((self.context.entity_id, "ring", "", self.context.now()))
            await self.persist(Rang(1))

        @handler
        async def wipe(self) -> None:
            await self.clear()

        @handler
        def seen(self) -> tuple[int, int]:
            return self.state.fired, len(self.context.reminders())

    return bus


def calls(entity_id: str) -> list[str]:
    return [name for key, name, _, _ in CALLS if key == entity_id]


async def test_a_reminder_fires_once_and_is_gone() -> None:
    async with TestCluster(application(), nodes=2, seed=1) as cluster:
        client = cluster.client()
        before = cluster.wall_clock
        await client.call("timer", "a", "set", "tea", 30)
        assert await client.call("timer", "a", "names") == ["tea"]
        await cluster.advance(29)
        assert calls("a") == []
        await cluster.advance(3)
        assert calls("a") == ["tea"]
        assert before + timedelta(seconds=30) <= CALLS[0][3] < before + timedelta(seconds=32)
        await cluster.advance(100)
        assert calls("a") == ["tea"]
        assert await client.call("timer", "a", "names") == []


async def test_a_reminder_is_not_put_aside_and_comes_again() -> None:
    """A handler returns without an effect that stays: the reminder would be over."""
    async with TestCluster(application(), nodes=1) as cluster:
        client = cluster.client()
        await client.call("timer", "a", "set", "early", 1.0)
        await cluster.advance(2)
        assert CALLS == []
        await client.call("timer", "b", "set", "other", 1.0)
        await cluster.advance(60)
        assert sorted(calls("a") + calls("b")) == ["early", "other"]


@pytest.mark.parametrize("leave", ["leave", "leave_later"])
async def test_one_that_is_set_while_the_entity_stops_is_stored(leave: str) -> None:
    async with TestCluster(application(), nodes=1) as cluster:
        await cluster.client().call("stored", "a", "note")
        await cluster.client().call("stored", "a", leave)
        await cluster.advance(20)
        assert calls("a") == ["ring"]


async def test_every_fires_at_each_moment() -> None:
    async with TestCluster(application(), nodes=1, seed=1) as cluster:
        client = cluster.client()
        await client.call("timer", "a", "set", "tick", 10, 60)
        await cluster.advance(10 + 4 * 60 + 2)
        assert calls("a") == ["tick"] * 5
        assert len({delivery for _, _, delivery, _ in CALLS}) == 5
        await client.call("timer", "a", "forget", "tick")
        await cluster.advance(600)
        assert calls("a") == ["tick"] * 5


async def test_an_entity_that_is_not_in_memory_is_woken_on_another_node() -> None:
    async with TestCluster(application(), nodes=2, seed=3) as cluster:
        client = cluster.client()
        ids = [f"e-{n}" for n in range(20)]
        for entity_id in ids:
            await client.call("timer", entity_id, "set", "due", 60)
            await client.call("stored", entity_id, "set", 60, True)
        await cluster.kill(cluster.nodes[1])
        await cluster.advance(90)
        for entity_id in ids:
            assert sorted(calls(entity_id)) == ["due", "ring"]
            assert await client.call("stored", entity_id, "seen") == [1, 0]


async def test_they_outlive_the_whole_cluster() -> None:
    async with TestCluster(application(), nodes=2, seed=4) as cluster:
        client = cluster.client()
        for n in range(10):
            await client.call("timer", f"e-{n}", "set", "due", 60)
        names = [node.name for node in cluster.nodes]
        for node in list(cluster.nodes):
            await cluster.kill(node)
        await cluster.advance(600)
        for name in names:
            await cluster.add(name)
        await cluster.advance(30)
        assert [calls(f"e-{n}") for n in range(10)] == [["due"]] * 10


async def test_it_is_stored_without_a_save_too() -> None:
    async with TestCluster(application(), nodes=1, seed=5) as cluster:
        client = cluster.client()
        await client.call("stored", "a", "set", 60, False)
        [node] = cluster.nodes
        await cluster.kill(node)
        await cluster.add(node.name)
        await cluster.advance(90)
        assert calls("a") == ["ring"]
        assert await client.call("stored", "a", "seen") == [1, 0]


@pytest.mark.parametrize("saves", [True, False])
async def test_a_handler_that_raises_has_set_only_what_it_saved(saves: bool) -> None:
    async with TestCluster(application(), nodes=1, seed=6) as cluster:
        client = cluster.client()
        with pytest.raises(EntityFailed):
            await client.call("stored", "a", "set", 60, saves, True)
        assert await client.call("stored", "a", "seen") == [0, int(saves)]
        with pytest.raises(Rejection):
            await client.call("stored", "b", "reject")
        assert await client.call("stored", "b", "seen") == [0, 0]


@pytest.mark.parametrize("kind", ["stored", "sourced"])
@pytest.mark.parametrize("delivered", [False, True])
async def test_a_cleared_entity_has_no_reminders(kind: str, delivered: bool) -> None:
    """Also where something of the entity stays: the number of an event, or of a delivery."""
    async with TestCluster(application(), nodes=1, seed=7) as cluster:
        client = cluster.client()
        if delivered:
            await client.tell(kind, "a", "note", ack=True)
        await client.call(kind, "a", "set", 60, True)
        assert (await client.call(kind, "a", "seen"))[1] == 1
        await client.call(kind, "a", "wipe")
        assert await client.call(kind, "a", "seen") == [0, 0]
        await cluster.advance(120)
        assert CALLS == []
        assert await client.call(kind, "a", "seen") == [0, 0]


async def test_a_shard_whose_node_has_left_gets_a_home_without_a_message() -> None:
    async with TestCluster(application(), nodes=2, seed=8) as cluster:
        client = cluster.client()
        for n in range(20):
            await client.call("timer", f"e-{n}", "set", "due", 60)
        await cluster.leave(cluster.nodes[1])
        await cluster.advance(90)
        assert [calls(f"e-{n}") for n in range(20)] == [["due"]] * 20


async def test_a_shard_that_an_operator_has_stopped_gets_a_home_without_a_message() -> None:
    async with TestCluster(application(), nodes=2, seed=11) as cluster:
        await cluster.client().call("timer", "a", "set", "due", 60)
        process = cluster.nodes[0]._process
        command = shard_pages.stop(process.admin, "timer", (shard_of("a", 8),))
        assert (await Pending(cluster._time, cluster._time.begin(command)))["stopped"]
        await cluster.advance(90)
        assert calls("a") == ["due"]


async def test_only_the_write_is_repeated_when_the_store_is_away() -> None:
    async with TestCluster(application(), nodes=1, seed=9) as cluster:
        client = cluster.client()
        await client.call("timer", "a", "set", "due", 30)
        await cluster.advance(29.5)
        cluster.store.stop()
        await cluster.advance(60)
        assert calls("a") == ["due"]
        cluster.store.start()
        await cluster.advance(60)
        assert calls("a") == ["due"]
        assert await client.call("timer", "a", "names") == []


async def test_many_at_one_entity_fire_one_after_the_other() -> None:
    async with TestCluster(application(), nodes=1, seed=10) as cluster:
        client = cluster.client()
        for n in range(20):
            await client.call("timer", "a", "set", f"r{n:02}", 30)
        await cluster.advance(40)
        assert sorted(calls("a")) == [f"r{n:02}" for n in range(20)]


@pytest.mark.parametrize("shards", [3, 21])
async def test_reminders_follow_a_change_of_the_number_of_shards(shards: int) -> None:
    ids = [f"e-{n}" for n in range(20)]
    async with TestCluster(application(), nodes=1, seed=3) as cluster:
        client = cluster.client()
        for entity_id in ids:
            await client.call("timer", entity_id, "set", "due", 40)
            await client.call("stored", entity_id, "set", 40, True)
        for node in list(cluster.nodes):
            await cluster.leave(node)
        former = cluster.world.store.data
        assert not any(table.homes for table in former.tables.values())
    async with TestCluster(application(shards), nodes=1, seed=4) as cluster:
        await cluster.kill(cluster.nodes[0])
        data = cluster.world.store.data
        data.tables, data.states, data.reminders = former.tables, former.states, former.reminders
        data.remembered, data.leases = former.remembered, former.leases
        await cluster.add("second")
        for index in data.reminders.values():
            assert all(row[0] == shard_of(key, shards) for key, row in index.records.items())
        await cluster.advance(50)
        for entity_id in ids:
            assert calls(entity_id) == ["due", "ring"] or calls(entity_id) == ["ring", "due"]
        for name, index in data.reminders.items():
            assert not index.records, name


async def test_a_firing_under_way_ends_though_the_index_is_read_anew() -> None:
    """As after the restart of a store. Else the entity would seem at work for ever."""
    bus = ShardBus("slow")

    @bus.entity("sleeper", shards=1)
    class Sleeper(Entity):
        state: Count

        @handler
        async def set(self) -> None:
            await self.context.remind("again", every=1, late="all")
            await self.save()

        @handler
        async def again(self) -> None:
            await asyncio.sleep(0.5)
            self.state.fired += 1
            await self.save()

    async with TestCluster(bus, nodes=1) as cluster:
        await cluster.client().ref(Sleeper, "a").set()
        await cluster.advance(1.3)  # the handler sleeps
        reminding = cluster.nodes[0]._host("sleeper").runner.reminding
        assert reminding is not None
        with cluster._time.entered():
            reminding.claim_again()
        await cluster.advance(10)
        assert cluster.store.state(Sleeper, "a").fired >= 9


async def test_a_busy_entity_does_not_use_up_the_attempts_of_a_reminder_that_fails() -> None:
    """Each new reminder of an entity woke it, and its first one was tried again at once: ten times
    within a second, and given up."""
    bus = ShardBus("busy")
    fails = [True]

    @bus.entity
    class Busy(Entity):
        state: Count

        @handler
        async def add(self, n: int) -> None:
            await self.context.remind(f"r{n}", handler="fire", after=0.1)
            await self.save()

        @handler
        async def fire(self) -> None:
            if fails:
                raise ValueError("not yet")
            self.state.fired += 1
            await self.save()

        @handler
        def fired(self) -> int:
            return self.state.fired

    async with TestCluster(bus, nodes=1) as cluster:
        busy = cluster.client().ref(Busy, "b")
        for n in range(40):
            await busy.add(n)
            await cluster.advance(0.05)
        fails.clear()
        await cluster.advance(60)
        assert await busy.fired() == 40
