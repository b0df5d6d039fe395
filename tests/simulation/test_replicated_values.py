"""Many seeds of replicated values: each get sees what it must, and nothing that was deleted."""

from __future__ import annotations

import pytest

from shardbus.simulation.replication.data_calls import simulate_data
from tests.markers import long_only, soak_only


@pytest.mark.parametrize("seeds", [range(8), *long_only(range(8, 40)), *soak_only(range(40, 1090))])
def test_nothing_breaks(seeds: range) -> None:
    for seed in seeds:
        run = simulate_data(seed)
        assert not run.broken, (seed, run.broken)


@pytest.mark.parametrize("seed", [302_351, 303_191])
def test_a_run_that_broke_a_rule_once_is_sound(seed: int) -> None:
    """A disk was set back to a blank one; a disk that was left alone dropped tombstones before it
    had merged the rows of another one."""
    assert not simulate_data(seed).broken


def test_a_seed_is_one_run_and_tombstones_go() -> None:
    assert simulate_data(7) == simulate_data(7)
    assert any(simulate_data(seed).removed for seed in range(4))
