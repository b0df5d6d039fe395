"""`bus.data` without replicas: where there is none, and what a node logs at its start."""

from __future__ import annotations

import logging
import time
from contextlib import aclosing
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import DataSettings
from shardbus.data import Counter
from shardbus.errors import ConfigError, LocalProtocolError
from shardbus.replication.ring import RingMember, first_ring
from shardbus.replication.values import state_name
from shardbus.replication.versions import NOTHING, REGISTER, DataValue, Dot
from shardbus.store.memory import MemoryStore
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.replicated_data import ReplicatedData, SharedValues, warn_of_levels
from shardbus.store.replicated_values import (
    CONFLICTS_MANY,
    CONFLICTS_NAMED,
    ValueConflicts,
    belongs,
)
from shardbus.store.state_values import StateValues
from shardbus.testing import TestCluster

bus = ShardBus("shop")


@bus.entity("till")
class Till(Entity):
    @handler
    async def sell(self) -> int:
        sales = await bus.data.update("sales", Counter, lambda sales: sales.add())
        return int(sales.data)

    @handler
    async def sold(self) -> list[str]:
        async with aclosing(bus.data.watch()) as changes:
            key, value = await anext(changes)
        return [key, str(value and value.data), *await bus.data.keys()]


async def test_another_store_is_refused_with_a_hint() -> None:
    with pytest.raises(LocalProtocolError, match="no node"):
        _ = bus.data
    data = ReplicatedData(MemoryStore(), DataSettings())
    with pytest.raises(ConfigError, match=r'set store\.url to "cluster://"'):
        await data.get("sales")
    with pytest.raises(ConfigError, match=r'set store\.url to "cluster://"'):
        StateValues("quote", MemoryStore(), DataSettings(), time.time)


async def test_a_test_cluster_has_replicated_values() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        till = cluster.client().ref(Till, "1")
        assert [await till.sell(), await till.sell()] == [1, 2]
        assert await till.sold() == ["sales", "2", "sales"]


async def test_states_of_entities_are_not_among_the_values() -> None:
    """An application's prefix never finds a state, whatever its type is called."""
    names = ["quote", "quotes", state_name("quote", "ACME"), state_name("quotes", "ACME")]
    assert [name for name in names if belongs(name, "quote")] == ["quote", "quotes"]
    assert [name for name in names if belongs(name, "")] == ["quote", "quotes"]
    prefix = state_name("quote", "")
    assert [name for name in names if name.startswith(prefix) and belongs(name, prefix)] == [
        state_name("quote", "ACME")
    ]
    with pytest.raises(ConfigError, match="control character"):
        await Values().put(state_name("quote", "ACME"), 1)


def test_keys_with_conflicts_are_kept_up_to_a_bound() -> None:
    conflicts, many = ValueConflicts(), CONFLICTS_MANY
    dots = tuple(Dot(1, n + 1, REGISTER, data=b"%d" % n) for n in range(many))
    names = [state_name("quote", str(n)) for n in range(CONFLICTS_NAMED + 5)]
    for name in names:
        conflicts.note(name, DataValue(((1, many),), dots))
    assert list(conflicts.keys.items()) == [(f"quote {n}", many) for n in range(5, len(names))]
    conflicts.note(names[-1], DataValue(((1, many),), dots[1:]))
    assert f"quote {len(names) - 1}" not in conflicts.keys


def levels(settings: DataSettings, disks: int, caplog: pytest.LogCaptureFixture) -> bool:
    """True if the node logs that a get may miss a put."""
    ring = first_ring(tuple(RingMember(disk) for disk in range(1, disks + 1)), 3)
    store: Any = ReplicatedStore.__new__(ReplicatedStore)
    store._values = type("Values", (), {"ring": ring})()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_levels(store, settings)
    return "may miss" in caplog.text


def test_levels_that_do_not_overlap_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not levels(DataSettings(), 3, caplog)
    assert not levels(DataSettings(r="1", w="all"), 3, caplog)
    assert levels(DataSettings(r="1"), 3, caplog)
    assert levels(DataSettings(r="1", w="2"), 3, caplog)
    assert not levels(DataSettings(r="1", w="1"), 1, caplog)
    warn_of_levels(MemoryStore(), DataSettings(r="1", w="1"))


class Values(SharedValues):
    """Values that count the writes and keep none."""

    writes = 0

    @property
    def _values(self) -> Any:
        return self

    async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
        return NOTHING

    async def write(self, *arguments: object) -> Any:
        self.writes += 1
        return NOTHING

    def _level(self, name: str, level: object) -> Any:
        return level

    def _stamped(self, change: Any) -> Any:
        return change


async def add_later(hits: Counter) -> None:
    hits.add(1)


def add_by_steps(hits: Counter) -> Any:
    yield hits.add(1)


async def add_by_later_steps(hits: Counter) -> Any:
    yield hits.add(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [add_later, add_by_steps, add_by_later_steps, lambda hits: add_later(hits.add(1))],
)
async def test_an_update_by_a_function_that_has_not_run_is_refused(change: Any) -> None:
    values = Values()
    with pytest.raises(ConfigError, match="plain function"):
        await values.update("hits", Counter, change)
    assert values.writes == 0
    await values.update("hits", Counter, lambda hits: hits.add(1))
    assert values.writes == 1
