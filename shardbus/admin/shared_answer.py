"""An answer that several readers share: the same request of ten open pages reaches the cluster
once.

    get ──> being made: wait for it ──> fresh: the same again ──> old, or failed: made anew

Source: docs/reference/http.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Makes an answer at most once in `fresh_s` seconds."""

    def __init__(self, make: Callable[[], Awaitable[T]], fresh_s: float) -> None:
        self._make, self._fresh_s = make, fresh_s
        self._making: asyncio.Future[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """Return the answer. A reader that is cancelled leaves it to the others.

        Raises:
            Exception: the error of making the answer, for every reader that waited for it.
        """
        loop = asyncio.get_running_loop()
        making = self._making
        if making is None or (making.done() and (_failed(making) or loop.time() >= self._until)):
            making = self._making = asyncio.ensure_future(self._make())
            making.add_done_callback(_failed)  # it is no defect if no reader is left
            self._until = loop.time() + self._fresh_s
        return await asyncio.shield(making)


def _failed(made: asyncio.Future[T]) -> bool:
    return made.cancelled() or made.exception() is not None
