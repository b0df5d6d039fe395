"""The answers to callers whose requests share a batch.

asyncio calls each waiter of a future back in a callback of its own, which takes the loop longer
than some waiters go on for. A batch settles its answers in one callback of the loop instead: each
answer calls its first waiter itself, in the context in which that one wants to be called, as the
loop would. Most waiters of a batch want the same one, so the callback runs in that of the first.
Further waiters, and what cancels an answer, take the loop's way.

Source: `asyncio.Future`, whose rules for callbacks it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context, copy_context
from typing import Any


class BatchAnswer(asyncio.Future[None]):
    """A future that `settle_soon` settles, outside of any task."""

    __slots__ = ("context", "waiter")
    waiter: Callable[[BatchAnswer], object] | None
    """The first waiter."""
    context: Context
    """The context to call it in, if there is one."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> BatchAnswer:
        """Return a new answer. A constructor in Python would cost as much again as the future."""
        answer = cls(loop=loop)
        answer.waiter = None
        return answer

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        if self.waiter is None and not self.done():
            self.waiter, self.context = fn, copy_context() if context is None else context
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        removed = 0
        if self.waiter is not None and self.waiter == fn:
            self.waiter, removed = None, 1
        return removed + super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            self.get_loop().call_soon(waiter, self, context=self.context)
        return True


def settle_soon(
    loop: asyncio.AbstractEventLoop,
    answers: Iterable[BatchAnswer],
    errors: Iterable[Exception | None],
) -> None:
    """Give the answers, each with its error, in the next turn of the loop."""
    answers = list(answers)
    waited = (answer.context for answer in answers if answer.waiter is not None)
    context = next(waited, None) or copy_context()
    pairs = zip(answers, errors, strict=True)
    loop.call_soon(_settle_all, loop, pairs, context, context=context)


def _settle_all(
    loop: asyncio.AbstractEventLoop,
    answers: Iterator[tuple[BatchAnswer, Exception | None]],
    context: Context,
) -> None:
    """Give the answers that are not cancelled, and call their first waiters. Runs in `context`. A
    waiter that raises does so as the callback of the loop that this is, and the answers behind it
    follow in the next turn."""
    try:
        for answer, error in answers:
            if answer.done():
                continue
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
            waiter = answer.waiter
            if waiter is not None:
                answer.waiter = None
                if answer.context is context:
                    waiter(answer)
                else:
                    answer.context.run(waiter, answer)
    except BaseException:
        loop.call_soon(_settle_all, loop, answers, context, context=context)
        raise
