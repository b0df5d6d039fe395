"""Whole nodes with a type of several instances, over seeds: they are on distinct nodes at any time,
each is in one place, and in the end there are as many as the type declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.coordinator.instance_rows import InstanceRows
from shardbus.sharding.coordinator.ledger import Homeless, Ledger
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardTable
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes

Patch = pytest.MonkeyPatch


def options(
    seed: int,
    seconds: float,
    mode: str = "buffer",
    homes: str = "ask",
    nodes: int | None = None,
) -> NodeOptions:
    load = draw_node_options(seed, nodes, seconds, None, "thin", None, mode, homes, 3)
    assert load.command().endswith("--instances 3")
    return load


def check(seeds: range, seconds: float, mode: str = "buffer", homes: str = "ask") -> None:
    for seed in seeds:
        outcome = simulate_nodes(options(seed, seconds, mode, homes))
        assert not outcome.broken, outcome.report()


def test_instances_hold_what_they_promise() -> None:
    check(range(1), 8.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "homes"),
    [("buffer", "ask"), ("ordered", "gossip"), ("forward", "ask"), ("drop", "gossip")],
)
def test_instances_hold_what_they_promise_beside_types_of_every_mode(mode: str, homes: str) -> None:
    check(range(300, 301), 20.0, mode, homes)


@pytest.mark.soak
@pytest.mark.parametrize("homes", ["ask", "gossip"])
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
def test_instances_hold_what_they_promise_over_more_seeds(mode: str, homes: str) -> None:
    check(range(300, 304), 20.0, mode, homes)


def rows_wait_for_the_node_of_a_sibling(patch: Patch) -> None:
    """The strategy chooses among all nodes, and the coordinator does not place a second row."""

    def allocate(
        self: DistinctRows,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Sequence[NodeId],
    ) -> dict[str, NodeId]:
        return self.strategy.allocate(table, loads, shards, candidates)

    patch.setattr(DistinctRows, "allocate", allocate)


def instances_share_nodes(patch: Patch) -> None:
    """Nothing keeps them apart: neither the strategy nor the coordinator."""
    rows_wait_for_the_node_of_a_sibling(patch)
    homes_at = Ledger._homes_at

    def careless(self: Ledger, homeless: Homeless, chosen: Mapping[str, NodeId]) -> dict[str, Home]:
        rows, self.rows = self.rows, False
        try:
            return homes_at(self, homeless, chosen)
        finally:
            self.rows = rows

    patch.setattr(Ledger, "_homes_at", careless)


def instances_above_the_number_stay(patch: Patch) -> None:
    patch.setattr(InstanceRows, "is_new", lambda self, table: False)
    update = InstanceRows.update

    def silently(self: InstanceRows, nodes: int, now: float) -> bool:
        before = self.count
        return update(self, nodes, now) and self.count > before

    patch.setattr(InstanceRows, "update", silently)


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "rule", "nodes", "first"),
    [
        (rows_wait_for_the_node_of_a_sibling, "I11", None, 0),
        (instances_share_nodes, "rows", None, 0),
        (instances_above_the_number_stay, "I11", 3, 15),  # some nodes must not come back
    ],
)
def test_a_planted_defect_of_instances_is_found(
    plant: Callable[[Patch], None], rule: str, nodes: int | None, first: int, monkeypatch: Patch
) -> None:
    """`first`: the seed that found it when this was last brought up to date. Without the defect
    that run is sound."""
    plant(monkeypatch)
    for seed in (first, *range(20)):
        broken = simulate_nodes(options(seed, 8.0, nodes=nodes)).broken
        if broken is not None:
            break
    else:
        pytest.fail("no seed found it")
    assert broken.rule == rule, broken
    monkeypatch.undo()
    sound = simulate_nodes(options(seed, 8.0, nodes=nodes))
    assert sound.broken is None, sound.report()
