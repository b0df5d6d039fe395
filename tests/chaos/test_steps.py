"""A seed repeats its steps, a deck has every kind, and no step ends a whole cluster."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from tests.chaos.steps import (
    OF_NODES,
    PLACES,
    SPARED_STEPS,
    TWICE,
    Kind,
    not_done,
    spared,
    steps,
)
from tests.chaos.stores import STORES

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


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_each_store_suffers_the_faults_of_nodes_and_some_of_its_own(store: Any) -> None:
    assert store.kinds > OF_NODES
    assert {Kind.KILL_MASTER, Kind.KILL_REPLICA} & store.kinds
    dealt = steps(7, without=frozenset(Kind) - store.kinds)
    drawn = Counter(step.kind for step in islice(dealt, 2 * len(store.kinds)))
    assert not_done(drawn, store.kinds) == []


def test_no_kind_is_left_to_no_store() -> None:
    assert set().union(*(store.kinds for store in STORES.values())) == set(Kind)  # type: ignore[attr-defined]


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
