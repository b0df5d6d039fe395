"""Whom gossip goes to. T.U2; there are no data centers to choose among."""

from __future__ import annotations

import random

import pytest

from shardbus.ids import NodeId
from shardbus.membership.gossip_targets import (
    breaker_targets,
    different_view_probability,
    is_speedy,
    news_targets,
    round_target,
)

NODES = [NodeId(f"n{i}", 1, i) for i in range(10)]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(1, 0.8), (400, 0.8), (800, 0.44), (1200, 0.08), (5000, 0.08)],
)
def test_the_bias_is_reduced_in_large_clusters(nodes: int, expected: float) -> None:
    assert different_view_probability(0.8, 400, nodes) == pytest.approx(expected)


def test_TU2_the_bias_goes_to_those_who_have_not_seen() -> None:
    rng = random.Random(1)
    seen = set(NODES[:8])
    picks = [round_target(NODES, seen, 0.8, rng) for _ in range(2000)]
    unseen = sum(pick not in seen for pick in picks) / len(picks)
    assert unseen == pytest.approx(0.8 + 0.2 * 0.2, abs=0.04)
    assert set(picks) == set(NODES)


@pytest.mark.parametrize(("probability", "expected"), [(1.0, {NODES[9]}), (0.0, set(NODES))])
def test_TU2_the_extremes(probability: float, expected: set[NodeId]) -> None:
    rng = random.Random(2)
    picks = {round_target(NODES, set(NODES[:9]), probability, rng) for _ in range(500)}
    assert picks == expected


def test_TU2_nobody_to_talk_to() -> None:
    assert round_target([], set(), 0.8, random.Random(1)) is None
    assert news_targets([], set(), 3, random.Random(1)) == []


def test_TU2_news_goes_to_a_few_who_have_not_seen() -> None:
    rng = random.Random(3)
    assert len(set(news_targets(NODES, set(), 3, rng))) == 3
    assert set(news_targets(NODES, set(NODES[:8]), 3, rng)) == set(NODES[8:])


@pytest.mark.parametrize(
    ("seen", "nodes", "speedy"), [(1, 3, True), (1, 2, False), (2, 4, False), (2, 5, True)]
)
def test_rounds_are_faster_while_fewer_than_half_have_seen(
    seen: int, nodes: int, speedy: bool
) -> None:
    assert is_speedy(seen, nodes) is speedy


def breaks(live: int, away: int, seeds: list[NodeId], factor: float, seed: int) -> list[NodeId]:
    partner = NODES[0] if live else None
    rng = random.Random(seed)
    return breaker_targets(NODES[:live], NODES[live : live + away], seeds, partner, factor, rng)


@pytest.mark.parametrize("live", [0, 1, 5])
def test_S3_26_nobody_gossips_with_the_unreachable_unless_it_is_asked_for(live: int) -> None:
    assert all(breaks(live, 3, NODES[:2], 0.0, i) == [] for i in range(100))


def test_S3_26_the_more_are_unreachable_the_likelier_one_of_them_is_chosen() -> None:
    def hits(away: int) -> int:
        picks = [breaks(4, away, [], 1.0, i) for i in range(1000)]
        assert all(set(nodes) <= set(NODES[4 : 4 + away]) for nodes in picks)
        return sum(map(bool, picks))

    assert hits(0) == 0
    assert 150 < hits(1) < 250
    assert 350 < hits(2) < 450
    assert hits(5) == 1000


def test_S3_27_a_seed_is_chosen_unless_the_partner_was_one_and_the_living_are_many() -> None:
    def hits(live: int, seeds: list[NodeId]) -> int:
        return sum(bool(breaks(live, 2, seeds, 1.0, i)) for i in range(0, 3000, 3))

    unreachable_alone = hits(8, [])
    assert abs(hits(8, [NODES[0]]) - unreachable_alone) < 1
    assert hits(8, [NODES[3]]) > unreachable_alone
    assert breaks(0, 0, [NODES[3]], 1.0, 1) == [NODES[3]]


def test_nobody_is_chosen_twice() -> None:
    for i in range(200):
        chosen = breaks(1, 2, [NODES[1], NODES[2]], 5.0, i)
        assert len(set(chosen)) == len(chosen)
        assert NODES[0] not in chosen
