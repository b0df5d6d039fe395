"""The wait of a node for its store: at its start, and before it rejoins.

A store that starts at the same time as its nodes, as in a composition of containers, is busy, or
was restarted, answers some seconds later. So a node whose store does not answer, or takes no
writes, tries again after a pause, which doubles, until its time is over. The last error ends it
then. An error of another kind, as of a wrong password or an unfit server, ends it at once: time
mends none of these.

Source: docs/guarantees.md; docs/reference/settings.md.
"""

from __future__ import annotations

import asyncio

from shardbus.backoff import doubling
from shardbus.errors import StoreUnavailable
from shardbus.guarded_log import GuardedLog

log = GuardedLog("shardbus.node")

AGAIN_S, AGAIN_MAX_S = 0.5, 10.0
"""Seconds between two attempts: at first, and at most."""


class StoreWait:
    """The attempts of one wait. `within`: seconds from `now` on; 0 is without end. `purpose`
    completes the sentence that begins with the node."""

    def __init__(self, within: float, now: float, purpose: str) -> None:
        self._within, self._began_at, self._purpose = within, now, purpose
        self._failures = 0

    def pause(self, now: float) -> float | None:
        """Return the seconds to wait after an attempt that has failed; None if the time is over.
        The last attempt is made at the end of the time."""
        self._failures += 1
        pause = doubling(AGAIN_S, AGAIN_MAX_S, self._failures)
        if not self._within:
            return pause
        left = self._began_at + self._within - now
        return min(pause, left) if left > 0 else None

    async def after(self, error: StoreUnavailable) -> None:
        """Log the error of an attempt, and wait until the next one.

        Raises:
            StoreUnavailable: the error, if the time is over.
        """
        now = asyncio.get_running_loop().time()
        pause = self.pause(now)
        if pause is None:
            raise error
        until = "without end"
        if self._within:
            until = f"for {max(self._began_at + self._within - now, 0.0):.0f} s more"
        log.warning("this node %s once its store answers, %s: %s", self._purpose, until, error)
        await asyncio.sleep(pause)
