"""The answers to callers whose requests share a batch.

asyncio calls each waiter of a future back in a callback of its own, which takes the loop longer
than some waiters go on for. A batch settles its answers in one callback of the loop instead: each
answer calls its first waiter itself, in that waiter's own context, as the loop would. Most waiters
of a batch have the same context, so the callback runs in the first one's. Further waiters, and the
cancellation of an answer, take the loop's way.

A waiter may be a step of a task, so answers are settled in a callback of the loop, outside of any
task.

Source: `asyncio.Future`, whose rules for callbacks it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from contextvars import Context, copy_context
from typing import Any

from shardbus.tasks.light_future import Callback, LightFuture


class BatchAnswer(LightFuture):
    """A future without a value, which `settle` settles."""

    __slots__ = ("waiter", "waiter_context")
    waiter: Callback | None
    """The first waiter, as long as it is not called."""
    waiter_context: Context
    """The context to call it in, if there is one."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> BatchAnswer:
        """Return a new answer."""
        answer = cls()
        answer._loop, answer.settled = loop, False
        answer.error = answer.value = answer.waiter = answer._callbacks = None
        return answer

    def __await__(self) -> Generator[Any, Any, None]:
        """Hand the answer to the task that waits, which throws its error. As there is no value, no
        generator has to return it, which would take longer."""
        if self.settled:
            self.result()
        return iter(() if self.settled else (self,))  # type: ignore[return-value]

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        if self.waiter is None and self._callbacks is None and not self.settled:
            self.waiter = fn
            self.waiter_context = copy_context() if context is None else context
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callback, /) -> int:
        removed = 0
        if self.waiter is not None and self.waiter == fn:
            self.waiter, removed = None, 1
        return removed + super().remove_done_callback(fn)

    def settle(self, value: Any, error: BaseException | None) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            self._loop.call_soon(waiter, self, context=self.waiter_context)
        super().settle(value, error)


def settle(
    loop: asyncio.AbstractEventLoop,
    answers: Iterable[BatchAnswer],
    errors: Iterable[Exception | None],
) -> None:
    """Give the answers, each with its error. Must be the last step of a callback of the loop,
    because a waiter that raises does so in it."""
    answers = list(answers)
    waited = (answer.waiter_context for answer in answers if answer.waiter is not None)
    context = next(waited, None) or copy_context()
    context.run(_settle_all, loop, zip(answers, errors, strict=True), context)


def settle_soon(
    loop: asyncio.AbstractEventLoop,
    answers: Iterable[BatchAnswer],
    errors: Iterable[Exception | None],
) -> None:
    """Give the answers, each with its error, in the next turn of the loop."""
    loop.call_soon(settle, loop, answers, errors)


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
            if answer.settled:
                continue
            waiter, answer.waiter = answer.waiter, None
            if answer._callbacks is None:
                answer.settled, answer.error = True, error
            else:
                answer.settle(None, error)
            if waiter is not None:
                if answer.waiter_context is context:
                    waiter(answer)
                else:
                    answer.waiter_context.run(waiter, answer)
    except BaseException:
        loop.call_soon(_settle_all, loop, answers, context, context=context)
        raise
