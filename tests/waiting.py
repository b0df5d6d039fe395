"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

STEP_S = 0.01


async def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Wait until the condition, plain or async, gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        await asyncio.sleep(STEP_S)


async def turns(count: int = 5) -> None:
    """Let the loop go round a few times."""
    for _ in range(count):
        await asyncio.sleep(0)
