"""Background tasks and timers of one owner: held until they end, cancelled together.

An event loop keeps only weak references to its tasks, so a task without another reference may be
garbage-collected while it runs. A task whose result no code awaits may fail unseen, and its work
for its owner then stops. So each such task belongs to a `TaskSet`, or is given to `watch`. If it
fails, that is a defect: it is logged with its traceback at once and counted for its event loop. A
node shows the number as a metric, and is not ready any more.

A timer outlives its owner, too, and then works on what has ended, and keeps it in memory. So one
that its owner need not find again is set by `call_later`, and ends with the tasks.

The module stands on floor 0, because stores and nodes use it.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from shardbus.guarded_log import GuardedLog

log = GuardedLog("shardbus.node")

_failed: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


def failed_tasks(loop: asyncio.AbstractEventLoop) -> int:
    """Return how many watched tasks of this loop have failed."""
    return _failed.get(loop, 0)


def watch(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Have a task logged and counted if it fails. Returns the task, which its owner must hold."""
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        loop = task.get_loop()
        _failed[loop] = failed_tasks(loop) + 1
        log.error("a task failed: %s", task.get_coro(), exc_info=error)


def _task(
    work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, name: str | None
) -> asyncio.Task[None]:
    """Return a task that begins in a later turn of the loop. Owners spawn tasks while they change
    their state, so no task may begin inside `spawn`, as the eager ones of `asyncio` (3.12) do. An
    application's task factory is for its own tasks."""
    if loop.get_task_factory() is None:
        return loop.create_task(work, name=name)
    return asyncio.Task(work, loop=loop, name=name)


class TaskSet:
    """The running tasks of one owner, and its timers. The length is the number of tasks."""

    __slots__ = ("_tasks", "_timers")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        name: str | None = None,
    ) -> asyncio.Task[None]:
        """Run `work` in a task of its own, on the running loop or the given one. Returns the task,
        which the owner may cancel."""
        task = watch(_task(work, loop or asyncio.get_running_loop(), name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_later(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        call: Callable[..., object],
        *args: Any,
    ) -> None:
        """Call a function after this time, unless the owner cancels everything before."""
        key = object()
        self._timers[key] = loop.call_later(seconds, self._due, key, call, args)

    def _due(self, key: object, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._timers.pop(key, None)
        call(*args)

    async def wait(self, seconds: float) -> set[asyncio.Task[None]]:
        """Wait at most `seconds` for the tasks that run now. Returns those that still run."""
        if not self._tasks:
            return set()
        _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
        return late

    def cancel(self) -> None:
        """Cancel every running task, and every timer."""
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class TaskQueue:
    """Work of one owner, in tasks: up to `at_once` pieces at a time, the others wait in order."""

    __slots__ = ("_at_once", "_running", "_waiting")

    def __init__(self, at_once: int) -> None:
        self._at_once, self._running = at_once, TaskSet()
        self._waiting: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()

    def add(
        self, work: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Run the coroutine of `work()` in a task, now or once there is room."""
        self._waiting.append(work)
        self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and len(self._running) < self._at_once:
            task = self._running.spawn(self._waiting.popleft()(), loop)
            task.add_done_callback(lambda _: self._begin(loop))

    def cancel(self) -> None:
        """Cancel the running tasks, and forget the work that waits."""
        self._waiting.clear()
        self._running.cancel()
