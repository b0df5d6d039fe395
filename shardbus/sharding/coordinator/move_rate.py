"""How many moves may begin for balance within a minute.

The bound on moves in flight keeps a move short; this one keeps the whole from being felt where each
move costs something that is not over with it, such as a cold cache. It slides: what began counts
for the sixty seconds after. Only balance is slowed. A coordinator counts anew when it begins.

Source: N.10; C.7, C.31.
"""

from __future__ import annotations

from collections import deque

MINUTE = 60.0


class MoveRateLimit:
    """Moves of the last minute. `most` 0 is any number."""

    __slots__ = ("_begun", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: deque[float] = deque()

    def room(self, now: float) -> int | None:
        """How many may begin now; None for any number."""
        while self._begun and self._begun[0] + MINUTE <= now:
            self._begun.popleft()
        return self._most - len(self._begun) if self._most else None

    def took(self, moves: int, now: float) -> None:
        """So many begin now."""
        if self._most:
            self._begun.extend([now] * moves)

    def deadline(self) -> float | None:
        """When there is room again; None if there is."""
        full = self._most and len(self._begun) >= self._most
        return self._begun[0] + MINUTE if full else None
