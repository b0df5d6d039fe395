"""File descriptors: each connection, link and store needs some, and the system counts them.

The limit that a process begins with is often 1,024, for the sake of old programs, while it may ask
for many more. So a node asks for them; and since whatever opens one fails when there are none left,
it says so before that.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource

log = logging.getLogger("shardbus.node")

WANTED = 65_536
ENOUGH = 1024
LOOK_S = 10.0
SCARCE = 0.8
"""The part in use from which on it is said."""
HINT = "raise the limit, as with `ulimit -n 65536` or LimitNOFILE= of systemd"


class FileDescriptors:
    """See the module. Belongs to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._said = False

    def start(self) -> None:
        """Ask for as many as this process may have, and look from time to time."""
        limit = self._raise()
        if limit < ENOUGH:
            log.warning(
                "this process may open %d file descriptors, %d are few: %s", limit, ENOUGH, HINT
            )
        self._look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    @staticmethod
    def _raise() -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return WANTED if soft == resource.RLIM_INFINITY else soft
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted

    def _look(self) -> None:
        used, limit = in_use(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        scarce = limit != resource.RLIM_INFINITY and used > SCARCE * limit
        if scarce and not self._said:
            log.warning("%d of %d file descriptors are in use: %s", used, limit, HINT)
        self._said = scarce
        self._timer = self._loop.call_later(LOOK_S, self._look)


def in_use() -> int:
    """How many this process has open; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
