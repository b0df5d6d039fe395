"""Ports for the servers of tests."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST, COUNT = 10_000 + 4_000 * (WORKER % 4), 4_000
"""Each of four test workers has its own. All are below the ports of the flights' demo, and below
the ports that the system gives to outgoing connections: one of these could take a free port before
the process has it for which it was found."""
_next = FIRST + random.randrange(COUNT)


def free_port() -> int:
    """A port that nothing listens on, and that was not found here lately."""
    return free_block(1)


def free_block(size: int) -> int:
    """The first of `size` neighbouring ports that nothing listens on.

    Ports are found in rising order, from a random one on, and again from the first after the last.
    So no port is found twice before all others were, not even inside two blocks, and there is
    always room for a block."""
    global _next
    for _ in range(COUNT):
        if _next + size > FIRST + COUNT:
            _next = FIRST
        block = range(_next, _next + size)
        _next += 1
        with ExitStack() as probes, suppress(OSError):
            for port in block:
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            _next = block.stop
            return block.start
    raise RuntimeError("every port is taken")
