"""A histogram: how often something took how long, by upper bounds that are fixed from the start.

An observation costs one binary search and two additions. It may have a weight: a sample that stands
for a hundred messages counts as a hundred, so the counts of a sampled histogram are estimates of
the counts of all messages.

Source: docs/reference/metrics.md; B.150.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

LATENCY_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
"""Seconds, from a handler that only adds to a mailbox that stands still."""


class Histogram:
    """Counts by `bounds`, in ascending order; what exceeds all of them is counted last. `counts`
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

    @property
    def count(self) -> int:
        """Observations, each by its weight."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound as text, `+Inf` last, and how many values do not exceed it."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))
