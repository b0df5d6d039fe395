"""A store that lost fences and lists gets them again from the nodes, and refuses former owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities import reassertion
from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.memory import MemoryData
from tests.unit.entities.entity_kit import Bench, ListStore
from tests.waiting import until

FORMER, OURS, LATER = 6, 7, 8
"""Fences; a `Bench` hosts its shard under 7."""


@dataclass
class Balance:
    total: int = 0


@pytest.fixture
async def bench() -> Bench:
    bus = ShardBus("test")

    @bus.entity("account")
    class Account(Entity):
        state: Balance

        @handler
        async def add(self, amount: int) -> int:
            self.state.total += amount
            await self.save()
            return self.state.total

    return Bench(bus)


async def test_a_former_owner_is_refused_again(bench: Bench) -> None:
    assert await bench.ask("a", "add", 5) == 5
    data = bench.keeper.states["a"][1]
    bench.keeper.states = {"a": (FORMER, data)}
    await bench.host.reassert()
    assert bench.keeper.states == {"a": (OURS, data)}
    with pytest.raises(StaleFence):
        await bench.keeper.save("account", "7", "a", FORMER, b"late")
    assert await bench.ask("a", "add", 1) == 6


async def test_entities_of_a_closed_shard_are_raised_too(bench: Bench) -> None:
    await bench.ask("a", "add", 5)
    bench.host.set_arrivals(Bench.SHARD, False, None)
    bench.keeper.states.clear()
    await bench.host.reassert()
    assert bench.keeper.states == {"a": (OURS, None)}


async def test_a_store_that_does_not_answer_is_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassertion, "PAUSE_MIN_S", 0.001)
    for name in ("a", "b", "c"):
        await bench.ask(name, "add", 1)
    bench.keeper.states.clear()
    bench.keeper.fail_loads = [StoreUnavailable("away")] * 5
    await bench.host.reassert()
    assert {name: fence for name, (fence, _) in bench.keeper.states.items()} == dict.fromkeys(
        "abc", OURS
    )


async def test_an_entity_with_a_later_home_is_counted_and_left_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.ask("a", "add", 1)
    bench.keeper.states["a"] = (LATER, b"theirs")
    await bench.host.reassert()
    assert bench.keeper.states == {"a": (LATER, b"theirs")}
    assert "account: 1 entities in memory have later homes elsewhere" in caplog.messages


async def test_entities_without_state_have_no_fence_in_the_store() -> None:
    bus = ShardBus("test")

    @bus.entity("page")
    class Page(Entity):
        @handler
        def hit(self) -> int:
            return 1

    bench = Bench(bus)
    await bench.ask("a", "hit")
    await bench.host.reassert()
    assert bench.keeper.loads == 0


async def test_lost_lists_are_written_again() -> None:
    store: Any = ListStore(MemoryData())
    await store.start()
    bus = ShardBus("test")

    @bus.entity("page", remember=True)
    class Page(Entity):
        @handler
        def hit(self) -> int:
            return 1

    bench = Bench(bus, store)
    remembered = bench.host.remembered
    assert remembered is not None
    await until(lambda: not remembered._tasks, "the list to be read")
    for name in ("a", "b"):
        await bench.ask(name, "hit")
    store._held.remembered.clear()
    await bench.host.reassert()
    await until(lambda: not remembered._tasks, "the list to be written")
    assert sorted(store.ids()) == ["a", "b"]
    with pytest.raises(StaleFence):
        await store.add_remembered("page", Bench.SHARD, ["c"], FORMER)
