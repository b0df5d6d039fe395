"""The futures of asks. In debug mode they find an answer that nothing has awaited.

An ask is sent when it is called, so a forgotten `await` fails silently: the handler runs, and its
answer or its error is dropped. A loop in debug mode (`PYTHONASYNCIODEBUG=1`, `python -X dev`,
`asyncio.run(..., debug=True)`) and the loops of the test kit make a `WatchedAnswer` for each ask.
It keeps the line of the call, and warns if it has an outcome and nothing has used it when it is
collected, or if nothing has used it when a test cluster ends: a test often ends before a forgotten
ask does. Any other loop makes plain futures of asyncio, exactly as without this module: messages
pay nothing.

Source: docs/how-to/send.md.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Generator
from functools import partial
from typing import Any
from weakref import WeakSet

ANSWERS = "answers"
"""The attribute of a loop of the test kit that has the answers of its asks."""
LIBRARY = __name__.partition(".")[0]
MEASURING = (f"{LIBRARY}.transport.", f"{LIBRARY}.routing.tra")
"""Modules that measure how long an answer takes, and do not use it."""
TEXT = "the answer of an ask was never awaited: write await, or .tell(...) if no answer is needed"


def answers_of(loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Future[Any]]:
    """Return a function that makes the future of an ask on this loop."""
    answers: WeakSet[WatchedAnswer] | None = getattr(loop, ANSWERS, None)
    if is_watched(loop):
        return partial(WatchedAnswer, loop, answers)
    return partial(asyncio.Future, loop=loop)


def is_watched(loop: asyncio.AbstractEventLoop) -> bool:
    """True for a loop in debug mode, and for one of the test kit."""
    return getattr(loop, ANSWERS, None) is not None or loop.get_debug()


class WatchedAnswer(asyncio.Future[Any]):
    """The future of an ask, with the line that asked."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answers: WeakSet[WatchedAnswer] | None
    ) -> None:
        super().__init__(loop=loop)
        self._used = False
        self._file, self._line = caller()
        if answers is not None:
            answers.add(self)

    def __await__(self) -> Generator[Any, None, Any]:
        self._used = True
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        adder = sys._getframe(1).f_globals.get("__name__", "")
        self._used = self._used or not adder.startswith(MEASURING)
        super().add_done_callback(*args, **kwargs)

    def result(self) -> Any:
        self._used = True
        return super().result()

    def warn_if_unused(self) -> None:
        """Warn once if it has an outcome that nothing has used."""
        if self.done():
            self.warn_at_end()

    def warn_at_end(self) -> None:
        """Warn once if nothing has used it, with or without an outcome."""
        if not self.cancelled() and not self._used:
            self._used = True
            warnings.warn_explicit(TEXT, RuntimeWarning, self._file, self._line)

    __del__ = warn_if_unused


def caller() -> tuple[str, int]:
    """Return the file and the line outside of this library that has made this call."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name != LIBRARY and not name.startswith(f"{LIBRARY}."):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
