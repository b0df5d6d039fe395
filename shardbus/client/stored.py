"""The stored states, for a client: the ids of a type's entities that have a state, and a call of
each.

A client has no store. It asks its contact for one page of ids after the other, so it keeps one
page, whatever their number. A cursor is valid at every node, so a lost contact costs nothing but
the repetition of a page. A node that makes lists for others already says so, and is asked again.

`for_each` runs a bounded number of calls at a time and begins a bounded number a second. A call
that fails is reported with its id, and the others go on.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import msgspec

from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    LocalProtocolError,
    NodeLost,
    RequestError,
    ShardBusError,
)

PAGE = 500
"""Ids, about, of one page."""
AGAIN_S = 0.1
"""Before a page is requested again."""
BURST_S = 0.1
"""Time for which calls that came too late are made up for."""
ERRORS_MAX = 1000
"""Errors that a result holds; it counts the others."""

OnError = Callable[[str, Exception], object]
"""Takes the id and the error of a call that has failed."""
AskPage = Callable[[str], Awaitable[tuple[list[str], str | None]]]
"""Asks the contact for the page after a cursor, which is empty at first."""


class ForEach(msgspec.Struct):
    """The outcome of `for_each`: how many calls ended well, how many failed, and the errors of the
    first `ERRORS_MAX` that failed, by entity id."""

    done: int = 0
    failed: int = 0
    errors: dict[str, Exception] = msgspec.field(default_factory=dict)

    def note(self, entity_id: str, error: Exception, report: OnError | None) -> None:
        """Note a call that has failed, and report it."""
        self.failed += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors[entity_id] = error
        if report is not None:
            report(entity_id, error)


async def stored_ids(ask_page: AskPage, within: float) -> AsyncIterator[str]:
    """Yield ids page by page; each within a page once. A page may take `within` seconds.

    Raises:
        AskTimeout, NodeLost, BufferFull: no node has answered in time. No error is definite after
            the first page: its entities may have been called.
    """
    loop, cursor = asyncio.get_running_loop(), ""
    while True:
        try:
            ids, following = await _insist(ask_page, cursor, loop.time() + within)
        except RequestError as error:
            error.definite = error.definite and not cursor
            raise
        for entity_id in dict.fromkeys(ids):
            yield entity_id
        if following is None:
            return
        cursor = following


async def _insist(ask_page: AskPage, cursor: str, end: float) -> tuple[list[str], str | None]:
    """Request a page until a node answers, at most until `end`, or until the client closes."""
    trouble: RequestError | None = None
    while True:
        try:
            return await ask_page(cursor)
        except LocalProtocolError as closed:
            raise trouble or closed from None
        except (AskTimeout, NodeLost, BufferFull) as error:
            trouble = error
            if asyncio.get_running_loop().time() + AGAIN_S >= end:
                raise
            await asyncio.sleep(AGAIN_S)


def check_bounds(rate: float, at_once: int = 1) -> None:
    """Check the bounds of a `for_each`.

    Raises:
        ConfigError: one is not positive.
    """
    if not rate > 0 or at_once < 1:
        raise ConfigError(f"rate is {rate:g} and at_once {at_once}: both must be positive")


def call_each_here(
    ids: Iterable[str],
    call: Callable[[str], object],
    *,
    rate: float,
    on_error: OnError | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> ForEach:
    """Call `call` with each id in this thread, one after the other, at most `rate` a second. Raises
    as `call_each`."""
    check_bounds(rate)
    result, due = ForEach(), clock()
    for entity_id in ids:
        if due > clock():
            sleep(due - clock())
        due = max(due, clock() - BURST_S) + 1 / rate
        try:
            call(entity_id)
            result.done += 1
        except ShardBusError as error:
            result.note(entity_id, error, on_error)
    return result


async def call_each(
    ids: AsyncIterator[str],
    call: Callable[[str], Awaitable[object]],
    *,
    rate: float,
    at_once: int,
    on_error: OnError | None,
) -> ForEach:
    """Call `call` with each id: at most `rate` begin per second, and `at_once` run at a time.

    Raises:
        ConfigError: a bound is not positive. ShardBusError: the list of ids ended early.
    """
    check_bounds(rate, at_once)
    loop, turn, result = asyncio.get_running_loop(), asyncio.Lock(), ForEach()
    due = loop.time()

    async def next_id() -> str | None:
        """Return the next id when its time has come, None at the end."""
        nonlocal due
        async with turn:
            entity_id = await anext(ids, None)
            if entity_id is not None:
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                due = max(due, loop.time() - BURST_S) + 1 / rate
            return entity_id

    async def work() -> None:
        while (entity_id := await next_id()) is not None:
            try:
                await call(entity_id)
                result.done += 1
            except ShardBusError as error:
                result.note(entity_id, error, on_error)

    workers = [asyncio.ensure_future(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return result
