"""The clock that times leases."""

from __future__ import annotations

import time


def machine_clock() -> float:
    """Return the seconds of a clock that all processes of the machine share. It includes time in
    suspend if the system has such a clock."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
