"""The futures of asks: the uses that count, and the line of one that is not."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from inspect import currentframe
from typing import Any

import pytest

from shardbus.tasks.answers import WatchedAnswer, answers_of

Answer = asyncio.Future[Any]


async def awaited(answer: Answer) -> None:
    await answer


async def gathered(answer: Answer) -> None:
    await asyncio.gather(answer, return_exceptions=True)


async def read(answer: Answer) -> None:
    answer.result()


async def cancelled(answer: Answer) -> None:
    answer.cancel()


async def left_open(answer: Answer) -> None:
    """Without an outcome, as at the end of a process."""


@pytest.fixture
async def loop() -> Any:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    yield loop
    loop.set_debug(False)


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_an_answer_that_is_dropped_warns_with_the_line_of_the_ask(
    loop: asyncio.AbstractEventLoop, error: Exception | None
) -> None:
    answer = answers_of(loop)()
    here = currentframe()
    assert here is not None
    line = here.f_lineno - 3
    if error is None:
        answer.set_result(1)
    else:
        answer.set_exception(error)
        answer.exception()  # as the session does, so that asyncio does not log it
    held = [answer]
    del answer
    with pytest.warns(RuntimeWarning, match="was never awaited: write await") as warned:
        held.clear()
    assert (warned[0].filename, warned[0].lineno) == (__file__, line)


@pytest.mark.parametrize("use", [awaited, gathered, read])
async def test_an_answer_that_is_used_does_not_warn(
    loop: asyncio.AbstractEventLoop, use: Callable[[Answer], Awaitable[None]]
) -> None:
    answer = answers_of(loop)()
    answer.set_result(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await use(answer)
        del answer
        gc.collect()


@pytest.mark.parametrize("use", [cancelled, left_open])
async def test_an_ask_without_an_outcome_does_not_warn(
    loop: asyncio.AbstractEventLoop, use: Callable[[Answer], Awaitable[None]]
) -> None:
    answer = answers_of(loop)()
    await use(answer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del answer
        gc.collect()


@pytest.mark.parametrize("use", [awaited, cancelled])
async def test_at_the_end_only_an_ask_that_is_used_or_cancelled_does_not_warn(
    loop: asyncio.AbstractEventLoop, use: Callable[[Answer], Awaitable[None]]
) -> None:
    forgotten, answer = answers_of(loop)(), answers_of(loop)()
    assert isinstance(forgotten, WatchedAnswer)
    assert isinstance(answer, WatchedAnswer)
    with pytest.warns(RuntimeWarning, match="was never awaited") as warned:
        forgotten.warn_at_end()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forgotten.warn_at_end()  # once
        using = asyncio.ensure_future(use(answer))
        await asyncio.sleep(0)
        answer.warn_at_end()
        using.cancel()
    assert len(warned) == 1


async def test_without_debug_mode_the_futures_are_those_of_asyncio() -> None:
    loop = asyncio.get_running_loop()
    assert type(answers_of(loop)()) is asyncio.Future
    loop.set_debug(True)
    try:
        assert type(answers_of(loop)()) is WatchedAnswer
    finally:
        loop.set_debug(False)
