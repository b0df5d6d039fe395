"""The surroundings of a node or a client: a network, a random name, random numbers, a clock, and
the resources that its process uses. The simulator passes its own.

Source: docs/simulation.md.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shardbus.transport.network import Network
from shardbus.transport.permissions import SECRET_BYTES, uid_of
from shardbus.transport.suspend_clock import suspend_clock
from shardbus.transport.zmq.network import ZmqNetwork

STATM = "/proc/self/statm"
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
"""The limit of the container, of both versions of cgroups."""


def resident_bytes() -> int:
    """Return the resident memory of this process, or its peak where the system has only that."""
    try:
        with open(STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_limit(files: Sequence[str] = CGROUP_LIMITS) -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's
    if these are fewer; 0 if the system does not say."""
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (OSError, ValueError):
        limits = []
    for path in files:
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            limits.append(int(file.read()))  # "max" is no number, and no limit
    return min((limit for limit in limits if limit > 0), default=0)


@dataclass(slots=True)
class Environment:
    """The surroundings of one process. `secret`: drawn for this incarnation; its uid is a hash of
    it. `clock`: the clock of the cluster thread, in seconds. `cpu_time`: processor time of the
    calling thread, in seconds. `wall_clock`: seconds since 1970. `collector_callbacks`: called at
    the start and the end of each collection of garbage."""

    secret: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES), repr=False)
    network: Network = field(default_factory=ZmqNetwork)
    dice: Random = field(default_factory=Random)
    clock: Callable[[], float] = suspend_clock
    cpu_time: Callable[[], float] = time.thread_time
    resident_bytes: Callable[[], int] = resident_bytes
    memory_limit: Callable[[], int] = memory_limit
    wall_clock: Callable[[], float] = time.time
    collector_callbacks: list[Any] = field(default_factory=lambda: gc.callbacks)

    @property
    def uid(self) -> int:
        """The random name of this incarnation, 64 bits."""
        return uid_of(self.secret)
