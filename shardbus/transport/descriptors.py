"""File descriptors of this process: how many it may open, has open, and holds in reserve.

Each connection and each open file needs one. When none is left, a connection that a client has made
cannot be accepted, and waits in the kernel's queue, for which the listening socket stays readable:
libzmq then tries again without a pause, and takes a whole core. So a listener holds a few
descriptors that it gives up at that moment, to accept waiting connections in their place and to end
these.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

NONE_LEFT = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or of a system, that has no descriptor left."""
HINT = "raise the limit, as with `ulimit -n 65536` or LimitNOFILE= of systemd"


def descriptors_limit() -> int:
    """The number of descriptors that this process may open; 0 if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def in_use() -> int:
    """The number of open descriptors; 0 where the system does not report it."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the folder's own
    except OSError as failed:
        return descriptors_limit() if failed.errno in NONE_LEFT else 0


def require_descriptors(count: int) -> None:
    """Check that this number of descriptors is left.

    Raises:
        OSError: there are fewer.
    """
    reserve = DescriptorReserve(count)
    short = reserve.short
    reserve.close()
    if short:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class DescriptorReserve:
    """Some descriptors that are held, to be given up when none is left."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    @property
    def short(self) -> bool:
        """True if some that were given up are not back."""
        return len(self._held) < self._count

    def fill(self) -> None:
        """Take back the descriptors given up, as far as any are left."""
        with suppress(OSError):
            while self.short:
                self._held.append(os.open(os.devnull, os.O_RDONLY))

    def give(self) -> bool:
        """Give one up. Returns False if none is held."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True

    def close(self) -> None:
        """Give all up."""
        while self.give():
            pass
