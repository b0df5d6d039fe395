"""The check of a log whose replica runs: its segments are read as at a start, in a thread.

Rows are in memory, so a replica does not notice that its log has rotted before the next start. A
request that comes during a check gets its answer.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any

from shardbus.replica.disk import ReplicaDisk

ASKING_MAX = 100
"""Connections that wait for one check."""


class LogCheck:
    """The checks of one disk. Belongs to one event loop.

    Args:
        answer: takes a connection that asked, and the facts.
    """

    def __init__(self, disk: ReplicaDisk, answer: Callable[[bytes, dict[str, Any]], None]) -> None:
        self._disk, self._answer = disk, answer
        self._asking: list[bytes] = []
        self._closed = False

    def ask(self, connection: bytes) -> None:
        """Check the log, unless a check is under way, and answer this connection then."""
        if len(self._asking) >= ASKING_MAX:
            return
        self._asking.append(connection)
        if len(self._asking) == 1:
            loop, sizes = asyncio.get_running_loop(), dict(self._disk.plan.sizes)
            Thread(target=self._run, args=(loop, sizes), name="shardbus-log", daemon=True).start()

    def close(self) -> None:
        """Give no further answer."""
        self._closed = True

    def _run(self, loop: asyncio.AbstractEventLoop, sizes: Mapping[int, int]) -> None:
        spoiled = self._disk.check(sizes)
        facts = {"segments": len(sizes), "bytes": sum(sizes.values()), "spoiled": spoiled}
        try:
            loop.call_soon_threadsafe(partial(self._done, facts))
        except RuntimeError:  # the loop has ended
            return

    def _done(self, facts: dict[str, Any]) -> None:
        asking, self._asking = self._asking, []
        for connection in asking:
            if not self._closed:
                self._answer(connection, dict(facts))
