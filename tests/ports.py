"""Ports for the servers of tests."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress
from itertools import cycle, islice

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST, COUNT = 10_000 + 5_500 * (WORKER % 4), 5_500
"""Each of four test workers has its own. All are below those that the system gives to outgoing
connections: one of them could take a free port before the process has it for which it was found."""
PORTS = cycle(random.Random().sample(range(FIRST, FIRST + COUNT), COUNT))
GIVEN: set[int] = set()
"""Every port that this process has found. None is found twice, not even inside two blocks."""


def free_port() -> int:
    """A port that nothing listens on, and that was not found here before."""
    return free_block(1)


def free_block(size: int) -> int:
    """The first of `size` neighbouring ports that nothing listens on. No port of the block was
    found here before."""
    for first in islice(PORTS, COUNT):
        block = range(first, first + size)
        if block.stop > FIRST + COUNT or not GIVEN.isdisjoint(block):
            continue
        with ExitStack() as probes, suppress(OSError):
            for port in block:
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            GIVEN.update(block)
            return first
    raise RuntimeError("every port is taken")
