"""A seed repeats its steps, a deck has every kind, and no step ends a whole cluster."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from tests.chaos.steps import (
    PLACES,
    SPARED_STEPS,
    TWICE,
    Kind,
    not_done,
    spared,
    steps,
)

DECK = len(Kind) + len(TWICE)


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_repeats_its_steps(seed: int) -> None:
    first, second = (list(islice(steps(seed), 200)) for _ in range(2))
    assert first == second
    assert first != list(islice(steps(seed + 1), 200))


def test_each_deck_has_every_kind() -> None:
    for seed in range(20):
        drawn = [step.kind for step in islice(steps(seed), 5 * DECK)]
        for at in range(0, len(drawn), DECK):
            assert not_done(Counter(drawn[at : at + DECK])) == []
    assert not_done(Counter(drawn[:1])) == [kind for kind in Kind if kind != drawn[0]]


def test_kinds_that_are_left_out_do_not_change_the_others() -> None:
    all_ = [step for step in islice(steps(3), 5 * DECK) if step.kind != Kind.SPLIT]
    assert list(islice(steps(3, without=frozenset({Kind.SPLIT})), len(all_))) == all_


def test_a_spared_node_is_in_no_fault_and_the_few_are_a_minority() -> None:
    for seed in range(20):
        for step in islice(steps(seed), 400):
            safe = spared(step.number)
            assert step.place != safe
            assert safe not in step.few
            assert step.place in step.few
            assert 2 * len(set(step.few)) < PLACES
            assert len(set(step.few)) == len(step.few)


def test_every_place_is_spared_in_turn_and_in_faults_otherwise() -> None:
    assert [spared(n * SPARED_STEPS) for n in range(PLACES + 1)] == [0, 1, 2, 3, 4, 0]
    hit = {step.place for step in islice(steps(1), 2 * SPARED_STEPS)}
    assert hit == set(range(PLACES))
