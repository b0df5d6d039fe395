"""Context variables that a coroutine sets for a part of its run."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar, Token
from typing import TypeVar

T = TypeVar("T")


def restore(variable: ContextVar[T], token: Token[T]) -> None:
    """Give a variable its former value. A coroutine that nothing refers to any more, as after the
    kill of a node in a test, ends in another context, which has nothing to restore."""
    with contextlib.suppress(ValueError):
        variable.reset(token)
