"""Histograms: where a value is counted, and what a weight does."""

from __future__ import annotations

import pytest

from shardbus.histograms import LATENCY_BOUNDS, Histogram


def test_a_value_is_counted_at_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [("1", 2), ("2", 4), ("+Inf", 5)]
    assert (histogram.count, histogram.sum) == (5, 7.5)


def test_a_sample_counts_for_all_that_it_stands_for() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 10)
    histogram.observe(3.0, 2)
    assert (histogram.counts, histogram.sum) == ([10, 2], 11.0)


def test_bounds_of_latencies_ascend() -> None:
    assert list(LATENCY_BOUNDS) == sorted(set(LATENCY_BOUNDS))
    assert Histogram().cumulative()[-1] == ("+Inf", pytest.approx(0))
