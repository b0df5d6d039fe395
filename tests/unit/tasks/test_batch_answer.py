"""Answers of a batch are futures like others, whose first waiters go on in one callback."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest

from shardbus.tasks.batch_answer import BatchAnswer, settle_soon
from tests.waiting import turns

PLACE: ContextVar[str] = ContextVar("place", default="outside")


def settle(*answers: tuple[BatchAnswer, Exception | None]) -> None:
    loop = asyncio.get_running_loop()
    settle_soon(loop, [answer for answer, _ in answers], [error for _, error in answers])


@pytest.fixture
async def answers() -> list[BatchAnswer]:
    return [BatchAnswer.of(asyncio.get_running_loop()) for _ in range(3)]


async def test_tasks_that_wait_get_the_results_and_the_errors(answers: list[BatchAnswer]) -> None:
    waiting = [asyncio.ensure_future(_wait(answer)) for answer in answers]
    await turns(1)
    settle((answers[0], None), (answers[1], ValueError("bad")), (answers[2], None))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes[::2] == [None, None]
    assert isinstance(outcomes[1], ValueError)


async def test_first_waiters_go_on_in_the_callback_and_others_behind_it(
    answers: list[BatchAnswer],
) -> None:
    seen: list[str] = []
    for name, answer in zip("abc", answers, strict=True):
        answer.add_done_callback(partial(_note, seen, name))
    answers[0].add_done_callback(lambda _: seen.append("second"))
    settle(*((answer, None) for answer in answers))
    await turns(1)
    assert seen == ["a", "b", "c"]
    await turns(1)
    assert seen == ["a", "b", "c", "second"]


async def test_a_waiter_is_called_in_its_context(answers: list[BatchAnswer]) -> None:
    """Also if another one is called in the same context before, or in a third one."""
    seen: list[str] = []
    for answer, place in zip(answers, ("waiter", "waiter", "third"), strict=True):
        token = PLACE.set(place)
        answer.add_done_callback(lambda _: seen.append(PLACE.get()))
        PLACE.reset(token)
    settle(*((answer, None) for answer in answers))
    await turns(1)
    assert seen == ["waiter", "waiter", "third"]


async def test_waiters_may_share_a_context(answers: list[BatchAnswer]) -> None:
    seen: list[str] = []
    shared, other = copy_context(), copy_context()
    shared.run(PLACE.set, "shared")
    for answer, context in zip(answers, (shared, other, shared), strict=True):
        answer.add_done_callback(lambda _: seen.append(PLACE.get()), context=context)
    settle(*((answer, None) for answer in answers))
    await turns(1)
    assert seen == ["shared", "outside", "shared"]


async def test_a_cancelled_answer_calls_its_waiter_once(answers: list[BatchAnswer]) -> None:
    waiting = asyncio.ensure_future(_wait(answers[0]))
    await turns(1)
    waiting.cancel()
    settle((answers[0], None), (answers[1], None))
    await turns(3)
    assert waiting.cancelled()
    assert answers[0].cancelled()
    assert answers[1].done()


async def test_a_callback_learns_of_a_cancellation(answers: list[BatchAnswer]) -> None:
    seen: list[Any] = []
    answers[0].add_done_callback(seen.append)
    assert answers[0].cancel()
    await turns(1)
    assert seen == [answers[0]]


async def test_a_callback_may_come_late_or_be_taken_back(answers: list[BatchAnswer]) -> None:
    seen: list[Any] = []
    answers[0].add_done_callback(seen.append)
    assert answers[0].remove_done_callback(seen.append) == 1
    settle((answers[0], None))
    await turns(2)
    assert seen == []
    answers[0].add_done_callback(seen.append)
    await turns(1)
    assert seen == [answers[0]]


async def test_a_waiter_that_raises_leaves_the_others_their_answers(
    answers: list[BatchAnswer],
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
    answers[0].add_done_callback(lambda _: 1 / 0)
    settle(*((answer, None) for answer in answers))
    await turns(2)
    assert [answer.done() for answer in answers] == [True, True, True]
    assert [type(what["exception"]) for what in reported] == [ZeroDivisionError]


def _note(seen: list[str], name: str, answer: object) -> None:
    seen.append(name)


async def _wait(answer: BatchAnswer) -> None:
    await answer
