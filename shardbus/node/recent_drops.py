"""The messages that a node has dropped in the last minute.

Drops are counted, and counters only grow. A sample of them every `PERIOD_S` costs nothing per
message; the difference to the oldest sample is the number dropped lately.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

PERIOD_S = 10
SAMPLES = 6

Drops = Mapping[tuple[str, str], int]
"""Messages that were dropped, by entity type and reason."""
Drop = tuple[str, str, int]
"""Entity type, or empty for frames; the reason; how many."""


class RecentDrops:
    """Samples the counters of one node, which `count` returns."""

    def __init__(self, count: Callable[[], Drops]) -> None:
        self._count = count
        self._samples: deque[Drops] = deque([{}], maxlen=SAMPLES + 1)

    def sample(self, tick: int) -> None:
        """Note the counters. Called every `PERIOD_S` seconds."""
        self._samples.append(self._count())

    def lately(self) -> list[Drop]:
        """Return type, reason and number of the messages dropped in the last minute."""
        before, now = self._samples[0], self._count()
        grown = ((*key, count - before.get(key, 0)) for key, count in now.items())
        return [row for row in grown if row[2] > 0]
