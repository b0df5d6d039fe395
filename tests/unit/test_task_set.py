"""Tasks beside their owner: held while they run, cancelled together."""

from __future__ import annotations

import asyncio

from shardbus.task_set import TaskSet
from tests.waiting import turns


async def test_a_task_is_held_until_it_ends() -> None:
    tasks, gate = TaskSet(), asyncio.Event()

    async def work() -> None:
        await gate.wait()

    task = tasks.spawn(work())
    await turns(2)
    assert tasks == {task}
    gate.set()
    await turns(3)
    assert tasks == set()


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
    assert tasks == set()
