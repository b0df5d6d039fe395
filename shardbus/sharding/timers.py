"""Named deadlines of one machine: a heap in which replaced and cancelled entries are skipped later.

A machine waits for many things and shows one `deadline()`. Setting a key again replaces its time.
Keys that are due at the same time come out in the order in which they were set, so that a trace
does not depend on hashing.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Deadlines by key."""

    __slots__ = ("_count", "_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, at: float) -> None:
        """Set the deadline of `key` to `at`, in place of an earlier one."""
        self._count += 1
        self._due[key] = self._count
        heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 4 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._due.pop(key, None)

    def deadline(self) -> float | None:
        """Return when the first key is due."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][1]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Remove and return every key that is due, the earliest first."""
        keys: list[Key] = []
        while (at := self.deadline()) is not None and at <= now:
            key = heappop(self._heap)[2]
            del self._due[key]
            keys.append(key)
        return keys
