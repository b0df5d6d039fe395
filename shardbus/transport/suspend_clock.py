"""The clock by which a node is suspended: it goes on while the machine sleeps.

    platform    clock               while the machine is suspended
    Linux       CLOCK_BOOTTIME      goes on
    other       `time.monotonic`    may stand still

A virtual machine that is paused from outside may freeze every clock that it has. No clock of the
guest shows that pause, so a node cannot know of it: docs/guarantees.md.

Source: clock_gettime(2).
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

suspend_clock = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Returns seconds since an unknown start; takes 50 ns."""


class SuspendAwareLoop(asyncio.SelectorEventLoop):
    """An event loop on that clock: its timers fire when their time has passed, asleep or not."""

    def time(self) -> float:
        """Return the time of the loop's clock, in seconds."""
        return suspend_clock()
