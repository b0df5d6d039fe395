"""A node with a replica is ready once its replica serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.own_replica import own_repairs, replica_zones, replicas_behind, spares
from shardbus.admin.pages.health import _own_replica
from shardbus.config.replicas import own_replica
from shardbus.config.settings import NodeSettings, Settings, StoreSettings
from shardbus.ids import Address
from tests.records import replace

URL = "cluster://10.0.0.1:7357,10.0.0.2:7357,10.0.0.3:7357"
SETTINGS = replace(
    Settings(),
    node=NodeSettings(host="10.0.0.2", port=7355),
    store=StoreSettings(url=URL, port=7357),
)


class Store:
    """A store with one row for each replica."""

    def __init__(self, address: str, why: str, *, member: bool = True) -> None:
        row = {"address": address, "serves": not why, "why": why, "member": member, "zone": "a"}
        row["spare"] = not member
        self.replicas: tuple[dict[str, object], ...] = (row | {"repairs": {}},)

    def repaired(self, age: float, interval: float = 60.0) -> Store:
        self.replicas[0]["repairs"] = {"age": age, "interval": interval, "rows": 3, "bytes": 40}
        return self


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (Store("10.0.0.2:7357", ""), ""),
        (Store("10.0.0.2:7357", "it merges"), "this node's replica does not serve: it merges"),
        (Store("10.0.0.2:7357", "it merges", member=False), ""),
        (Store("10.0.0.1:7357", "it merges"), ""),
    ],
)
def test_a_node_waits_for_its_own_replica_while_that_is_in_the_ring(store: Store, why: str) -> None:
    admin: Any = SimpleNamespace(node=SimpleNamespace(settings=SETTINGS, store=store))
    assert _own_replica(admin) == why


@pytest.mark.parametrize(
    ("store", "behind"),
    [
        (Store("10.0.0.2:7357", "").repaired(299.0), {}),
        (Store("10.0.0.2:7357", "").repaired(301.0), {"10.0.0.2:7357": 301.0}),
        (Store("10.0.0.2:7357", "").repaired(59.0, 1.0), {}),
        (Store("10.0.0.2:7357", "it is out of reach").repaired(301.0), {}),
        (Store("10.0.0.2:7357", ""), {}),
    ],
)
def test_a_replica_is_behind_if_no_repair_passes(store: Store, behind: dict[str, float]) -> None:
    node: Any = SimpleNamespace(settings=SETTINGS, store=store)
    assert replicas_behind(node) == behind
    assert own_repairs(node) == store.replicas[0]["repairs"]


def test_other_nodes_and_other_stores_have_no_replica() -> None:
    assert own_replica(SETTINGS) == Address("10.0.0.2", 7357)
    elsewhere = replace(SETTINGS, node=NodeSettings(host="10.0.0.9", port=7355))
    assert own_replica(elsewhere) is None
    redis = replace(SETTINGS, store=StoreSettings(url="redis://10.0.0.1", port=7357))
    assert own_replica(redis) is None


def test_spares_are_counted_beside_the_members() -> None:
    spare = SimpleNamespace(store=Store("10.0.0.2:7357", "it is a spare", member=False))
    member = SimpleNamespace(store=Store("10.0.0.2:7357", ""))
    other = SimpleNamespace(store=object())
    assert [spares(node) for node in (spare, member, other)] == [1, 0, None]  # type: ignore[arg-type]
    assert replica_zones(member) == {"10.0.0.2:7357": "a"}  # type: ignore[arg-type]
    assert replica_zones(spare) == {}  # type: ignore[arg-type]
