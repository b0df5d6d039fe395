"""The outcomes of an ask that went to several instances.

`AllAnswers` collects one outcome of each instance. It is done when the last one is there; each part
has a deadline, so it ends. `FirstAnswer` asks one instance and, after a delay or if that fails, a
second one, which is picked then: when the first ask began, no other instance may have had a home.
The first reply or rejection counts; the other ask is given up, and its reply, if it
comes, is ignored. An error counts only when no reply can come any more; then the first error that
is not definite is the outcome, because a handler may have begun, else the first one.

Source: docs/partitions.md; Dean and Barroso, "The Tail at Scale" (2013).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

from shardbus.errors import Rejection, is_definite
from shardbus.transport.asks import set_error


class HedgeCounter(Protocol):
    """Counts second asks."""

    hedged: int


class AllAnswers:
    """Collects the outcomes of all instances into a dict of node to reply or error, which becomes
    the result of `answer`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]) -> None:
        self._loop, self._answer = loop, answer
        self._outcomes: dict[str, Any] = {}
        self._parts: dict[asyncio.Future[Any], str | Callable[[], str]] = {}
        self._begun = False

    def expect(self, name: str | Callable[[], str], part: asyncio.Future[Any]) -> None:
        """Wait for this part. `name`: its key, or a function that is called with the outcome."""
        self._parts[part] = name
        part.add_done_callback(self._on_part)

    def add(self, name: str, outcome: object) -> None:
        """Add an outcome. If there is one of that name, as of two instances that change places, it
        gets a name of its own."""
        key, n = name, 1
        while key in self._outcomes:
            n += 1
            key = f"{name} ({n})"
        self._outcomes[key] = outcome

    def begin(self) -> None:
        """Wait for the parts: no further one is added."""
        self._begun = True
        self._answer.add_done_callback(self._on_answer)
        self._check()

    def _on_part(self, part: asyncio.Future[Any]) -> None:
        name = self._parts.pop(part, None)
        if name is None or part.cancelled():
            return
        error = part.exception()
        self.add(name if isinstance(name, str) else name(), error if error else part.result())
        self._check()

    def _check(self) -> None:
        if self._begun and not self._parts and not self._answer.done():
            self._answer.set_result(dict(sorted(self._outcomes.items())))

    def _on_answer(self, answer: asyncio.Future[Any]) -> None:
        """Give up the parts: the caller has cancelled the ask."""
        for part in list(self._parts):
            part.cancel()


class FirstAnswer:
    """Asks instance `first`, and after `delay` seconds, or when that fails, another one. `ask(k)`
    asks instance k. `other()` returns the instance for the second ask, None if there is none now.
    `ends`: the loop's time after which no ask begins."""

    def __init__(
        self,
        counter: HedgeCounter,
        answer: asyncio.Future[Any],
        ask: Callable[[int], asyncio.Future[Any]],
        first: int,
        other: Callable[[], int | None],
        delay: float,
        ends: float = math.inf,
    ) -> None:
        self._counter, self._answer, self._ask, self._ends = counter, answer, ask, ends
        self._other = other
        self._hedged = False
        self._open: set[asyncio.Future[Any]] = set()
        self._error: BaseException | None = None
        answer.add_done_callback(self._on_answer)
        self._timer = answer.get_loop().call_later(delay, self._hedge)
        self._begin(first)

    def _begin(self, instance: int) -> None:
        ask = self._ask(instance)
        self._open.add(ask)
        ask.add_done_callback(self._on_outcome)

    def _hedge(self) -> None:
        if self._hedged or self._answer.done():
            return
        if self._answer.get_loop().time() >= self._ends:
            return
        second = self._other()
        if second is None:
            return
        self._hedged = True
        self._counter.hedged += 1
        self._begin(second)

    def _on_outcome(self, ask: asyncio.Future[Any]) -> None:
        self._open.discard(ask)
        if ask.cancelled() or self._answer.done():
            return
        error = ask.exception()
        if error is None:
            self._answer.set_result(ask.result())
            return
        if isinstance(error, Rejection):  # an answer, too
            set_error(self._answer, error)
            return
        if self._error is None or (is_definite(self._error) and not is_definite(error)):
            self._error = error
        self._hedge()
        if not self._open and not self._answer.done():
            set_error(self._answer, self._error)

    def _on_answer(self, answer: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        for ask in list(self._open):
            ask.cancel()
