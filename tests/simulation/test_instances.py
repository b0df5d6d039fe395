"""Whole nodes with a type of several instances, over seeds: they are on distinct nodes at any time,
each is in one place, and in the end there are as many as the type wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.coordinator.instance_rows import InstanceRows
from shardbus.sharding.table import ShardTable
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes

Patch = pytest.MonkeyPatch


def options(seed: int, seconds: float, mode: str = "buffer", homes: str = "ask") -> NodeOptions:
    load = draw_node_options(seed, None, seconds, None, "thin", None, mode, homes, 3)
    assert load.command().endswith("--instances 3")
    return load


def check(seeds: range, seconds: float, mode: str = "buffer", homes: str = "ask") -> None:
    for seed in seeds:
        outcome = simulate_nodes(options(seed, seconds, mode, homes))
        assert not outcome.broken, outcome.report()


def test_instances_hold_what_they_promise() -> None:
    check(range(3), 8.0)


@pytest.mark.long
@pytest.mark.parametrize("homes", ["ask", "gossip"])
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
def test_instances_hold_what_they_promise_beside_types_of_every_mode(mode: str, homes: str) -> None:
    check(range(300, 312), 20.0, mode, homes)


def instances_share_nodes(patch: Patch) -> None:
    def allocate(
        self: DistinctRows,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Sequence[NodeId],
    ) -> dict[str, NodeId]:
        return self.strategy.allocate(table, loads, shards, candidates)

    patch.setattr(DistinctRows, "allocate", allocate)


def instances_above_the_number_stay(patch: Patch) -> None:
    patch.setattr(InstanceRows, "is_new", lambda self, table: False)
    update = InstanceRows.update

    def silently(self: InstanceRows, nodes: int, now: float) -> bool:
        before = self.count
        return update(self, nodes, now) and self.count > before

    patch.setattr(InstanceRows, "update", silently)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (instances_share_nodes, "rows"),
        (instances_above_the_number_stay, "I11"),
    ],
)
def test_a_planted_defect_of_instances_is_found(
    plant: Callable[[Patch], None], rule: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    for seed in range(20):
        broken = simulate_nodes(options(seed, 8.0)).broken
        if broken is not None:
            assert broken.rule == rule, broken
            return
    pytest.fail("no seed found it")
