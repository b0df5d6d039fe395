"""Tasks beside their owner: held while they run, cancelled together."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import pytest

from shardbus.task_set import TaskQueue, TaskSet, failed_tasks, watch
from tests import laws
from tests.virtual_time import virtual
from tests.waiting import turns


async def test_a_task_is_held_until_it_ends() -> None:
    tasks, gate = TaskSet(), asyncio.Event()

    async def work() -> None:
        await gate.wait()

    tasks.spawn(work())
    await turns(2)
    assert len(tasks) == 1
    gate.set()
    assert await tasks.wait(10) == set()
    await turns(1)
    assert len(tasks) == 0
    assert await tasks.wait(10) == set()


async def test_wait_returns_the_tasks_that_still_run() -> None:
    tasks = TaskSet()

    async def work() -> None:
        await asyncio.Event().wait()

    tasks.spawn(work())
    [late] = await tasks.wait(0)
    assert not late.done()
    tasks.cancel()


async def test_cancel_ends_every_task() -> None:
    tasks = TaskSet()
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    for name in ("a", "b"):
        tasks.spawn(work(name), asyncio.get_running_loop())
    await turns(2)
    tasks.cancel()
    await turns(3)
    assert sorted(ended) == ["a", "b"]
    assert len(tasks) == 0


async def test_a_task_that_fails_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = TaskSet()

    async def work() -> None:
        raise OverflowError("too large")

    tasks.spawn(work())
    await tasks.wait(10)
    await turns(1)
    assert (len(tasks), failed_tasks(asyncio.get_running_loop())) == (0, 1)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is OverflowError
    assert "work" in record.getMessage()
    laws.forget()


async def test_a_watched_task_is_counted_and_its_owner_may_await_it_too() -> None:
    loop = asyncio.get_running_loop()

    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    for error in (None, KeyError("x")):
        task = watch(asyncio.ensure_future(work(error)))
        if error is None:
            await task
        else:
            with pytest.raises(KeyError):
                await task
    await turns(1)
    assert failed_tasks(loop) == 1
    laws.forget()


@virtual
async def test_a_timer_calls_once_unless_its_owner_cancels_before() -> None:
    loop, timers, calls = asyncio.get_running_loop(), TaskSet(), list[int]()
    for number in (1, 2):
        timers.call_later(loop, number, calls.append, number)
    await asyncio.sleep(1.5)
    timers.cancel()
    await asyncio.sleep(1.5)
    assert calls == [1]
    timers.call_later(loop, 1.0, calls.append, 3)
    await asyncio.sleep(1.5)
    assert calls == [1, 3]
    assert not timers._timers


async def test_a_cancelled_task_has_not_failed() -> None:
    tasks = TaskSet()
    tasks.spawn(asyncio.sleep(60), name="sleeps")
    await turns(1)
    tasks.cancel()
    await turns(3)
    assert failed_tasks(asyncio.get_running_loop()) == 0
    assert len(tasks) == 0


async def test_no_task_begins_inside_spawn() -> None:
    """An application's factory may make tasks that begin where they are made; owners spawn while
    they change their state."""
    loop, tasks, said = asyncio.get_running_loop(), TaskSet(), []

    async def work() -> None:
        said.append("begins")

    def eager(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        with contextlib.suppress(StopIteration):
            coro.send(None)
        return loop.create_future()

    loop.set_task_factory(eager)
    tasks.spawn(work())
    said.append("spawned")
    loop.set_task_factory(None)
    await tasks.wait(10)
    assert said == ["spawned", "begins"]


async def test_a_queue_runs_so_many_at_a_time_and_the_others_in_order() -> None:
    queue, loop = TaskQueue(2), asyncio.get_running_loop()
    gates = [asyncio.Event() for _ in range(5)]
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        await gates[number].wait()
        if number == 1:
            raise ValueError("a failed one makes room, too")

    for number in range(5):
        queue.add(partial(work, number), loop)
    await turns(2)
    assert begun == [0, 1]
    gates[1].set()
    await turns(4)
    assert begun == [0, 1, 2]
    gates[0].set()
    gates[2].set()
    await turns(4)
    assert begun == [0, 1, 2, 3, 4]
    queue.add(partial(work, 0), loop)
    queue.cancel()
    await turns(4)
    assert begun == [0, 1, 2, 3, 4], "what waited is forgotten"
    laws.forget()
