"""File descriptors: a node raises its limit, and warns before they run out.

Each connection and each open file needs one. Systems often start processes with a limit of 1,024,
for the sake of old programs, and allow far more. Code that opens one when none is left fails.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import resource

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.transport.descriptors import HINT, descriptors_limit, in_use

log = GuardedLog("shardbus.node")

WANTED = 65_536
ENOUGH = 1024
NEEDED = 64
"""Below, libzmq ends the process when it finds no descriptor for its own threads and pipes."""
CHECK_S = 10.0
WARN_EVERY_S = 60.0
SCARCE = 0.8
"""The part of the limit in use above which a warning is logged."""


class FileDescriptors:
    """Watches the descriptors of this process, from one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._warned_at: float | None = None
        """When the last warning was; None once there are enough again."""

    def start(self) -> None:
        """Raise the limit to the system's maximum, and check the use every `CHECK_S`.

        Raises:
            ConfigError: the limit is too low for any node.
        """
        limit = self._raise()
        if limit < NEEDED:
            raise ConfigError(
                f"this process may open {limit} file descriptors, and a node needs {NEEDED}",
                hint=HINT,
            )
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
        limit = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
        if soft == resource.RLIM_INFINITY or soft >= limit:
            return WANTED if soft == resource.RLIM_INFINITY else soft
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            return soft
        return limit

    def _check(self) -> None:
        used, limit = in_use(), descriptors_limit()
        now, before = self._loop.time(), self._warned_at
        if not limit or used <= SCARCE * limit:
            self._warned_at = None
        elif before is None or now - before >= WARN_EVERY_S:
            self._warned_at = now
            log.warning("%d of %d file descriptors are in use: %s", used, limit, HINT)
        self._timer = self._loop.call_later(CHECK_S, self._check)
