"""Histograms: where a value is counted, and the effect of a weight."""

from __future__ import annotations

import pytest

from shardbus.histograms import LATENCY_BOUNDS, Histogram, HistogramWindow


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


def test_a_quantile_lies_within_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert (histogram.quantile(0.99), histogram.mean) == (0.0, 0.0)
    for value in (0.5, 1.5, 1.6, 1.7):
        histogram.observe(value)
    assert histogram.quantile(0.25) == 1.0
    assert histogram.quantile(0.625) == pytest.approx(1.5)
    assert histogram.quantile(1.0) == 2.0
    histogram.observe(9.0, 100)
    assert histogram.quantile(0.99) == 4.0, "the last bound, however long it took"
    assert histogram.mean == pytest.approx(905.3 / 104)


def test_a_window_forgets_what_was_counted_before_its_oldest_mark() -> None:
    window, histogram = HistogramWindow[str](2), Histogram((1.0,))
    histogram.observe(0.5, 10)
    assert window.recent("a", histogram).counts == [10, 0], "no mark yet"
    window.mark({"a": histogram})
    histogram.observe(3.0, 2)
    recent = window.recent("a", histogram)
    assert (recent.counts, recent.sum) == ([0, 2], 6.0)
    assert window.recent("b", histogram).counts == [10, 2], "younger than the mark"
    window.mark({"a": histogram})
    window.mark({"a": histogram})
    assert window.recent("a", histogram).count == 0
    assert histogram.count == 12, "the histogram itself forgets nothing"


def test_histograms_add_up() -> None:
    first, other = Histogram((1.0,)), Histogram((1.0,))
    first.observe(0.5, 2)
    other.observe(2.0)
    first.add(other)
    assert (first.counts, first.sum) == ([2, 1], 3.0)
