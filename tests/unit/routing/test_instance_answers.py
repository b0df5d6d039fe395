"""The first answer of two instances: a reply, or a rejection, which is an answer, too; and the
answers of all instances. An ask that has an outcome leaves nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from shardbus.errors import BufferFull, MailboxFull, NodeLost, Rejection
from shardbus.routing.instance_answers import AllAnswers, FirstAnswer
from tests.virtual_time import virtual

DELAY_S = 60


class Asks:
    """A counter of second asks, and the asks of each instance."""

    hedged = 0
    other: int | None = 2

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: dict[int, asyncio.Future[Any]] = {}
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        FirstAnswer(self, self.answer, self.ask, 1, lambda: self.other, DELAY_S)

    def ask(self, instance: int) -> asyncio.Future[Any]:
        self.open[instance] = self.loop.create_future()
        return self.open[instance]


async def test_a_rejection_of_the_first_instance_is_the_answer() -> None:
    asks = Asks()
    asks.open[1].set_exception(Rejection("sold out"))
    with pytest.raises(Rejection, match="sold out"):
        await asks.answer
    assert set(asks.open) == {1}


async def test_an_error_of_the_first_instance_is_not_while_the_second_may_answer() -> None:
    asks = Asks()
    asks.open[1].set_exception(MailboxFull("full"))
    await asyncio.sleep(0)
    assert set(asks.open) == {1, 2}
    asks.open[2].set_result(7)
    assert await asks.answer == 7


async def test_the_second_instance_is_picked_when_the_first_one_fails() -> None:
    asks = Asks()
    asks.other = 3
    asks.open[1].set_exception(NodeLost("died"))
    await asyncio.sleep(0)
    assert (set(asks.open), asks.hedged) == ({1, 3}, 1)
    asks.open[3].set_result(7)
    assert await asks.answer == 7


async def test_without_another_instance_the_error_of_the_first_one_is_the_outcome() -> None:
    asks = Asks()
    asks.other = None
    asks.open[1].set_exception(NodeLost("died"))
    with pytest.raises(NodeLost):
        await asks.answer
    assert (set(asks.open), asks.hedged) == ({1}, 0)


@pytest.mark.parametrize("errors", [*permutations((MailboxFull("full"), NodeLost("died")))])
async def test_the_error_of_an_instance_that_may_have_handled_it_is_the_outcome(
    errors: tuple[Exception, Exception],
) -> None:
    asks = Asks()
    for instance, error in enumerate(errors, 1):
        asks.open[instance].set_exception(error)
        await asyncio.sleep(0)
    with pytest.raises(NodeLost):
        await asks.answer


async def test_without_an_instance_that_may_have_handled_it_the_first_error_is_the_outcome() -> (
    None
):
    asks = Asks()
    asks.open[1].set_exception(MailboxFull("full"))
    await asyncio.sleep(0)
    asks.open[2].set_exception(BufferFull("full"))
    with pytest.raises(MailboxFull) as failed:
        await asks.answer
    assert failed.value.definite


ENDS: dict[str, Callable[[Asks, int], object]] = {
    "a reply": lambda asks, n: asks.open[n].set_result(7),
    "a rejection": lambda asks, n: asks.open[n].set_exception(Rejection("sold out")),
    "the caller": lambda asks, n: asks.answer.cancel(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("asked", [(1,), (1, 2)], ids=["one ask", "two asks"])
@virtual
async def test_an_ask_of_first_with_an_outcome_leaves_nothing_open(
    asked: tuple[int, ...], end: Callable[[Asks, int], object]
) -> None:
    asks = Asks()
    if len(asked) > 1:
        await asyncio.sleep(DELAY_S)
    assert tuple(asks.open) == asked
    end(asks, asked[-1])
    await asyncio.wait([asks.answer])
    await asyncio.sleep(2 * DELAY_S)
    assert tuple(asks.open) == asked
    assert all(ask.done() for ask in asks.open.values())


async def test_an_ask_of_all_that_its_caller_cancels_leaves_nothing_open() -> None:
    loop = asyncio.get_running_loop()
    answer, parts = loop.create_future(), [loop.create_future() for _ in range(3)]
    answers = AllAnswers(loop, answer)
    for number, part in enumerate(parts):
        answers.expect(f"n{number}", part)
    answers.begin()
    parts[0].set_result(7)
    answer.cancel()
    await asyncio.sleep(0)
    assert [part.cancelled() for part in parts] == [False, True, True]
