"""Whole nodes whose homes travel by gossip, over seeds: the rules hold under faults, and in the end
every node has the coordinator's last table."""

from __future__ import annotations

import pytest

from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes


def check(seeds: range, seconds: float, mode: str = "buffer") -> None:
    for seed in seeds:
        load = draw_node_options(seed, None, seconds, None, "thin", None, mode, "gossip")
        assert load.command().endswith("--homes gossip")
        outcome = simulate_nodes(load)
        assert not outcome.broken, outcome.report()


def test_S3_45_what_holds_with_a_table_by_gossip() -> None:
    check(range(3), 8.0)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
def test_every_mode_holds_with_a_table_by_gossip(mode: str) -> None:
    check(range(200, 215), 20.0, mode)
