"""Resources that each node's process uses over a run, and the bounds that a leak exceeds.

A process breaks the *ceiling* if one sample is above it, whatever its age. It *grows* if, once it
has run for `AGE_S`, the median of its last third is above the median of its middle third by more
than the allowance. The first third is left out: a process fills its caches, pools and heaps then.

Medians, because a fault makes peaks: messages that wait in a split, links that connect anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

AGE_S = 240.0
"""Growth of a younger process is not judged."""


class Use(NamedTuple):
    """One sample, or a bound of each. `mib` is resident memory."""

    descriptors: int
    threads: int
    mib: int
    tasks: int


class Sample(NamedTuple):
    """Resources that a process used at an instant, in seconds."""

    at: float
    use: Use


CEILING = Use(descriptors=400, threads=60, mib=400, tasks=3000)
ALLOWANCE = Use(descriptors=40, threads=8, mib=40, tasks=300)
"""Growth from the second to the last third that is no leak."""


def exceeded(samples: Sequence[Sample]) -> list[str]:
    """Return the ceilings that a process exceeded, and the resources that grew."""
    grown, peak = [], peaks(samples)
    for name, high, most in zip(Use._fields, peak, CEILING, strict=True):
        if high > most:
            grown.append(f"{high} {name}, at most {most}")
    if len(samples) < 6 or samples[-1].at - samples[0].at < AGE_S:
        return grown
    third = (samples[-1].at - samples[0].at) / 3
    middle = [s.use for s in samples if third <= s.at - samples[0].at < 2 * third]
    last = [s.use for s in samples if s.at - samples[0].at >= 2 * third]
    if middle and last:
        for at, name in enumerate(Use._fields):
            before, after = median(u[at] for u in middle), median(u[at] for u in last)
            if after - before > ALLOWANCE[at]:
                grown.append(f"{name} grew from {before:g} to {after:g}")
    return grown


def peaks(samples: Sequence[Sample]) -> Use:
    """Return the highest value of each."""
    return Use(*(max(column) for column in zip(*(s.use for s in samples), strict=True)))


def use_of(pid: int, folder: Path) -> Use | None:
    """Return the resources that a process uses now, None if it has ended. It writes its tasks
    itself."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    rows = dict(line.split(":", 1) for line in status.splitlines())
    if "VmRSS" not in rows:  # it has ended and was not waited for
        return None
    try:
        tasks = int((folder / f"tasks-{pid}").read_text() or "0")
    except OSError:
        tasks = 0
    return Use(descriptors, int(rows["Threads"]), int(rows["VmRSS"].split()[0]) // 1024, tasks)


def waited_ns(pid: int) -> int:
    """Return how long the process has waited for a core since it began; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0
