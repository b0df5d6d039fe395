"""Tasks that run beside their owner.

An event loop keeps only weak references to its tasks, so a task without another reference may be
garbage-collected while it runs. A `TaskSet` holds its tasks until they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet(set[asyncio.Task[None]]):
    """The running tasks of one owner."""

    def spawn(
        self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Task[None]:
        """Start `work` as a task, on the running loop or the given one, and hold it."""
        task = (loop or asyncio.get_running_loop()).create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Cancel every running task."""
        for task in list(self):
            task.cancel()
