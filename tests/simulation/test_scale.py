"""A change at one node reaches all in rounds that grow like the logarithm of the cluster."""

from __future__ import annotations

from math import log
from random import Random

import pytest

from benchmarks.scale import settled, spread, tuned


def rounds(nodes: int) -> float:
    """By rounds alone, one a second and three while the news is young: the mean of three runs."""
    taken = []
    for seed in range(3):
        world = settled(nodes, seed, tuned(news=False))
        taken.append(spread(world, Random(seed)))
    return sum(taken) / len(taken)


@pytest.mark.soak
def test_rounds_to_spread_grow_at_most_like_the_logarithm() -> None:
    few, many = rounds(10), rounds(100)
    assert few < many <= few * log(100) / log(10)
