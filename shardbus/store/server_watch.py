"""The watch over a store's server: calls at intervals, also of a node that has nothing to store.

    every PROBE_S        the store's probe: is the server there, and is it the one of before?
    every `check_every`  its settings: an operator may change them while nodes run

Faults in the settings are kept in `problems`, and logged once.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shardbus.errors import StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.store")

PROBE_S = 2.0
"""Between two calls that only check that the server is there, and which it is."""


class ServerWatch:
    """Calls `probe`, and `find_problems` every `check_every` seconds, which returns the faults in
    the server's settings. Either may raise StoreUnavailable. `shown` names the server."""

    def __init__(
        self,
        shown: str,
        probe: Callable[[], Awaitable[None]],
        find_problems: Callable[[], Awaitable[tuple[str, ...]]],
        *,
        check_every: float,
    ) -> None:
        self._shown, self._probe, self._find_problems = shown, probe, find_problems
        self._check_every = check_every
        self._task: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self.problems: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """True from `start` to `close`."""
        return self._task is not None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), name="shardbus-store-watch")

    async def close(self) -> None:
        """End it. Does nothing if it does not run."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        due = self._check_every
        while True:
            pause = min(PROBE_S, self._check_every)
            await asyncio.sleep(pause)
            due -= pause
            try:
                await self._probe()
                if due <= 0:
                    due = self._check_every
                    await self._check_again()
            except StoreUnavailable:
                pass  # the calls of others say so
            except Exception:
                log.exception("the store %s was not probed", self._shown)

    async def _check_again(self) -> None:
        problems = await self._find_problems()
        for problem in set(problems) - set(self.problems):
            log.error("%s", problem)
        if self.problems and not problems:
            log.info("the settings of the store %s are in order again", self._shown)
        self.problems = problems
