"""Maps of shards: columns, versions, and the changes that a map shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shardbus.admin.shard_map import ShardMaps, columns_of
from tests.unit.sharding.coordinator.test_coordinator import A, B, CoordinatorDriver, ack, move
from tests.unit.sharding.coordinator.test_history import stops


def test_columns_are_sorted_as_numbers_and_have_a_letter_for_each_state() -> None:
    rows = [("10", "b:1#2"), ("9", "a:1#1"), ("2", "b:1#2")]
    assert columns_of(rows, {"9": "handing_off", "10": "starting", "7": "unallocated"}) == {
        "nodes": ["a:1#1", "b:1#2"],
        "shards": ["2", "9", "10"],
        "homes": [1, 0, 1],
        "states": "rhs",
    }
    assert columns_of([], {})["states"] == ""


def test_a_reader_with_the_version_gets_no_columns_until_the_map_changes() -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    maps = ShardMaps()
    first = maps.of("t", driver.coordinator, "", driver.now)
    assert first["states"].count("h") == 1
    assert home.shard in first["shards"]
    current = maps.of("t", driver.coordinator, first["version"], driver.now)
    assert current == {"epoch": first["epoch"], "version": first["version"]}
    ack(driver, A, home)
    ack(driver, B, home)
    stops(driver, home)
    driver.persisted()
    driver.now += 2.0
    moved = maps.of("t", driver.coordinator, first["version"], driver.now)
    assert moved["version"] != first["version"]
    assert moved["changes"][0] == [home.shard, 2.0, str(A), str(B), "rebalance", 0.0]
    assert moved["homes"][moved["shards"].index(home.shard)] == moved["nodes"].index(str(B))


def test_a_shard_that_begins_to_move_is_a_change_of_the_map() -> None:
    driver = CoordinatorDriver(live=(A,))
    move(driver)
    states: dict[str, str] = {}
    coordinator: Any = SimpleNamespace(
        table=driver.coordinator.table,
        epoch=3,
        history=driver.coordinator.history,
        unsettled=lambda: dict(states),
    )
    maps = ShardMaps()
    first = maps.of("t", coordinator, "", 0.0)
    states[first["shards"][0]] = "handing_off"
    moving = maps.of("t", coordinator, first["version"], 0.0)
    assert (first["states"][0], moving["states"][0]) == ("r", "h")


def test_every_type_has_versions_of_its_own() -> None:
    driver = CoordinatorDriver(live=(A,))
    move(driver)
    maps = ShardMaps()
    first = maps.of("t", driver.coordinator, "", driver.now)
    other = maps.of("u", driver.coordinator, first["version"], driver.now)
    assert "shards" in other
