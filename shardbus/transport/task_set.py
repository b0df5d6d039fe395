"""Background tasks of one owner: kept alive until they end, cancelled together.

The event loop holds only weak references to tasks; without a set of its own, an owner's running
task could be collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Running tasks of the running loop."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, seconds: float) -> set[asyncio.Task[Any]]:
        """Wait at most `seconds` for the tasks that run now; returns those that still run."""
        if not self._tasks:
            return set()
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        return late

    def cancel(self) -> None:
        """Cancel every running task."""
        for task in self._tasks:
            task.cancel()
