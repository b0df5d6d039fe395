"""Versions of an application: every text has an order, and usual versions the right one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.sharding.versions import LENGTH_MAX, order_of

RISING = [
    "0.0.0-alpha",
    "nightly",
    "0",
    "0.0.1",
    "0.9.9",
    "1.0.0-0",
    "1.0.0-1",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0rc1",
    "1.0.0-rc.2",
    "1.0.0-RC10",
    "1.0.0",
    "1.0.0.1",
    "1.0.1",
    "1.2",
    "1.9",
    "1.10.0-rc.1",
    "1.10",
    "2",
    "10",
    "2024.12.1",
    "20241201",
]


@pytest.mark.parametrize(("older", "newer"), [*pairwise(RISING)])
def test_B64_versions_rise(older: str, newer: str) -> None:
    assert order_of(older) < order_of(newer)


@pytest.mark.parametrize(
    "same",
    [
        ("1", "1.0", "1.0.0", "v1.0", "V1", " 1.0 ", "1.0+build.7", "1.0.0+9f2c"),
        ("1.0-rc.1", "1.0.0-RC1", "1.0rc1", "1.0.0-rc.1+linux"),
        ("", "0", "0.0.0"),
    ],
)
def test_B64_ignored_parts_of_a_version_make_no_difference(same: tuple[str, ...]) -> None:
    assert len({order_of(version) for version in same}) == 1


@given(st.text() | st.from_regex(r"v?[0-9.]{0,9}[-+a-z0-9.]{0,9}"), st.text())
def test_every_text_has_an_order(first: str, other: str) -> None:
    a, b = order_of(first), order_of(other)
    assert (a < b) + (a == b) + (a > b) == 1


def test_only_the_start_of_a_long_version_is_compared() -> None:
    assert order_of("9" * 100_000) == order_of("9" * LENGTH_MAX)
