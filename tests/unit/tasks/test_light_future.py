"""A light future behaves as one of asyncio's, which each test is run with, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from shardbus.tasks.light_future import LightFuture
from tests.waiting import turns

PLACE: ContextVar[str] = ContextVar("place", default="outside")


class Light(LightFuture):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.settled, self.error, self.value, self._callbacks = False, None, None, None

    def set_result(self, value: Any) -> None:
        self.settle(value, None)

    def set_exception(self, error: BaseException) -> None:
        self.settle(None, error)


MAKERS: list[Callable[[], Any]] = [Light, lambda: asyncio.get_running_loop().create_future()]


@pytest.fixture(params=MAKERS, ids=["light", "asyncio"])
async def future(request: pytest.FixtureRequest) -> Any:
    return request.param()


async def value_of(future: Any) -> Any:
    return await future


async def test_a_task_gets_the_value(future: Any) -> None:
    task = asyncio.create_task(value_of(future))
    await turns(1)
    future.set_result(7)
    assert await task == 7
    assert await future == 7
    assert future.exception() is None


async def test_a_task_gets_the_error(future: Any) -> None:
    task = asyncio.create_task(value_of(future))
    await turns(1)
    future.set_exception(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        await task
    with pytest.raises(ValueError, match="bad"):
        await future
    assert isinstance(future.exception(), ValueError)


async def test_a_cancelled_task_cancels_what_it_waits_for(future: Any) -> None:
    task = asyncio.create_task(value_of(future))
    await turns(1)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    assert future.done()
    assert not future.cancel()
    for ask in (future.result, future.exception):
        with pytest.raises(asyncio.CancelledError):
            ask()


async def test_without_an_outcome_there_is_nothing_to_ask_for(future: Any) -> None:
    assert not future.done()
    assert not future.cancelled()
    for ask in (future.result, future.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()


@pytest.mark.parametrize("outcome", [7, ValueError("bad"), asyncio.CancelledError()])
async def test_gather_takes_it(future: Any, outcome: Any) -> None:
    gathered = asyncio.gather(future, asyncio.sleep(0, "other"), return_exceptions=True)
    await turns(1)
    end(future, outcome)
    first, other = await gathered
    assert (type(first), other) == (type(outcome), "other")


async def test_wait_takes_it(future: Any) -> None:
    never = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(
        asyncio.wait([future, never], return_when=asyncio.FIRST_COMPLETED)
    )
    await turns(2)
    future.set_result(7)
    assert await waiting == ({future}, {never})


async def test_a_deadline_cancels_it(future: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(future, 0)
    assert future.cancelled()


async def test_within_a_deadline_its_value_comes(future: Any) -> None:
    task = asyncio.create_task(asyncio.wait_for(future, 60))
    await turns(2)
    future.set_result(7)
    assert await task == 7


async def test_a_shield_protects_it(future: Any) -> None:
    outer = asyncio.ensure_future(asyncio.shield(future))
    await turns(1)
    outer.cancel()
    await turns(1)
    assert not future.done()
    future.set_result(7)
    assert await future == 7


async def test_callbacks_come_in_order_each_in_its_context(future: Any) -> None:
    seen: list[tuple[str, str]] = []
    token = PLACE.set("inside")
    future.add_done_callback(lambda _: seen.append(("first", PLACE.get())))
    PLACE.reset(token)
    other = copy_context()
    other.run(PLACE.set, "other")
    future.add_done_callback(lambda _: seen.append(("second", PLACE.get())), context=other)
    future.set_result(7)
    assert seen == []
    await turns(1)
    assert seen == [("first", "inside"), ("second", "other")]


async def test_a_callback_may_come_late_or_be_taken_back(future: Any) -> None:
    seen: list[Any] = []
    future.add_done_callback(seen.append)
    future.add_done_callback(seen.append)
    assert future.remove_done_callback(seen.append) == 2
    assert future.remove_done_callback(seen.append) == 0
    future.set_result(7)
    await turns(1)
    assert seen == []
    future.add_done_callback(seen.append)
    await turns(1)
    assert seen == [future]


def test_asyncio_knows_it() -> None:
    async def known() -> bool:
        return asyncio.isfuture(Light()) and asyncio.ensure_future(future := Light()) is future

    assert asyncio.run(known())


def end(future: Any, outcome: Any) -> None:
    """Give a future this outcome: a value, an error, or a cancellation."""
    if isinstance(outcome, asyncio.CancelledError):
        future.cancel()
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
