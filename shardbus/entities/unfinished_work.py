"""Answers behind which work has not been done.

A call of a function with `async` or `yield` in it only makes an object; the body runs when that is
awaited or iterated. A plain function may return such an object: a decorator that calls an async
handler, `receive` that returns `self.later()`, a lambda, a client whose queries are awaitable. To
drop it, as the answer of a message that was sent without an ask, would report success for work that
never began.

    awaitable (coroutine, future, any object with `__await__`)   the runner awaits it; its result
                                                                 is the answer
    generator, async generator, context manager of contextlib    the handler fails with TypeError

The declaration finds most of them (`shardbus.handlers`). It also finds handlers that can return no
such object, because every `return` in them has an attribute, a constant or the result of an
operator (`returns_values`). For the others the runner tests the class of each answer that is not
None.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import FunctionType
from typing import Any

FINISHED = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""Classes of most answers."""

VALUES = frozenset(
    {
        "BINARY_OP",
        "BUILD_LIST",
        "BUILD_MAP",
        "BUILD_STRING",
        "BUILD_TUPLE",
        "COMPARE_OP",
        "CONTAINS_OP",
        "IS_OP",
        "LOAD_ATTR",
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "UNARY_NEGATIVE",
        "UNARY_NOT",
    }
)
"""Instructions whose result is no object that was made by a call."""


def returns_values(function: object) -> bool:
    """True if every `return` of a function has the result of one of `VALUES`. Whatever is not
    known, also of a later Python, counts as a call. Nuitka lets `isinstance` take a compiled
    function for one of Python, and shows instructions for it that do not run."""
    if type(function) is not FunctionType:
        return False
    before = ""
    for instruction in dis.get_instructions(function):
        if instruction.opname == "RETURN_VALUE" and (
            before not in VALUES or instruction.is_jump_target
        ):
            return False
        before = instruction.opname
    return True


def is_unfinished(answer: object) -> bool:
    """True if an answer stands for work that has not been done."""
    cls = type(answer)
    return cls not in FINISHED and (hasattr(cls, "__await__") or _is_lazy(answer))


def _is_lazy(answer: object) -> bool:
    if isinstance(answer, Generator | AsyncGenerator):
        return True
    managers = (AbstractContextManager, AbstractAsyncContextManager)
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
    """Return a coroutine function that calls a function and awaits its result if it is
    awaitable."""

    @wraps(function, assigned=())
    async def call(entity: Any, *args: Any) -> Any:
        answer = function(entity, *args)
        return await finish(answer) if is_unfinished(answer) else answer

    return call
