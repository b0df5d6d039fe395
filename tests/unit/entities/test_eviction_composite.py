"""The composite policy: a window, a filter by frequency, a main area, and the window's size."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.eviction import (
    COUNT_MAX,
    SAMPLE,
    STEP_FIRST,
    WINDOW_MAX,
    WINDOW_MIN,
    CompositePolicy,
    FrequencySketch,
    HillClimber,
    LeastRecent,
)
from tests.unit.entities.entity_kit import PolicyMemory

# The sketch


@given(st.lists(st.sampled_from([f"id-{n}" for n in range(30)]), max_size=200))
def test_an_estimate_is_never_too_low(uses: list[str]) -> None:
    sketch = FrequencySketch(100)
    for entity_id in uses:
        sketch.add(entity_id)
    for entity_id, count in Counter(uses).items():
        assert sketch.estimate(entity_id) >= min(count, COUNT_MAX)


def test_most_estimates_are_right() -> None:
    sketch, count = FrequencySketch(1000), {f"id-{n}": 1 + n % 5 for n in range(1000)}
    for entity_id, times in count.items():
        for _ in range(times):
            sketch.add(entity_id)
    wrong = sum(sketch.estimate(entity_id) != times for entity_id, times in count.items())
    assert wrong < 20
    assert sum(sketch.estimate(f"stranger-{n}") > 0 for n in range(1000)) < 40


def test_what_was_long_ago_counts_half() -> None:
    sketch = FrequencySketch(10)
    for _ in range(8):
        sketch.add("old")
    assert sketch.estimate("old") == 8
    for n in range(SAMPLE * 10 - 8):
        sketch.add(f"new-{n % 5}")
    assert sketch.estimate("old") == 4
    assert sketch.estimate("new-1") == COUNT_MAX // 2


# Who goes: limit 4, a window of 1, a main area of 3 with 1 protected


@pytest.mark.parametrize(
    ("uses", "victim"),
    [
        ("a b c d", ""),
        ("a b c d e", "d"),  # d was used no more often than a, so it does not take its place
        ("a b c d d e", "a"),  # d was used more often than a
        ("a b c d e f g h", "d e f g"),  # a scan passes through the window
        ("a b c d e d f d g", "d e a f"),  # who comes back again and again gets in, though it went
        ("a a b b c c d d e", "d"),  # alike: who is there already stays
    ],
)
def test_B84_a_new_entity_stays_if_it_is_used_more_than_the_victim(uses: str, victim: str) -> None:
    memory = PolicyMemory(CompositePolicy(4, 0.25, 0.5), 4)
    memory.use(*uses.split())
    assert " ".join(memory.gone) == victim


def test_a_scan_beside_the_work_pushes_hardly_anybody_out() -> None:
    passivator = [f"r{n}" for n in range(100)]
    lost = {}
    for policy in (CompositePolicy(120, 0.01, 0.8), LeastRecent()):
        memory = PolicyMemory(policy, 120)
        memory.use(*passivator * 3)
        for n in range(3000):
            memory.use(f"s{n}")
            if n % 3 == 0:
                memory.use(passivator[n // 3 % 100])
        lost[type(policy)] = len(set(passivator) - memory.ids)
    assert lost[LeastRecent] > 50
    assert lost[CompositePolicy] < 5


def test_a_smaller_limit_takes_from_the_main_area() -> None:
    memory = PolicyMemory(policy := CompositePolicy(10, 0.1, 0.8), 10)
    memory.use(*"abcdefghijk", *"abc" * 3)
    assert memory.gone == ["j"]
    memory.limit = 3
    policy.resize(3)
    memory.use("a")
    assert memory.ids == {"c", "a", "k"}


# The climber


@pytest.mark.parametrize(
    ("rates", "directions"),
    [
        ([0.5, 0.51, 0.52, 0.53], "++++"),  # better each time: on in the same direction
        ([0.5, 0.49, 0.48, 0.49], "+-++"),  # worse: it turns, and turns again
        ([0.5, 0.49, 0.50, 0.51], "+---"),
        ([0.5, 0.5, 0.5], "+++"),
    ],
)
def test_the_window_goes_where_the_rate_grows(rates: list[float], directions: str) -> None:
    climber, moved = HillClimber(0.4), ""
    for rate in rates:
        before = climber.window
        climber.adapt(rate)
        moved += "+" if climber.window > before else "-"
    assert moved == directions


def test_the_climber_comes_to_rest_and_runs_when_the_work_changes() -> None:
    climber = HillClimber(0.4)
    steps = []
    for n in range(300):
        before = climber.window
        climber.adapt(0.5 + 0.001 * (n % 2))
        steps.append(abs(climber.window - before))
    assert steps[-1] < 0.001
    before = climber.window
    climber.adapt(0.2)
    assert abs(climber.window - before) == pytest.approx(STEP_FIRST)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_the_window_stays_within_its_bounds(rates: list[float]) -> None:
    climber = HillClimber(WINDOW_MIN)
    for rate in rates:
        climber.adapt(rate)
        assert WINDOW_MIN <= climber.window <= WINDOW_MAX


def test_work_that_moves_on_gets_a_larger_window_and_more_of_it_finds_its_entity() -> None:
    """Ids near a front that moves: an id that is used is used again soon, and then no more."""
    dice = random.Random(3)
    uses = [f"w{max(0, int(n / 10 - dice.expovariate(1 / 80)))}" for n in range(60_000)]
    hits = {}
    for climbs in (True, False):
        policy = CompositePolicy(100, 0.01, 0.8)
        if not climbs:
            policy.measure = lambda messages, starts: None  # type: ignore[method-assign]
        memory = PolicyMemory(policy, 100)
        memory.use(*uses)
        hits[climbs] = memory.hits / len(uses)
    assert hits[True] > hits[False] + 0.03
