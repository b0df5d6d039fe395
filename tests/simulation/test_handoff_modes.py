"""Whole nodes in every mode of a hand-off, over seeds: what the mode says holds under faults, and
afterwards no node forwards, keeps messages or moves a shard, and the store has no intent."""

from __future__ import annotations

import pytest

from shardbus.config.settings import HANDOFFS
from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes

DIRECT = HANDOFFS[1:]
NAMED = ("ordered", "forward", "drop")


def check(mode: str, seeds: range, seconds: float) -> None:
    """Simulate these seeds; shards must have moved."""
    moves = carried = 0
    for seed in seeds:
        load = draw_node_options(seed, None, seconds, None, "thin", False, mode)
        assert load.command().endswith(f"--handoff {mode}")
        outcome = simulate_nodes(load)
        assert not outcome.broken, outcome.report()
        moves += outcome.counts["moves"]
        carried += outcome.counts["carried"]
    assert moves > 0
    assert carried > 0 or mode != "ordered"


@pytest.mark.parametrize("mode", NAMED)
def test_a_named_mode_keeps_what_it_says(mode: str) -> None:
    check(mode, range(2), 8.0)


@pytest.mark.long
@pytest.mark.parametrize("mode", DIRECT)
def test_every_mode_keeps_what_it_says_under_more_faults(mode: str) -> None:
    check(mode, range(100 if mode in NAMED else 110, 115), 20.0)
