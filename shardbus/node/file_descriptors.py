"""File descriptors: a node raises its limit, and warns before they run out.

Each connection and each open file needs one. Systems often start processes with a limit of 1,024,
for the sake of old programs, and allow far more. Code that opens one when none is left fails.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import os
import resource

from shardbus.guarded_log import GuardedLog

log = GuardedLog("shardbus.node")

WANTED = 65_536
ENOUGH = 1024
CHECK_S = 10.0
SCARCE = 0.8
"""The part of the limit in use above which a warning is logged."""
HINT = "raise the limit, as with `ulimit -n 65536` or LimitNOFILE= of systemd"


class FileDescriptors:
    """Watches the descriptors of this process, from one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def start(self) -> None:
        """Raise the limit to what the system allows, and check the use every `CHECK_S`."""
        limit = self._raise()
        if limit < ENOUGH:
            log.warning(
                "this process may open %d file descriptors, fewer than %d: %s", limit, ENOUGH, HINT
            )
        self._check()

    def stop(self) -> None:
        """Stop checking."""
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

    def _check(self) -> None:
        used, limit = in_use(), descriptors_limit()
        scarce = bool(limit) and used > SCARCE * limit
        if scarce and not self._warned:
            log.warning("%d of %d file descriptors are in use: %s", used, limit, HINT)
        self._warned = scarce
        self._timer = self._loop.call_later(CHECK_S, self._check)


def descriptors_limit() -> int:
    """The number of descriptors that this process may open; 0 if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def in_use() -> int:
    """The number of open descriptors; 0 where the system does not report it."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
