"""Virtual time: a queue of actions, run in the order of their times.

Actions due at the same time run in the order in which they were scheduled. Nothing else moves time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """A clock that jumps to the next action."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    @property
    def empty(self) -> bool:
        """True if no action is scheduled."""
        return not self._queue

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Schedule the action at that time."""
        heapq.heappush(self._queue, (when, next(self._order), action))

    def later(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule the action in `delay` seconds."""
        self.at(self.now + delay, action)

    def due_by(self, end: float) -> bool:
        """True if an action is scheduled at that time or before."""
        return bool(self._queue) and self._queue[0][0] <= end

    def step(self) -> None:
        """Run the next action."""
        at, _, action = heapq.heappop(self._queue)
        if at > self.now:
            self.now = at
        action()

    def run(self, seconds: float) -> None:
        """Run the actions of the next `seconds`."""
        end = self.now + seconds
        while self.due_by(end):
            self.step()
        self.now = end
