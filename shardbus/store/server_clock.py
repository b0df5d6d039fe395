"""A store server's clock, as far as a client may believe it when it takes over a lease.

The problem: a lease ends by the wall clock of its server, which keeps no other. If that clock jumps
ahead, or a failover leads to a server whose clock is ahead, all leases seem to have ended, and
another node could get one while its holder works.

So each node compares the server's clock with its own, which never jumps. It keeps the *offsets*,
the server's time less its own, of the last calls. An offset is measured with the time before the
call, so the server's true clock is never later than the offset says. For a lease of t seconds, the
end of the lease is compared with the earlier one of two times:

    the server's clock
    this node's clock + the smallest offset of the last t seconds and a margin

After a jump, a lease that was written before it ends when it would have ended without the jump. Its
holder renews it under the new clock meanwhile. When t has passed, no lease from before the jump is
valid any more, the new clock alone counts, and leases of dead holders are free again. A clock that
is set back counts at once.

    server's clock  ──────────┐jump                         ends as seen by a node
                              └──────────>  lease A, not renewed    its own end
                              renewed ───>  lease B, renewed        its own end

Not covered: a node that has started after the jump, until the holder has renewed the lease; masters
of a Redis Cluster, which have a clock each.

Source: docs/guarantees.md.
"""

from __future__ import annotations

from collections import deque

KEEP_S = 3600.0
"""Offsets are kept for so long; a longer lease is guarded for this time."""


class ServerClock:
    """The offsets of one server's clock. `margin` is the longest time between two of them, in
    seconds."""

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._offsets: deque[tuple[float, float]] = deque()
        """(own time, offset) of measurements, without those that a later and smaller one makes
        useless: the offsets grow."""

    def observe(self, server: float, asked_at: float) -> None:
        """Record the server's time in an answer to a call that began at `asked_at`. Both are in
        seconds."""
        offset, offsets = server - asked_at, self._offsets
        while offsets and offsets[-1][1] >= offset:
            offsets.pop()
        offsets.append((asked_at, offset))
        while len(offsets) > 1 and offsets[0][0] < asked_at - KEEP_S:
            offsets.popleft()

    def limit(self, ttl: float, now: float) -> float | None:
        """Return the server's time, in seconds, up to which a lease of `ttl` seconds may be taken
        as ended. None if the server's clock was never read."""
        since = now - ttl - self._margin
        for at, offset in self._offsets:
            if at >= since:
                return now + offset
        return now + self._offsets[-1][1] if self._offsets else None


def milliseconds(seconds: float) -> int:
    """Return seconds as whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def clock_offset(server: float, asked_at: float, answered_at: float) -> float:
    """Return by how many seconds a server's wall clock is ahead of this machine's, 0 if it may be
    right. It was read between these two times of this machine's wall clock."""
    if server < asked_at:
        return server - asked_at
    return max(0.0, server - answered_at)
