"""The timer of one state machine: set from its `deadline`, and again after every event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class MachineTimer:
    """Calls `tick` at the machine's deadline. Call `arm` after each event; after `stop` it does
    nothing."""

    __slots__ = ("_at", "_deadline", "_handle", "_stopped", "_tick")

    def __init__(self, deadline: Callable[[], float | None], tick: Callable[[], None]) -> None:
        self._deadline, self._tick = deadline, tick
        self._handle: asyncio.Handle | None = None
        self._at = 0.0
        """When the timer fires. A handle need not have that: uvloop's for a time that has come, or
        comes within the millisecond, is one of `call_soon`."""
        self._stopped = False

    def arm(self) -> None:
        """Set the timer to the present deadline. A timer that fires too early is set again."""
        deadline, handle = None if self._stopped else self._deadline(), self._handle
        if handle is not None:
            if deadline is not None and self._at <= deadline:
                return
            handle.cancel()
            self._handle = None
        if deadline is not None:
            self._at = deadline
            self._handle = asyncio.get_running_loop().call_at(deadline, self._due)

    def stop(self) -> None:
        """Cancel the timer for good."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        self._handle = None
        deadline = self._deadline()
        if deadline is not None and deadline <= asyncio.get_running_loop().time():
            self._tick()
        self.arm()
