"""Remembered entities when something is in the way: a start meets a stop, a store fails or is
silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import ShardBus, StopReason
from shardbus.errors import StoreUnavailable
from shardbus.routing.refs import START
from shardbus.store.memory import MemoryData
from tests.unit.entities.entity_kit import Bench, ListStore, Log
from tests.unit.entities.test_remembering import Page
from tests.waiting import turns, until


class Slow(Page):
    """Its end waits for a gate."""

    async def on_stop(self, reason: StopReason) -> None:
        await super().on_stop(reason)
        await self.log.end_gate.wait()


async def bench(data: MemoryData | None = None, **settings: Any) -> tuple[Bench, ListStore]:
    store = ListStore(data or MemoryData())
    await store.start()
    bus = ShardBus("test")
    Slow.log = Log()
    bus.entity("page", remember=True)(type("Page", (Slow,), {}))
    return Bench(bus, store, **settings), store


async def test_TSU8_an_entity_started_while_it_passivates_starts_again() -> None:
    made, store = await bench()
    await made.ask("a", START)
    first = made.activation("a")
    Slow.log.end_gate.clear()
    made.tell("a", "passivate")
    started = made.ask("a", START)
    await turns()
    assert not started.done()
    Slow.log.end_gate.set()
    await started
    await until(lambda: made.entity("a") is not None, "the next incarnation")
    assert made.activation("a") is not first
    assert store.ids() == ["a"]


async def test_TSU8_an_entity_started_during_its_backoff_starts_at_once() -> None:
    made, store = await bench(entity_restart_backoff=1000.0)
    await made.ask("a", START)
    await made.ask("a", "stop")
    assert made.activation("a") is None
    await made.ask("a", START)
    assert made.entity("a") is not None
    assert store.ids() == ["a"]


async def test_TSU8_an_entity_started_while_its_stop_is_stored_starts_afterwards() -> None:
    made, store = await bench()
    await made.ask("a", START)
    store.gate.clear()
    made.tell("a", "passivate")
    await turns(20)
    started = made.ask("a", START)
    await turns(20)
    assert not started.done()
    store.gate.set()
    await started
    assert store.ids() == ["a"]
    assert [what for what, _ in store.writes] == ["add", "remove", "add"]


async def silent(store: ListStore) -> None:
    """It does not answer for a while."""
    store.gate.clear()


async def failing(store: ListStore) -> None:
    """It fails three times."""
    store.failures = [StoreUnavailable("away")] * 3


TROUBLES = [silent, failing]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_TSU9_a_list_that_cannot_be_read_is_read_later(trouble: Any) -> None:
    data = MemoryData()
    made, _ = await bench(data)
    await asyncio.gather(*(made.ask(name, START) for name in "abc"))
    again, store = await bench(data, shard_failure_backoff=0.01)
    await trouble(store)
    await turns(20)
    assert made.host is not again.host
    assert again.host.entities == 0
    early = again.ask("d", "hit", 1)
    store.gate.set()
    assert await early == 1
    await until(lambda: again.host.entities == 4, "everybody")
    assert store.ids() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_TSU9_a_start_that_cannot_be_stored_waits_and_is_not_lost(trouble: Any) -> None:
    made, store = await bench(shard_failure_backoff=0.01)
    await made.ask("a", START)
    await trouble(store)
    asks = [made.ask("b", "hit", n) for n in range(3)]
    assert await made.ask("a", "hit", 9) == 9
    assert not any(ask.done() for ask in asks)
    store.gate.set()
    assert await asyncio.gather(*asks) == [0, 1, 2]
    assert store.ids() == ["a", "b"]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_TSU9_a_stop_that_cannot_be_stored_is_stored_later(trouble: Any) -> None:
    made, store = await bench(shard_failure_backoff=0.01)
    await asyncio.gather(*(made.ask(name, START) for name in "ab"))
    await trouble(store)
    made.tell("a", "passivate")
    await turns(20)
    assert made.activation("a") is None
    store.gate.set()
    await until(lambda: store.ids() == ["b"], "the shorter list")
    await turns(20)
    assert made.activation("a") is None


async def test_a_page_read_before_an_entity_was_forgotten_does_not_bring_it_back() -> None:
    made, _ = await bench(data := MemoryData())
    await asyncio.gather(*(made.ask(name, START) for name in "ab"))
    made.stop()
    await made.stopped()
    store = ListStore(data)
    store.pages.clear()
    await store.start()
    bus = ShardBus("test")
    Page.log = Log()
    bus.entity("page", remember=True)(Page)
    again = Bench(bus, store)
    await until(lambda: store.read, "the page")
    assert await again.ask("a", "hit", 1) == 1
    await again.ask("a", "passivate")
    await until(lambda: store.ids() == ["b"], "a to be forgotten")
    store.pages.set()
    await until(lambda: again.entity("b") is not None, "b to start")
    await turns(20)
    assert again.entity("a") is None
    assert store.ids() == ["b"]
    assert await again.ask("a", "hit", 2) == 2
    assert store.ids() == ["a", "b"]
