"""The outcome of messages that are sent already, as the verbs of a client return it.

A message is sent when its verb is called. The caller may await the outcome, give it to a task or a
task group, or drop it: then the outcome of an ask is dropped, and a tell goes its way. A coroutine
can do only the first two, because its body runs when it is awaited; a future is refused by
`asyncio.create_task` and by task groups.

A verb that is called in another thread, as in `run_coroutine_threadsafe(client.call(...), loop)`,
sends when the client's loop takes up its result.

Source: docs/how-to/send.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class Sent(Coroutine[Any, Any, T_co]):
    """The outcome of messages that are sent. It may be used as a coroutine, and need not be."""

    __slots__ = ("_outcome", "_steps")

    cr_frame = cr_code = cr_await = None
    cr_running = False
    """Read by tools that inspect the coroutine of a task."""

    def __init__(self, outcome: Awaitable[T_co]) -> None:
        self._outcome = outcome
        self._steps: Generator[Any, Any, T_co] | None = None

    @property
    def cr_suspended(self) -> bool:
        """True if a task waits for the outcome."""
        return self._steps is not None

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._outcome.__await__()

    def send(self, value: Any) -> Any:
        """Go on, as a task does."""
        if self._steps is None:
            self._steps = self._outcome.__await__()
        return self._steps.send(value)

    def throw(
        self,
        kind: Any,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Raise an error in the waiting code, as a task does that is cancelled."""
        if self._steps is None:
            self._steps = self._outcome.__await__()
        raised: Any = kind if isinstance(kind, BaseException) else error or kind()
        return self._steps.throw(raised)

    def close(self) -> None:
        """Wait no more. The message stays sent."""
        if self._steps is not None:
            self._steps.close()


class Done(Sent[None]):
    """The outcome of tells for which there was room: one object for all, which has no state."""

    __slots__ = ()

    def __init__(self) -> None:
        """Wait for nothing."""

    @property
    def cr_suspended(self) -> bool:
        return False

    def __await__(self) -> Any:
        return iter(())

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(
        self,
        kind: Any,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        raised: Any = kind if isinstance(kind, BaseException) else error or kind()
        raise raised

    def close(self) -> None:
        """Do nothing."""


DONE = Done()


class OnceAwaited(Awaitable[T_co]):
    """Sends when it is awaited."""

    __slots__ = ("_send",)

    def __init__(self, send: Callable[[], Awaitable[T_co]]) -> None:
        self._send = send

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._send().__await__()


def awaited(verb: F) -> F:
    """Mark a function whose result is to be awaited. Libraries that check for `async def`, as web
    frameworks do for background tasks, call it in the loop then, and not in a thread."""
    mark: Callable[[F], F] | None = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:
        return mark(verb)
    marked: Any = verb  # Python 3.11
    marked._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)
    return verb


def copied(verb: F) -> F:
    """Return another function that does the same: a mark of one is not a mark of the other."""
    source: Any = verb
    copy: Any = FunctionType(
        source.__code__,
        source.__globals__,
        source.__name__,
        source.__defaults__,
        source.__closure__,
    )
    copy.__kwdefaults__ = source.__kwdefaults__
    functools.update_wrapper(copy, source)
    return cast("F", copy)
