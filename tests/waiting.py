"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

STEP_S = 0.01
PATIENCE_S = 300.0
"""Ends a wait that hangs. No passing test comes near it, however busy the machine is, and no
behaviour is measured by it."""


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition, plain or async, returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:g} s in vain: {what}")
        await asyncio.sleep(STEP_S)


async def turns(count: int = 5) -> None:
    """Let the event loop run `count` turns."""
    for _ in range(count):
        await asyncio.sleep(0)


IDLE_S = 20.0
"""Ends a wait for an event that nothing in the process can cause. Work of threads in unit tests
takes well under a second."""


def fail_when_idle(loop: Any) -> None:
    """Fail the test if its loop has nothing to run and no timer: the awaited event never
    comes, and its own limit against hangs would only say so minutes later."""
    select = loop._selector.select

    def watched(timeout: float | None = None) -> Any:
        events = select(IDLE_S if timeout is None else timeout)
        if timeout is None and not events:
            loop._selector.select = select
            raise AssertionError("the test waits for something that nothing is going to do")
        return events

    loop._selector.select = watched
