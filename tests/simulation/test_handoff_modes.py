"""Whole nodes in every mode of a hand-off, over seeds: the promises of the mode hold under faults,
and afterwards no node forwards, keeps messages or moves a shard, and the store has no intent."""

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
    check(mode, range(111, 112), 20.0)


@pytest.mark.soak
@pytest.mark.parametrize("mode", DIRECT)
def test_every_mode_keeps_what_it_says_over_more_seeds(mode: str) -> None:
    check(mode, range(112, 118), 20.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "nodes", "load", "splits", "mode", "strategy"),
    [
        # A sender died before the shard was handed over.
        (231, 7, "thin", None, "ordered", "keep-majority"),
        (231, 7, "thin", None, "forward", "keep-majority"),
        (238, 5, "thin", None, "ordered", "keep-majority"),
        # The coordinator changed before the end was reported.
        (272, 3, "thin", None, "forward", "keep-majority"),
        # The store was wiped, and the old home did not know.
        (369, 4, "thin", None, "ordered", "keep-majority"),
        # The new home had shut down when the shard came.
        (341, 4, "thin", True, "drop", "keep-majority"),
        # The store was set back, and the new home had no shard.
        (2063, 4, "thin", True, "drop", "keep-majority"),
        # The old home never received that the new one was gone.
        (2107, 6, "dense", True, "drop", "keep-majority"),
        # An empty region ended without a confirmation.
        (1078, 4, "thin", None, "ordered", "keep-majority"),
        # The old home acknowledged for itself when asked.
        (1238, 3, "dense", True, "ordered", "keep-majority"),
        # The old home died before the new one received it.
        (1156, 4, "dense", True, "ordered", "keep-majority"),
        # The store was set back, and the next coordinator handed off a shard that was moving.
        (2123, 4, "dense", True, "forward", "lease-majority"),
        # An acknowledgement overtook messages that waited at the old home.
        (4053, 3, "thin", True, "ordered", "lease-majority"),
    ],
)
def test_a_node_leaves_however_a_move_away_from_it_was_disturbed(
    seed: int, nodes: int, load: str, splits: bool | None, mode: str, strategy: str
) -> None:
    options = draw_node_options(seed, nodes, 20.0, strategy, load, splits, mode)
    outcome = simulate_nodes(options)
    assert not outcome.broken, outcome.report()
