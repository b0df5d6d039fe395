"""A histogram: how often something took how long, by upper bounds that are fixed from the start.

A histogram counts since its process started. `HistogramWindow` has recent counts: it keeps copies
of the counts, and subtracts the oldest one, so that an observation costs no more.

An observation costs one binary search and two additions. It may have a weight: a sample that stands
for a hundred messages counts as a hundred, so the counts of a sampled histogram are estimates of
the counts of all messages.

Source: docs/reference/metrics.md; B.150.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LATENCY_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
"""Seconds, from a handler that only adds to a mailbox that stands still."""


class Histogram:
    """Counts by `bounds`, in ascending order; values above all of them are counted last. `counts`
    and `sum` may be read at any time, in the thread that observes."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value at the first bound that it does not exceed, `weight` times."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def observe_all(self, values: Sequence[float]) -> None:
        """Count each value once."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)

    @property
    def count(self) -> int:
        """Observations, each by its weight."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound as text, `+Inf` last, and how many values do not exceed it."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))

    def quantile(self, part: float) -> float:
        """Return the value that this part of the observations does not exceed, 0 without any. It is
        interpolated within its bucket; above the last bound it is that bound."""
        rank, below = part * self.count, 0
        for at, (count, bound) in enumerate(zip(self.counts, self.bounds, strict=False)):
            if count and below + count >= rank:
                least = self.bounds[at - 1] if at else 0.0
                return least + (bound - least) * max(0.0, rank - below) / count
            below += count
        return self.bounds[-1] if self.count else 0.0

    @property
    def mean(self) -> float:
        """The mean of the observations, 0 without any."""
        return self.sum / self.count if self.count else 0.0

    def add(self, other: Histogram) -> None:
        """Add the observations of another histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class HistogramWindow(Generic[K]):
    """The observations since the oldest of the last `marks` marks."""

    def __init__(self, marks: int) -> None:
        self._marks: deque[dict[K, tuple[list[int], float]]] = deque(maxlen=marks)

    def mark(self, histograms: Mapping[K, Histogram]) -> None:
        """Copy the counts of all histograms, by their keys."""
        self._marks.append({key: (list(h.counts), h.sum) for key, h in histograms.items()})

    def recent(self, key: K, histogram: Histogram) -> Histogram:
        """Return a histogram's counts since the oldest mark; all of it if it is younger."""
        recent = Histogram(histogram.bounds)
        counts, total = self._marks[0].get(key, ([], 0.0)) if self._marks else ([], 0.0)
        before = counts or [0] * len(histogram.counts)
        recent.counts = [now - then for now, then in zip(histogram.counts, before, strict=True)]
        recent.sum = histogram.sum - total
        return recent
