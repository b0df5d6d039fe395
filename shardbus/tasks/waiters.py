"""Which handler waits for a task, however indirectly.

**Why callbacks are read.** Only the callbacks of a task show who waits for it. A context variable
shows who *made* it. Whatever it holds, also a token that ends with the message, it refuses the asks
of a task that a handler starts and does not wait for. Such an ask is answered once the handler
returns, so its refusal is an error. A cycle that is not found ends by AskTimeout, as without this
module. So each doubt is decided for "does not wait": an unknown form of waiting, callbacks that
another loop hides, a search over FUTURES_MAX futures. The search runs only for an ask of a task
that is not the handler's own, and changes nothing.

Source: docs/guarantees.md; `gather`, `wait`, `wait_for`, `shield` and `TaskGroup` of asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

from shardbus.tasks.eager import EagerTask

FUTURES_MAX = 64
"""Futures and tasks searched to find whether a handler waits for a task."""


def eager_task_waiting_for(task: asyncio.Task[Any]) -> EagerTask | None:
    """Return the eager task whose code waits for the end of a task, however indirectly."""
    search: list[Any] = [task]
    seen: dict[int, Any] = {id(task): task}
    while search and len(seen) < FUTURES_MAX:
        for waiter in _waiters(search.pop()):
            if isinstance(waiter, EagerTask):
                return waiter
            if id(waiter) not in seen:
                seen[id(waiter)] = waiter
                search.append(waiter)
    return None


def _waiters(future: Any) -> Iterator[Any]:
    """Yield the tasks and futures that go on when this one is done, as asyncio's own callbacks show
    them: a task that awaits it is the callback's `self`, the future of `gather`, `wait` or `shield`
    is in its closure, and the future of `wait_for` is among its arguments."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        holders = [getattr(callback, "__self__", None)]
        if isinstance(callback, partial):
            holders += callback.args
        holders += [cell.cell_contents for cell in getattr(callback, "__closure__", None) or ()]
        for holder in holders:
            if isinstance(holder, asyncio.TaskGroup):
                yield getattr(holder, "_parent_task", None)
            elif asyncio.isfuture(holder):
                yield holder
