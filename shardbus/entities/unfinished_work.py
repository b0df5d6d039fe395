"""Answers behind which work has not been done.

A call of a function with `async` or `yield` in it only makes an object; the body runs when that is
awaited or iterated. A plain function may return such an object: a decorator that calls an async
handler, `receive` that returns `self.later()`, a lambda, a client whose queries are awaitable. To
drop it, as the answer of a message that was sent without an ask, would report success for work that
never began.

    awaitable (coroutine, future, any object with `__await__`)   the runner awaits it; its result
                                                                 is the answer
    generator, async generator, context manager of contextlib    the handler fails with TypeError

The declaration finds most of them (`declaration.handlers`). For the others the runner tests the
class of each answer that is not None, at a few nanoseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, cast

FINISHED = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""Classes of most answers."""


def is_unfinished(answer: object) -> bool:
    """True if an answer stands for work that has not been done."""
    cls = type(answer)
    return cls not in FINISHED and (hasattr(cls, "__await__") or _is_lazy(answer))


def _is_lazy(answer: object) -> bool:
    if isinstance(answer, Generator | AsyncGenerator):
        return True
    managers = AbstractContextManager | AbstractAsyncContextManager
    return type(answer).__module__ == "contextlib" and isinstance(answer, managers)


async def finish(answer: object) -> Any:
    """Do the work behind an answer, and return its result.

    Raises:
        TypeError: it cannot be awaited.
    """
    while is_unfinished(answer):
        if not inspect.isawaitable(answer):
            shown = type(answer).__name__.removeprefix("_")
            raise TypeError(
                f"the handler returned a {shown}, and nothing of its body has run: return a value,"
                " or write an async def without yield"
            )
        answer = await answer
    return answer


def finishing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls a function and awaits what that may return."""

    @wraps(function, assigned=())
    async def call(entity: Any, *args: Any) -> Any:
        answer = function(entity, *args)
        return await finish(answer) if is_unfinished(answer) else answer

    return call


def finisher(answer: object) -> Callable[..., Any]:
    """Return a coroutine function that does the work behind an answer."""

    async def call(entity: Any, *args: Any) -> Any:
        return await finish(cast("Awaitable[Any]", answer))

    return call
