"""The number of instances of a type, and the names of its rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.sharding.instances import Instances, instances_of, layout_with, row_of, split_row


@given(st.text(min_size=1, max_size=9), st.integers(1, 1000))
def test_a_row_is_split_as_it_was_made(shard: str, instance: int) -> None:
    assert split_row(row_of(shard, instance)) == (shard, instance)


@pytest.mark.parametrize("text", ["17", "17~", "17~0", "17~02", "17~x", "17~12345", "17~²", "~"])
def test_what_names_no_row_is_a_plain_shard(text: str) -> None:
    assert split_row(text) == (text, 0)


def test_S3_48_N_for_a_number_of_crashes_to_survive() -> None:
    half = Instances(survive=lambda n: (n - 1) // 2)
    assert [half.wanted(n, 0) for n in (1, 2, 3, 5, 10)] == [1, 1, 2, 3, 5]
    with pytest.raises(ConfigError, match=r"survive\(1\) is 1, not 0 to 0"):
        Instances(survive=lambda n: n)
    with pytest.raises(ConfigError, match=r"survive\(1000\) is 1000, not 0 to 999"):
        Instances(survive=lambda n: 1000 if n == 1000 else 0)


def test_N_is_within_its_bounds() -> None:
    three = Instances(exact=3)
    assert [three.wanted(n, 1e9) for n in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 3]
    by_load = Instances(most=4, per_instance=100.0)
    assert [by_load.wanted(9, load) for load in (0, 100, 101, 350, 1e9)] == [1, 1, 2, 4, 4]
    assert by_load.wanted(2, 1e9) == 2
    assert [by_load.bounded(9, n) for n in (0, 1, 3, 9)] == [1, 1, 3, 4]


def test_an_exact_number_follows_no_load() -> None:
    exact = Instances(exact=3, per_instance=1.0, busy_per_instance=1.0)
    assert (exact.follows_load, exact.timed) == (False, False)
    assert (Instances().follows_load, Instances().timed) == (False, False)
    for limit in ("per_instance", "busy_per_instance", "waiting_per_instance"):
        limits: dict[str, Any] = {limit: 1.0}
        instances = Instances(**limits)
        assert (instances.follows_load, instances.timed) == (True, limit == "busy_per_instance")


def test_what_is_expected_is_a_number_or_a_function_that_returns_one() -> None:
    assert Instances(per_instance=1.0, expected=50).expected_now() == 50
    loads: list[Any] = [7.5, -1, None, True]
    instances = Instances(per_instance=1.0, expected=lambda: loads.pop(0))
    assert instances.expected_now() == 7.5
    for _ in range(3):
        with pytest.raises(ConfigError, match="expected is"):
            instances.expected_now()
    with pytest.raises(ConfigError, match="expected failed: IndexError: pop from empty list"):
        instances.expected_now()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"most": 0}, "most is 0"),
        ({"most": 1001}, "most is 1001"),
        ({"most": True}, "no whole number"),
        ({"per_instance": -1}, "per_instance is -1"),
        ({"per_instance": float("nan")}, "per_instance is nan"),
        ({"busy_per_instance": "1"}, "busy_per_instance is '1'"),
        ({"waiting_per_instance": -0.5}, "waiting_per_instance is -0.5"),
        ({"per_instance": 1.0, "expected": -1}, "expected is -1"),
        ({"expected": 5.0}, "expected without per_instance"),
        ({"expected": lambda: 5.0}, "expected without per_instance"),
        ({"survive": 2}, "no function of nodes"),
        ({"survive": lambda n: -1}, "is -1"),
        ({"survive": lambda n: 0.5}, "is 0.5"),
        ({"survive": lambda n: 1 // (n - 1)}, "failed: ZeroDivisionError"),
    ],
)
def test_wrong_instances_are_refused(wrong: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Instances(**wrong)


def test_one_instance_is_none() -> None:
    assert instances_of("quote", None) is None
    assert instances_of("quote", 1) is None
    assert instances_of("quote", 3) == Instances(exact=3)
    for wrong in (0, -1, 1001, True, 2.0, "3"):
        with pytest.raises(ConfigError, match="'quote': instances is"):
            instances_of("quote", wrong)


def test_the_layout_says_that_there_are_rows_and_not_how_many() -> None:
    assert layout_with("crc32/100", None) == "crc32/100"
    assert layout_with("crc32/100", Instances(exact=3)) == "crc32/100~N"
    assert layout_with("crc32/100", Instances(exact=5)) == "crc32/100~N"
