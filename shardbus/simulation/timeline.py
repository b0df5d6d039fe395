"""Virtual time: a queue of actions, run in the order of their times, and the clocks of processes.

Actions due at the same time run in the order in which they were scheduled. Nothing else moves time.

A process reads two clocks, as on Linux. Both have its rate. The monotonic clock stands still while
the whole machine is suspended, the clock of the time since boot goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from weakref import WeakSet

from shardbus.tasks.answers import WatchedAnswer


class Timeline:
    """A clock that jumps to the next action."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self.answers: WeakSet[WatchedAnswer] | None = None
        """The answers of the asks on this timeline, if those that nothing awaits are sought."""

    @property
    def empty(self) -> bool:
        """True if no action is scheduled."""
        return not self._queue

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Schedule the action at that time."""
        heapq.heappush(self._queue, (when, next(self._order), action))

    def later(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule the action in `delay` seconds."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

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


WALL_OFFSET_S = 1e9
"""A right clock on the wall shows the world's time and this."""


class ProcessClock:
    """The clocks of one process. `rate`: their seconds per second of the world."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate
        self._stood = 0.0
        """World seconds for which the monotonic clock has stood still."""
        self._stands_since: float | None = None
        self.wall_offset = WALL_OFFSET_S
        """Seconds by which the clock on the wall is ahead of the world's time."""

    def monotonic(self, now: float) -> float:
        """Return the time of the monotonic clock at the world's time `now`."""
        at = now if self._stands_since is None else self._stands_since
        return (at - self._stood) * self.rate

    def boot_time(self, now: float) -> float:
        """Return the time of the clock that goes on while the machine is suspended."""
        return now * self.rate

    def stand_still(self, now: float) -> None:
        """Stop the monotonic clock."""
        if self._stands_since is None:
            self._stands_since = now

    def go_on(self, now: float) -> None:
        """Let the monotonic clock continue."""
        if self._stands_since is not None:
            self._stood += now - self._stands_since
            self._stands_since = None
