"""The functions of asyncio that make a task or a loop current, under public names.

`current_task` returns the argument of `enter_task`, whatever its class.

Source: `asyncio.tasks` and `asyncio.events` of Python 3.11 to 3.14.
"""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop, events, tasks
from collections.abc import Callable
from typing import Any

current_task: Callable[[AbstractEventLoop], Any]
"""Return the current task of a loop, None without one: as `asyncio.current_task`, which is no
compiled function before Python 3.12."""
if sys.version_info < (3, 12):
    current_task = tasks._current_tasks.get  # type: ignore[attr-defined]
else:
    current_task = tasks.current_task

enter_task: Callable[[AbstractEventLoop, Any], None] = tasks._enter_task
"""Make a task the current one of a loop. There must be none."""
leave_task: Callable[[AbstractEventLoop, Any], None] = tasks._leave_task
"""Undo `enter_task`."""
if sys.version_info < (3, 12):
    _current: dict[AbstractEventLoop, Any] = tasks._current_tasks  # type: ignore[attr-defined]

    def swap_task(loop: AbstractEventLoop, task: Any) -> Any:
        """Make a task the current one of a loop, None for none. Return the one that was current."""
        outer = _current.get(loop)
        if task is None:
            _current.pop(loop, None)
        else:
            _current[loop] = task
        return outer
else:
    swap_task: Callable[[AbstractEventLoop, Any], Any] = tasks._swap_current_task

register_task: Callable[[Any], None] = tasks._register_task
"""Add a task to `asyncio.all_tasks`."""

running_loop: Callable[[], AbstractEventLoop | None] = events._get_running_loop
"""Return the loop that runs in this thread; None without one."""
set_running_loop: Callable[[AbstractEventLoop | None], None] = events._set_running_loop


def awaited_by(task: Any) -> Any:
    """Return the future that a task of asyncio waits for; None if it waits for none."""
    return getattr(task, "_fut_waiter", None)


def run_handle(handle: Any) -> None:
    """Call the callback of a handle, in its context."""
    handle._run()
