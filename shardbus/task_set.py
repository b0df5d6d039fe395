"""Background tasks of one owner: held until they end, cancelled together.

An event loop keeps only weak references to its tasks, so a task without another reference may be
garbage-collected while it runs. No code awaits these tasks, so an exception that a task does not
handle is a defect that nothing else would show: it is logged with its traceback at once. The module
stands on floor 0, because stores and nodes use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("shardbus.node")


class TaskSet:
    """The running tasks of one owner."""

    __slots__ = ("_tasks", "failed")

    def __init__(self) -> None:
        self.failed = 0
        """Tasks that ended by an exception."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Run `work` in a task of its own, on the running loop or the given one."""
        task = (loop or asyncio.get_running_loop()).create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.failed += 1
            log.error("a task failed: %s", task.get_coro(), exc_info=error)

    async def wait(self, seconds: float) -> set[asyncio.Task[None]]:
        """Wait at most `seconds` for the tasks that run now. Returns those that still run."""
        if not self._tasks:
            return set()
        _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
        return late

    def cancel(self) -> None:
        """Cancel every running task."""
        for task in self._tasks:
            task.cancel()
