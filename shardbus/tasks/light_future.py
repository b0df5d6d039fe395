"""A future that is cheaper than asyncio's where code of ours waits for it.

It behaves as `asyncio.Future` and is none: to make one, to settle it and to read its outcome takes
asyncio longer than all that a save needs. Tasks await it, and `gather`, `wait`, `wait_for` and
`shield` take it: they recognize a future by an attribute. Its owner may read and set the outcome in
attributes. An error that is never read is not logged.

Source: `asyncio.Future` of Python 3.11 to 3.14, whose rules for callbacks it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any

Callback = Callable[[Any], object]


class LightFuture:
    """A future of a loop. A subclass makes new ones, and sets `_loop`, `_callbacks`, `settled` and
    `error`: a constructor in Python would take twice as long."""

    __slots__ = ("_callbacks", "_loop", "error", "settled", "value")
    _loop: asyncio.AbstractEventLoop
    _callbacks: list[tuple[Callback, Context]] | None
    """The callbacks of the loop once there is an outcome, each in its context."""
    settled: bool
    """There is an outcome: `error`, or `value` without one."""
    error: BaseException | None
    value: Any

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def _asyncio_future_blocking(self) -> bool:
        """By this asyncio recognizes a future, and that a task's future was awaited."""
        return True

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, blocks: bool) -> None: ...

    def __await__(self) -> Generator[Any, Any, Any]:
        """Hand the future to the task that waits for it."""
        if not self.settled:
            yield self
        return self.result()

    __iter__ = __await__

    def done(self) -> bool:
        return self.settled

    def cancelled(self) -> bool:
        return issubclass(type(self.error), asyncio.CancelledError)  # the class may lie

    def result(self) -> Any:
        """Return the value.

        Raises:
            InvalidStateError: there is no outcome yet. Any other: the error.
        """
        if not self.settled:
            raise asyncio.InvalidStateError("Result is not set.")
        if self.error is not None:
            raise self.error
        return self.value

    def exception(self) -> BaseException | None:
        """Return the error, None without one. Raises as `result` if there is no outcome yet, or if
        the future is cancelled."""
        if not self.settled or self.cancelled():
            self.result()
        return self.error

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        context = copy_context() if context is None else context
        if self.settled:
            self._loop.call_soon(fn, self, context=context)
        elif self._callbacks is None:
            self._callbacks = [(fn, context)]
        else:
            self._callbacks.append((fn, context))

    def remove_done_callback(self, fn: Callback, /) -> int:
        callbacks = self._callbacks or []
        self._callbacks = [entry for entry in callbacks if entry[0] != fn] or None
        return len(callbacks) - len(self._callbacks or ())

    def cancel(self, msg: Any | None = None) -> bool:
        if self.settled:
            return False
        self.settle(None, asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Give the outcome, and let the loop call back."""
        self.value, self.error, self.settled = value, error, True
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback, context in callbacks:
                self._loop.call_soon(callback, self, context=context)

    @property
    def _cancel_message(self) -> Any | None:
        """For `gather`, which reads the message of a cancelled future."""
        return self.error.args[0] if self.error is not None and self.error.args else None

    def _make_cancelled_error(self) -> BaseException:
        """For `gather`, which raises this error of a cancelled future."""
        return self.error or asyncio.CancelledError()
