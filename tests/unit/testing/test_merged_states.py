"""States that instances share, on whole nodes in virtual time: saves at the same time, news, moves,
crashes, splits, an outage of the store, and functions that fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import (
    Entity,
    EntityFailed,
    ShardBus,
    ShardBusError,
    StateUnreadable,
    StopReason,
    StoreUnavailable,
    handler,
)
from shardbus.admin.pages.states import answer_stored, remove_state, set_state, state
from shardbus.data import Counter, Set
from shardbus.entities.merging import MergedStates
from shardbus.replication.versions import DataChange, DataValue
from shardbus.simulation.nodes.values import ValueDisk
from shardbus.testing import EntityProbe, TestCluster
from shardbus.testing.bridge import call

NEWS_S = 3.0
"""By then an instance that runs has the saves of the others."""


@dataclass
class Votes:
    by: dict[str, int] = field(default_factory=dict)


class Poll(Entity):
    state: Votes
    broken = False

    @staticmethod
    def merge(first: Votes, other: Votes) -> Votes:
        if Poll.broken:
            raise RuntimeError("the function is broken")
        names = first.by.keys() | other.by.keys()
        return Votes({name: max(first.by.get(name, 0), other.by.get(name, 0)) for name in names})

    @handler
    async def vote(self, name: str = "") -> int:
        name = name or f"instance-{self.context.instance}"
        self.state.by[name] = self.state.by.get(name, 0) + 1
        await self.save()
        return self.state.by[name]

    @handler
    def votes(self) -> dict[str, int]:
        return self.state.by

    @handler
    async def forget(self) -> None:
        await self.clear()


class Hits(Entity):
    state: Counter

    @handler
    async def hit(self, times: int = 1) -> int:
        self.state.add(times)
        await self.save()
        return self.state.value

    @handler
    async def hit_twice_at_once(self) -> None:
        self.state.add(1)
        first = asyncio.create_task(self.save())
        await asyncio.sleep(0)
        self.state.add(1)
        await asyncio.gather(first, self.save())

    @handler
    async def try_twice(self) -> list[Any]:
        """Save while the store is away, and again."""
        self.state.add(1)
        kept = []
        for _ in range(2):
            try:
                await self.save()
            except StoreUnavailable as error:
                kept += [error.definite, self.state.value]
        return kept

    @handler
    def total(self) -> int:
        return self.state.value


class Names(Entity):
    state: Set

    async def on_stop(self, reason: StopReason) -> None:
        self.state.add(f"stopped-{self.context.instance}")
        await self.save()

    @handler
    async def add(self, name: str) -> list[Any]:
        self.state.add(name)
        await self.save()
        return sorted(self.state.value)

    @handler
    def leave(self) -> None:
        self.context.stop()


@pytest.fixture
def bus() -> ShardBus:
    Poll.broken = False
    bus = ShardBus("market")
    for name, kind in (("poll", Poll), ("hits", Hits), ("names", Names)):
        bus.entity(name, instances=3, shards=4)(kind)
    return bus


async def test_saves_at_the_same_time_merge_and_reach_all(bus: ShardBus) -> None:
    async with TestCluster(bus, 3, seed=1) as cluster:
        client = cluster.client()
        poll, hits = client.ref(Poll, "a"), client.ref(Hits, "a")
        for _ in range(5):
            await asyncio.gather(poll.to("all").vote(), hits.to("all").hit())
        await cluster.advance(NEWS_S)
        votes = await poll.to("all").votes()
        assert len(votes) == 3
        assert all(v == {"instance-1": 5, "instance-2": 5, "instance-3": 5} for v in votes.values())
        assert set((await hits.to("all").total()).values()) == {15}
        assert cluster.store.state(Hits, "a").value == 15
        assert cluster.store.state(Poll, "a").by == {f"instance-{n}": 5 for n in (1, 2, 3)}
        assert cluster.store.saves(Hits, "a") == 15
        counts = [counts_of(cluster, n, "poll") for n in range(3)]
        assert sum(each["merged"] for each in counts) > 0
        assert sum(each["taken"] for each in counts) > 0
        assert sum(each["failed"] for each in counts) == 0


async def test_a_save_returns_with_all_that_was_saved_before(bus: ShardBus) -> None:
    async with TestCluster(bus, 3, seed=2) as cluster:
        hits = cluster.client().ref(Hits, "a")
        first = await hits.to("all").hit(0)
        assert set(first.values()) == {0}
        for n in range(1, 10):
            assert await hits.to("round-robin").hit() == n


async def test_two_saves_of_one_instance_at_once_count_once_each(bus: ShardBus) -> None:
    async with TestCluster(bus, 1, seed=3) as cluster:
        hits = cluster.client().ref(Hits, "a")
        await hits.hit_twice_at_once()
        assert await hits.total() == 2
        assert cluster.store.state(Hits, "a").value == 2


@pytest.mark.parametrize("seed", range(4))
async def test_what_was_saved_survives_kills_moves_and_splits(bus: ShardBus, seed: int) -> None:
    async with TestCluster(bus, 4, seed=seed) as cluster:
        client = cluster.client()
        ids = [f"page-{n}" for n in range(4)]
        acked, doubtful = dict.fromkeys(ids, 0), dict.fromkeys(ids, 0)

        async def hit(entity_id: str, router: str) -> None:
            try:
                await client.ref(Hits, entity_id).to(router).hit()  # type: ignore[call-overload]
                acked[entity_id] += 1
            except ShardBusError:
                doubtful[entity_id] += 1

        async def round_of_hits() -> None:
            await asyncio.gather(*(hit(one, "round-robin") for one in ids for _ in range(6)))

        await round_of_hits()
        work = asyncio.ensure_future(round_of_hits())
        await cluster.kill(cluster.nodes[seed % 4])
        await work
        await cluster.partition([cluster.nodes[0]], cluster.nodes[1:])
        await round_of_hits()
        await cluster.advance(60)
        await cluster.heal()
        work = asyncio.ensure_future(round_of_hits())
        await cluster.add()
        await work
        await cluster.advance(60)
        for entity_id in ids:
            total = cluster.store.state(Hits, entity_id).value
            assert acked[entity_id] <= total <= acked[entity_id] + doubtful[entity_id]
            assert acked[entity_id] >= 12
            shown = await client.ref(Hits, entity_id).to("all").total()
            assert {each for each in shown.values() if isinstance(each, int)} == {total}


@pytest.mark.parametrize("stored", [True, False])
async def test_an_addition_in_doubt_is_not_sent_twice(
    bus: ShardBus, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestCluster(bus, 1, seed=5) as cluster:
        hits = cluster.client().ref(Hits, "a")
        assert await hits.hit() == 1
        disk: ValueDisk = cluster.store._server.values
        write = disk.write

        def doubtful(name: str, change: DataChange) -> DataValue:
            if stored:
                write(name, change)
            monkeypatch.undo()
            raise StoreUnavailable("no answer")

        monkeypatch.setattr(disk, "write", doubtful)
        doubts = await hits.try_twice()
        assert doubts == [False, 1], "the second save has nothing to write"
        total = cluster.store.state(Hits, "a").value
        assert total == 1 + stored
        assert await hits.hit() == total + 1


async def test_an_outage_fails_the_start_and_the_save_and_loses_nothing(bus: ShardBus) -> None:
    async with TestCluster(bus, 2, seed=6) as cluster:
        poll = cluster.client().ref(Poll, "a")
        assert await poll.vote("ada") == 1
        cluster.store.stop()
        with pytest.raises(EntityFailed, match="StoreUnavailable"):
            await poll.vote("ada")
        cluster.store.start()
        assert await poll.vote("ada") == 2


async def test_a_function_that_fails_keeps_all_that_was_saved(bus: ShardBus) -> None:
    async with TestCluster(bus, 3, seed=7) as cluster:
        poll = cluster.client().ref(Poll, "a")
        await poll.to("all").votes()
        Poll.broken = True
        answers = list((await poll.to("all").vote()).values())
        failed = [each for each in answers if isinstance(each, Exception)]
        assert failed
        assert any("do not merge: RuntimeError: the function is broken" in str(e) for e in failed)
        await cluster.advance(NEWS_S)
        with pytest.raises(StateUnreadable, match=r"of poll 'a~\d': states that were saved"):
            await poll.vote()
        assert sum(counts_of(cluster, n, "poll")["failed"] for n in range(3)) > 0
        Poll.broken = False
        saved = cluster.store.state(Poll, "a").by
        assert {f"instance-{n}" for n in (1, 2, 3)} >= set(saved)
        assert len(saved) == 3, "each of the three saves is there"


@pytest.mark.parametrize(
    ("setting", "error"),
    [("sharding.types.poll.state_limit", "StateTooLarge"), ("data.value_limit", "ValueRefused")],
)
async def test_a_state_above_a_limit_is_refused_and_the_former_one_stays(
    bus: ShardBus, setting: str, error: str
) -> None:
    async with TestCluster(bus, 2, seed=11, settings={setting: 1024}) as cluster:
        poll = cluster.client().ref(Poll, "a")
        assert await poll.vote("ada") == 1
        with pytest.raises(EntityFailed, match=error):
            await poll.vote("x" * 2000)
        assert await poll.vote("ada") == 2
        assert cluster.store.state(Poll, "a").by == {"ada": 2}


async def test_a_compressed_state_is_shared_like_any_other(bus: ShardBus) -> None:
    settings = {"sharding.types.poll.state_compression": "zlib"}
    async with TestCluster(bus, 2, seed=12, settings=settings) as cluster:
        poll = cluster.client().ref(Poll, "a")
        for n in range(3):
            await poll.to("all").vote("voter" * 300 + str(n))
        await cluster.advance(NEWS_S)
        for votes in (await poll.to("all").votes()).values():
            assert len(votes) == 3
        [value] = cluster.store._server.values.rows.values()
        assert sum(len(dot.data) for dot in value.dots) < 1000
        await poll.forget()
        await cluster.advance(NEWS_S)
        assert [*(await poll.to("all").votes()).values()] == [{}, {}]


async def test_a_clear_reaches_the_other_instances(bus: ShardBus) -> None:
    async with TestCluster(bus, 3, seed=8) as cluster:
        poll = cluster.client().ref(Poll, "a")
        await poll.to("all").vote()
        await cluster.advance(NEWS_S)
        await poll.forget()
        await cluster.advance(NEWS_S)
        assert [*(await poll.to("all").votes()).values()] == [{}, {}, {}]
        assert cluster.store.state(Poll, "a") is None
        assert await poll.vote("ada") == 1


async def test_a_stop_may_save(bus: ShardBus) -> None:
    async with TestCluster(bus, 2, seed=9) as cluster:
        names = cluster.client().ref(Names, "a")
        await names.to("all").add("ada")
        await names.to("all").leave()
        await cluster.advance(NEWS_S)
        saved = cluster.store.state(Names, "a").value
        assert saved == {"ada", "stopped-1", "stopped-2"}
        assert set(await names.add("bob")) == {*saved, "bob"}


async def test_a_stored_state_is_there_before_the_start(bus: ShardBus) -> None:
    with EntityProbe(Poll, "a", state=Votes({"ada": 3})) as probe:
        assert probe.run(probe.ref.vote("ada")) == 4
        assert probe.saved.by == {"ada": 4}
    with EntityProbe(Hits, "a", state=Counter().add(5)) as probe:
        assert probe.run(probe.ref.hit()) == 6


async def test_operators_see_set_and_remove_shared_states(bus: ShardBus) -> None:
    async with TestCluster(bus, 3, seed=10) as cluster:
        client = cluster.client()
        poll, hits = client.ref(Poll, "a"), client.ref(Hits, "a")
        await asyncio.gather(poll.to("all").vote(), hits.to("all").hit())
        await client.ref(Poll, "b").vote("bob")
        await cluster.advance(NEWS_S)
        admin = process_of(cluster, 0).admin

        def here(page: Any, *arguments: Any) -> Any:
            process: Any = process_of(cluster, 0)
            return call(cluster.nodes[0]._time, process.loop, page, admin, *arguments)

        row: Any = await here(state, "poll", "a", "ops")
        assert row["state"] == {"by": {f"instance-{n}": 1 for n in (1, 2, 3)}}
        counted: Any = await here(state, "hits", "a", "ops")
        assert (counted["state"], counted["contents"]) == (3, 1)
        none: Any = await here(state, "hits", "none", "ops")
        assert (none["bytes"], none["revision"]) == (0, "none")
        assert await here(answer_stored, "poll", "", "", "", 1) == (["a"], "a")
        assert await here(answer_stored, "poll", "", "", "a", 1) == (["b"], None)
        done: Any = await here(set_state, "poll", "a", {"by": {"eve": 9}}, "ops", row["revision"])
        assert done["bytes"] > 0
        with pytest.raises(ShardBusError, match="has changed meanwhile"):
            await here(set_state, "poll", "a", {"by": {}}, "ops", row["revision"])
        with pytest.raises(ShardBusError, match="changed by its own methods"):
            await here(set_state, "hits", "a", 3, "ops")
        await cluster.advance(NEWS_S)
        assert set(map(str, (await poll.to("all").votes()).values())) == {"{'eve': 9}"}
        removed: Any = await here(remove_state, "hits", "a", "ops")
        assert removed["removed"]
        await cluster.advance(NEWS_S)
        assert set((await hits.to("all").total()).values()) == {0}


def process_of(cluster: TestCluster, index: int) -> Any:
    return cluster.nodes[index]._process


def counts_of(cluster: TestCluster, index: int, name: str) -> Any:
    saver = process_of(cluster, index).node.regions[name].host.saver
    assert isinstance(saver, MergedStates)
    return saver.counts
