"""The first answer of two instances: a reply, or a rejection, which is an answer, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest

from shardbus.errors import BufferFull, MailboxFull, NodeLost, Rejection
from shardbus.routing.instance_answers import FirstAnswer


class Asks:
    """A counter of second asks, and the asks of each instance."""

    hedged = 0
    other: int | None = 2

    def __init__(self, delay: float = 3600) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: dict[int, asyncio.Future[Any]] = {}
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        FirstAnswer(self, self.answer, self.ask, 1, lambda: self.other, delay)

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
    "a reply": lambda asks, last: asks.open[last].set_result(7),
    "a rejection": lambda asks, last: asks.open[last].set_exception(Rejection("sold out")),
    "a failure": lambda asks, last: asks.open[last].set_exception(NodeLost("died")),
    "its caller gives up": lambda asks, last: asks.answer.cancel(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", ["one is asked", "both are asked", "the first one has failed"])
async def test_an_ask_that_has_ended_leaves_neither_a_timer_nor_an_open_ask(
    before: str, end: str
) -> None:
    asks = Asks(delay=0 if before == "both are asked" else 3600)
    if before == "the first one has failed":
        asks.open[1].set_exception(NodeLost("died"))
    if before != "one is asked":
        while 2 not in asks.open:
            await asyncio.sleep(0)
    elif end == "a failure":
        asks.other = None
    ENDS[end](asks, max(asks.open))
    if (before, end) == ("both are asked", "a failure"):
        ENDS[end](asks, 1)
    with suppress(Rejection, NodeLost, asyncio.CancelledError):
        await asks.answer
    await asyncio.sleep(0)
    assert all(ask.done() for ask in asks.open.values())
    loop: Any = asks.loop
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
