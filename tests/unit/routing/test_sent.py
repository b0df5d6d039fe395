"""The outcome of sent messages: wherever a coroutine is taken, and where none is needed."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Awaitable

import anyio
import pytest
from starlette.background import BackgroundTasks

from shardbus.client.asynchronous import AsyncClient
from shardbus.client.towards import Towards
from shardbus.routing.sent import DONE, OnceAwaited, Sent, awaited

VERBS = ("tell", "ask", "call", "cast", "tell_many", "ask_many", "start_entity")


def sent() -> tuple[asyncio.Future[int], Sent[int]]:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return future, Sent(future)


async def test_it_is_awaited_as_often_as_one_likes() -> None:
    future, outcome = sent()
    future.set_result(7)
    assert (await outcome, await outcome) == (7, 7)


async def test_tasks_take_it() -> None:
    loop = asyncio.get_running_loop()
    future, outcome = sent()
    ways = [
        asyncio.create_task(outcome),
        asyncio.ensure_future(sent()[1]) if future.done() else asyncio.ensure_future(Sent(future)),
        asyncio.gather(Sent(future)),
        asyncio.create_task(asyncio.wait_for(Sent(future), 60)),
        asyncio.shield(Sent(future)),
    ]
    async with asyncio.TaskGroup() as group:
        grouped = group.create_task(Sent(future))
        crossed = asyncio.run_coroutine_threadsafe(Sent(future), loop)
        await asyncio.sleep(0)
        future.set_result(7)
    assert grouped.result() == 7
    assert [await way for way in ways] == [7, 7, [7], 7, 7]
    assert await asyncio.wrap_future(crossed) == 7


async def test_a_task_passes_errors_and_cancels_on() -> None:
    future, outcome = sent()
    task = asyncio.create_task(outcome)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    future, outcome = sent()
    early = asyncio.create_task(outcome)
    early.cancel()
    with pytest.raises(asyncio.CancelledError):
        await early
    future, outcome = sent()
    task = asyncio.create_task(outcome)
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("own_garbage")
async def test_it_need_not_be_awaited_and_can_be_closed() -> None:
    _, outcome = sent()
    outcome.close()
    del outcome
    _, waiting = sent()
    waiting.send(None)
    assert waiting.cr_suspended
    waiting.close()
    gc.collect()


async def test_what_is_sent_once_awaited_is_sent_then() -> None:
    calls: list[str] = []

    def send() -> Awaitable[None]:
        calls.append("sent")
        return asyncio.sleep(0)

    later = Sent(OnceAwaited(send))
    assert calls == []
    await later
    assert calls == ["sent"]


@pytest.mark.parametrize("verb", VERBS)
def test_libraries_take_the_verbs_for_coroutine_functions(verb: str) -> None:
    """A web framework runs other functions in a thread, where a client may not be used."""
    for owner in (AsyncClient, Towards):
        function = getattr(owner, verb)
        asks = asyncio if not hasattr(inspect, "markcoroutinefunction") else inspect
        assert asks.iscoroutinefunction(function)


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("own_garbage")
async def test_the_outcome_of_tells_with_room_is_shared() -> None:
    assert [await DONE, await DONE] == [None, None]
    for task in (asyncio.create_task(DONE), asyncio.ensure_future(DONE)):
        assert await task is None
    early = asyncio.create_task(DONE)
    early.cancel()
    with pytest.raises(asyncio.CancelledError):
        await early
    DONE.close()
    assert await DONE is None


async def test_anyio_starts_it_and_cancels_it() -> None:
    answered, waiting = sent(), sent()
    answered[0].set_result(7)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: answered[1])
        group.start_soon(lambda: DONE)
        group.start_soon(lambda: waiting[1])
        await asyncio.sleep(0)
        group.cancel_scope.cancel()
    assert waiting[0].cancelled()


async def test_a_background_task_of_a_web_application_calls_it_in_the_loop() -> None:
    threads: list[int] = []

    class Client:
        @awaited
        def cast(self, text: str) -> Sent[None]:
            threads.append(threading.get_ident())
            return DONE

    tasks = BackgroundTasks()
    tasks.add_task(Client().cast, "x")
    await tasks()
    assert threads == [threading.get_ident()]
