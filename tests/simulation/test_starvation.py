"""Processes that do not get their processor: who is starved is not dead."""

from __future__ import annotations

import pytest

from benchmarks.starvation import Starved, found_after
from shardbus.membership.view import NodeStarved

MINUTE = 60.0
SEED = 4
"""Starved so that without self-health nodes are removed within 25 minutes."""


@pytest.mark.long
def test_N12_self_health_keeps_starved_nodes_and_without_it_they_are_removed() -> None:
    careful, plain = (Starved(SEED, self_health=on) for on in (True, False))
    careful.world.run(25 * MINUTE)
    assert careful.removed == 0
    for _ in range(25):
        if plain.removed == 0:
            plain.world.run(MINUTE)
    assert plain.removed > 0
    notices = [n for p in careful.world.running() for n in p.notices if isinstance(n, NodeStarved)]
    assert {notice.node.host for notice in notices} == set(careful.names)


@pytest.mark.long
def test_B25_healthy_observers_find_a_silent_death_as_fast_as_ever() -> None:
    """The median of ten deaths is within 5 s."""
    delays = [found_after(Starved(seed, self_health=True, starve=False)) for seed in range(10)]
    taken = sorted(seconds for seconds in delays if seconds is not None)
    assert len(taken) == 10
    assert taken[5] <= 5.0


@pytest.mark.long
def test_B25_starved_observers_find_a_death_in_bounded_time() -> None:
    delays = [found_after(Starved(seed, self_health=True)) for seed in range(8)]
    assert max(seconds for seconds in delays if seconds is not None) < 40.0
