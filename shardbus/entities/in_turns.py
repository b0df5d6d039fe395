"""Works through many entities, some in each turn of the loop, so that messages pass in between.

    add(entities) ──> visit(some) ──> other callbacks ──> visit(some) ──> ... ──> none is left

Work on every entity of a type, or on all of a shard, goes this way: a node with a million of them
would answer nothing for seconds otherwise. Things change between two turns, so a visit looks at
each entity anew.

Source: docs/performance.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class InTurns(Generic[T]):
    """Calls `visit` with up to `at_once` of the items that were added, in their order."""

    __slots__ = ("_at_once", "_loop", "_next", "_visit", "_waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, visit: Callable[[list[T]], object], at_once: int
    ) -> None:
        self._loop, self._visit, self._at_once = loop, visit, at_once
        self._waiting: deque[T] = deque()
        self._next: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        """True if items wait for a later turn."""
        return bool(self._waiting)

    def add(self, items: Iterable[T]) -> None:
        """Visit these, behind those that wait; the first of them at once, if none were visited in
        this turn: of many calls in one turn, as for each of many shards, only the first visits."""
        self._waiting.extend(items)
        if self._next is None and self._waiting:
            self._turn()

    def stop(self) -> None:
        """Visit no more."""
        self._waiting.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _turn(self) -> None:
        waiting, self._next = self._waiting, None
        some = [waiting.popleft() for _ in range(min(self._at_once, len(waiting)))]
        if some:
            self._next = self._loop.call_soon(self._turn)
            self._visit(some)
