"""Pauses between attempts that double with each failure in a row."""

from __future__ import annotations

DOUBLINGS_MAX = 30


def doubling(first: float, limit: float, failures: int) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row, from 1: `first`, then
    twice as long each time, at most `limit`."""
    return min(limit, first * 2.0 ** min(failures - 1, DOUBLINGS_MAX))
