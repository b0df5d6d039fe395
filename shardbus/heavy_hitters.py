"""The keys that occur most often in a stream, in bounded memory.

The *Space-Saving* sketch of Metwally, Agrawal and El Abbadi (2005): `KEYS_MAX` keys have a counter.
A key without one takes over the smallest counter, with its count, and remembers that count as its
possible error. So each count is at most its error too high, no error exceeds the total divided by
`KEYS_MAX`, and a key that occurs more often than that has a counter for certain.

`halve` makes old occurrences count less; called at even times, it limits the counts to the last few
periods.

Source: docs/how-to/operate.md; N.9.
"""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import Generic, TypeVar

KEYS_MAX = 64

K = TypeVar("K")


class HeavyHitters(Generic[K]):
    """Counts keys. `total` is the weight of all keys, those without a counter included."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: dict[K, tuple[float, float]] = {}
        """The count of a key, and its error."""
        self.total = 0.0

    def add(self, key: K, weight: float = 1.0) -> None:
        """Count a key `weight` times. Costs a pass over the counters for a key without one."""
        counts = self._counts
        self.total += weight
        count, error = counts.get(key, (0.0, 0.0))
        if not count and len(counts) >= KEYS_MAX:
            smallest = min(counts, key=counts.__getitem__)
            count = error = counts.pop(smallest)[0]
        counts[key] = count + weight, error

    def halve(self) -> None:
        """Let earlier occurrences count half. Keys whose count falls below 1 lose it."""
        self.total /= 2
        halves = ((key, count / 2, error / 2) for key, (count, error) in self._counts.items())
        self._counts = {key: (count, error) for key, count, error in halves if count >= 1}

    def top(self, most: int) -> list[tuple[K, float]]:
        """Return up to `most` keys, the most frequent first, with the part of the total that they
        have at least."""
        if not self.total:
            return []
        parts = (
            (key, (count - error) / self.total) for key, (count, error) in self._counts.items()
        )
        return nlargest(most, parts, key=itemgetter(1))
