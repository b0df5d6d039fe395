"""Judges one input: its error, its processor time, its memory.

Memory is the growth of the process's peak while the input is handled. After an input that raised
the peak, the peak is set to the process's current memory, so that the next one counts from there.
Processor time of this thread, not time: it does not depend on other processes. An input over the
limit is tried again, and its least time counts, because a collection of garbage may fall into one
of them.
"""

from __future__ import annotations

import gc
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import Target

CPU_MAX_S = 0.050
MEMORY_MAX_KIB = 32 * 1024
FORGET_KIB = 1024
AGAIN = 5
HANG_S = 5.0
"""Processor time after which an input is cut off."""


class Hangs(BaseException):
    """An input did not end."""


def _cut_off(*_: object) -> None:
    raise Hangs


@dataclass(frozen=True)
class Finding:
    """An input with a forbidden effect."""

    target: str
    what: str
    data: bytes

    def __str__(self) -> str:
        shown = self.data[:60].hex() + ("..." if len(self.data) > 60 else "")
        return f"{self.target}: {self.what}; {len(self.data)} bytes: {shown}"


def judge(target: Target, data: bytes) -> tuple[str, Finding | None]:
    """Feed one input; return its outcome and the finding, if it is one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.thread_time()
    signal.signal(signal.SIGPROF, _cut_off)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        said = target(data)
    except Hangs:
        return "hangs", Finding(target.name, f"did not end within {HANG_S:g} s", data)
    except (Exception, SystemExit) as error:
        return "raised", Finding(target.name, f"{type(error).__name__}: {error}"[:300], data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    used = time.thread_time() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > FORGET_KIB:
        _forget_peak()
    if grown > MEMORY_MAX_KIB:
        return said, Finding(target.name, f"took {grown // 1024} MiB", data)
    if used > CPU_MAX_S and (least := _least_time(target, data, used)) > CPU_MAX_S:
        return said, Finding(target.name, f"took {1000 * least:.0f} ms of processor time", data)
    return said, None


def _forget_peak() -> None:
    """Set the peak of this process's memory to its current size, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _least_time(target: Target, data: bytes, least: float) -> float:
    gc.collect()
    for _ in range(AGAIN):
        began = time.thread_time()
        target(data)
        least = min(least, time.thread_time() - began)
    return least
