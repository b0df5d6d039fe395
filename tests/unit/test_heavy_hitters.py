"""The sketch of frequent keys: bounded, never far off, and it forgets."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from shardbus.heavy_hitters import KEYS_MAX, HeavyHitters


def counted(keys: list[str]) -> HeavyHitters[str]:
    sketch = HeavyHitters[str]()
    for key in keys:
        sketch.add(key)
    return sketch


def test_few_keys_are_counted_exactly() -> None:
    sketch = counted(list("aaabbc"))
    assert sketch.total == 6
    assert sketch.top(2) == [("a", 3 / 6), ("b", 2 / 6)]
    assert HeavyHitters[str]().top(3) == []


@pytest.mark.parametrize("seed", range(20))
def test_of_many_keys_the_frequent_ones_are_found_and_none_is_overrated(seed: int) -> None:
    dice = Random(seed)
    keys = [f"rare-{dice.randrange(5000)}" for _ in range(8000)] + ["hot"] * 1500 + ["warm"] * 600
    dice.shuffle(keys)
    sketch, true = counted(keys), Counter(keys)
    top = sketch.top(3)
    assert [key for key, _ in top[:2]] == ["hot", "warm"]
    for key, part in top:
        assert part <= true[key] / len(keys) + 1e-9, "a part is a lower bound"
    assert top[0][1] >= true["hot"] / len(keys) - 1 / KEYS_MAX
    assert len(sketch._counts) <= KEYS_MAX


def test_a_weight_counts_as_so_many_occurrences() -> None:
    sketch = HeavyHitters[str]()
    sketch.add("a", 30)
    sketch.add("b", 10)
    assert (sketch.total, sketch.top(1)) == (40, [("a", 0.75)])


def test_what_was_counted_before_counts_half_and_is_forgotten_in_the_end() -> None:
    sketch = counted(["old"] * 8)
    sketch.halve()
    for _ in range(8):
        sketch.add("new")
    assert [key for key, _ in sketch.top(2)] == ["new", "old"]
    assert sketch.total == 12
    for _ in range(4):
        sketch.halve()
    assert sketch.top(2) == []
