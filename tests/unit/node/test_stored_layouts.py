"""A node does not start with a table of another number of shards, unless it is empty, nor with
states that are placed by another one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.errors import ConfigError, StatesElsewhere, StoreUnavailable
from shardbus.ids import NodeId, shard_of
from shardbus.node.stored_layouts import check_layouts
from shardbus.store.memory import MemoryData, MemoryStore

HOME = (NodeId("10.0.0.1", 7355, 1), 1)


def application(shards: int) -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity(name="counter", shards=shards)
    class Counter(Entity):
        @handler
        def get(self) -> int:
            return 0

    @bus.entity(name="line", within=Counter)
    class Line(Entity):
        @handler
        def get(self) -> int:
            return 0

    return bus


async def stored(homes: dict[str, Any]) -> MemoryStore:
    store = MemoryStore(MemoryData())
    await store.start()
    await store.claim_epoch("counter", 1, "crc32/40")
    await store.write_homes("counter", 1, homes, 1)
    return store


async def test_a_table_of_another_layout_is_refused_with_the_command_that_removes_it() -> None:
    store = await stored({"7": HOME})
    with pytest.raises(ConfigError) as refused:
        await check_layouts(store, application(80).types)
    assert "'crc32/80', the store has 'crc32/40'" in str(refused.value)
    assert "`shardbus data remove counter --store URL`" in refused.value.hint


async def test_the_same_layout_and_a_store_without_a_table_are_nothing_to_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await check_layouts(await stored({"7": HOME}), application(40).types)
    empty = MemoryStore(MemoryData())
    await empty.start()
    await check_layouts(empty, application(80).types)
    assert caplog.messages == []


async def test_an_empty_table_of_another_layout_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        await check_layouts(await stored({}), application(80).types)
    assert caplog.messages == ["the shards of 'counter' change from 'crc32/40' to 'crc32/80'"]


async def test_a_store_that_does_not_answer_keeps_no_node_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await stored({"7": HOME})

    async def silent(entity_type: str) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(store, "load_table", silent)
    await check_layouts(store, application(80).types)
    assert caplog.messages == ["the stored table of 'counter' was not compared: no answer"]


class Placing(MemoryStore):
    """A store that has the states of `cart` placed by 40 shards."""

    def __init__(self) -> None:
        super().__init__(MemoryData())
        self.shards: dict[str, str] = {}

    async def placed(self, entity_type: str, layout: str, shard_of: Any) -> str:
        self.shards[entity_type] = shard_of("c-7")
        return "crc32/40"


def with_state(shards: int) -> ShardBus:
    bus = application(shards)

    @bus.entity(name="cart", shards=shards)
    class Cart(Entity):
        state: Lines

        @handler
        def get(self) -> int:
            return self.state.items

    return bus


@dataclass
class Lines:
    items: int = 0


async def test_states_that_are_placed_by_another_layout_are_refused_with_the_command() -> None:
    store = Placing()
    await store.start()
    with pytest.raises(StatesElsewhere) as refused:
        await check_layouts(store, with_state(80).types)
    assert "'cart' are placed by the shard layout 'crc32/40'" in str(refused.value)
    assert "`shardbus data migrate APP --store URL`" in refused.value.hint
    assert "\n" not in str(refused.value)
    await check_layouts(store, with_state(40).types)
    assert store.shards == {"cart": shard_of("c-7", 40)}, "types without a state have none to place"
