"""Calls of one type's strategy, in a thread, one at a time.

A strategy of the user's may never return. So each call has a thread of its own that does not keep
the process from ending, as a thread of the event loop's executor would. A call that does not return
keeps the next ones from starting: one thread of a type stands still at most.

Source: docs/how-to/tune.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Runs each call in a thread of that name, which does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def call() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        Thread(target=call, name=self._name, daemon=True).start()
        return done


class StrategyThread:
    """Calls the strategy of a type."""

    def __init__(self, entity_type: str) -> None:
        self._threads = DaemonThreads(f"shardbus-strategy-{entity_type}")
        self._running: asyncio.Future[Any] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, once earlier calls have ended. The caller sets the deadline:
        if it gives up, the call goes on."""
        while (running := self._running) is not None and not running.done():
            await asyncio.wait([running])
        began = asyncio.get_running_loop().run_in_executor(self._threads, call)
        self._running = began
        return await asyncio.shield(began)
