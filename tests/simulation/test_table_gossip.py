"""Whole nodes whose homes travel by gossip, over seeds: the rules hold under faults, and in the end
every node has the coordinator's last table."""

from __future__ import annotations

import pytest

from shardbus.sharding.region.table_gossip import TableGossip
from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes


def check(seeds: range, seconds: float, mode: str = "buffer") -> None:
    for seed in seeds:
        load = draw_node_options(seed, None, seconds, None, "thin", None, mode, "gossip")
        assert load.command().endswith("--homes gossip")
        outcome = simulate_nodes(load)
        assert not outcome.broken, outcome.report()


def test_S3_45_what_holds_with_a_table_by_gossip() -> None:
    check(range(1), 8.0)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
def test_every_mode_holds_with_a_table_by_gossip(mode: str) -> None:
    check(range(200, 201), 20.0, mode)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
def test_every_mode_holds_with_a_table_by_gossip_over_more_seeds(mode: str) -> None:
    check(range(201, 206), 20.0, mode)


@pytest.mark.long
def test_a_planted_defect_of_the_gossip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that no region passes on reaches only the node of the coordinator."""
    monkeypatch.setattr(TableGossip, "_set_fingers", lambda self: None)
    for seed in range(5):
        load = draw_node_options(seed, None, 5.0, None, "thin", None, "buffer", "gossip")
        broken = simulate_nodes(load).broken
        if broken is not None:
            assert (broken.rule, "has table" in broken.detail) == ("I11", True), broken
            return
    pytest.fail("no seed found it")
