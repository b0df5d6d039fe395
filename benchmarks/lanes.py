"""Call in closed loops, one for each key. It needs nothing but Python, as an environment of another
product has no more."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence


async def laned(
    call: Callable[[str], Awaitable[object]], keys: Sequence[str], seconds: float
) -> tuple[float, float]:
    """Call with each key, one call at a time, and all keys at once. Returns calls a second, and the
    median of their durations in microseconds."""
    taken: list[float] = []
    begun = time.monotonic()
    end = begun + seconds

    async def lane(key: str) -> None:
        while time.monotonic() < end:
            started = time.monotonic_ns()
            await call(key)
            taken.append((time.monotonic_ns() - started) / 1e3)

    await asyncio.gather(*map(lane, keys))
    return len(taken) / (time.monotonic() - begun), statistics.median(taken)
