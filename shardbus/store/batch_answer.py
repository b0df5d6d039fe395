"""The answers to callers whose requests share a batch.

asyncio calls each waiter of a future back in a callback of its own, which takes the loop longer
than some waiters go on for. A batch settles its answers in one callback of the loop instead: each
answer calls its first waiter itself, in the context in which that one wants to be called, as the
loop would. Further waiters, and what cancels an answer, take the loop's way.

Source: `asyncio.Future`, whose rules for callbacks it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from typing import Any


class BatchAnswer(asyncio.Future[None]):
    """A future that `settle` settles, outside of any task."""

    __slots__ = ("_first",)
    _first: tuple[Context, Callable[[BatchAnswer], object]] | None
    """The first waiter, and the context to call it in."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> BatchAnswer:
        """Return a new answer. A constructor in Python would cost as much again as the future."""
        answer = cls(loop=loop)
        answer._first = None
        return answer

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        if self._first is None and not self.done():
            self._first = (copy_context() if context is None else context, fn)
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        first, removed = self._first, 0
        if first is not None and first[1] == fn:
            self._first, removed = None, 1
        return removed + super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        first, self._first = self._first, None
        if first is not None:
            self.get_loop().call_soon(first[1], self, context=first[0])
        return True

    def settle(self, error: Exception | None) -> None:
        """Give the answer, unless it is cancelled, and call the first waiter."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        first, self._first = self._first, None
        if first is not None:
            first[0].run(first[1], self)


def settle_all(
    loop: asyncio.AbstractEventLoop, answers: Iterator[tuple[BatchAnswer, Exception | None]]
) -> None:
    """Settle answers, each with its error. A waiter that raises does so as the callback of the loop
    that this is, and the answers behind it follow in the next turn."""
    try:
        for answer, error in answers:
            answer.settle(error)
    except BaseException:
        loop.call_soon(settle_all, loop, answers)
        raise
