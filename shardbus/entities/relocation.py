"""Remembered entities that stand on the list of a wrong shard.

After a change of the shard function an id belongs elsewhere than the list says. Whoever finds it
there starts it in its right shard, and then forgets it here; in this order, so that it is on a list
at every moment. What cannot be started is tried again.

Source: S4.40; B.94.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from shardbus.errors import RequestError

if TYPE_CHECKING:
    from shardbus.entities.shard import Shard

log = logging.getLogger("shardbus.remember")

MOVES_MAX = 100
"""So many are on their way at a time."""
MOVE_AGAIN_S = 2.0


class EntityRelocation:
    """The entities of one type. `forget` takes an id from a shard's list, `again` looks once more
    what is to be done about it."""

    def __init__(
        self,
        entity_type: str,
        loop: asyncio.AbstractEventLoop,
        start_elsewhere: Callable[[str], Awaitable[None]],
        forget: Callable[[Shard, str], None],
        again: Callable[[Shard, str], object],
    ) -> None:
        self.entity_type = entity_type
        self._loop, self._start_elsewhere = loop, start_elsewhere
        self._forget, self._again = forget, again
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(MOVES_MAX)

    def move(self, hosted: Shard, entity_id: str) -> None:
        """Start it where it belongs, then forget it here."""
        task = self._loop.create_task(self._move(hosted, entity_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _move(self, hosted: Shard, entity_id: str) -> None:
        async with self._places:
            try:
                await self._start_elsewhere(entity_id)
            except RequestError as e:
                log.warning("%s %r does not start elsewhere: %s", self.entity_type, entity_id, e)
                self._loop.call_later(MOVE_AGAIN_S, self._again, hosted, entity_id)
            else:
                self._forget(hosted, entity_id)

    def stop(self) -> None:
        """The node ends."""
        for task in self._tasks:
            task.cancel()
