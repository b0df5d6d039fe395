"""Pauses between attempts: they double, and have a limit."""

from __future__ import annotations

import pytest

from shardbus.backoff import doubling


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0), (10_000, 3.0)]
)
def test_the_pause_doubles_with_each_failure_up_to_the_limit(failures: int, pause: float) -> None:
    assert doubling(0.5, 3.0, failures) == pause
