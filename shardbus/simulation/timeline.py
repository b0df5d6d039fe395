"""Virtual time: what is to happen, in the order in which it does.

Two things at one time happen in the order in which they were asked for. Nothing else moves time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """A clock that jumps to whatever comes next."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    @property
    def empty(self) -> bool:
        """True if nothing will ever happen again."""
        return not self._queue

    def later(self, delay: float, action: Callable[[], object]) -> None:
        """Do it after so many seconds."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def step(self) -> None:
        """The next thing that happens."""
        at, _, action = heapq.heappop(self._queue)
        if at > self.now:
            self.now = at
        action()

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.step()
        self.now = end
