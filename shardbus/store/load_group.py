"""Loads of many entities share round trips, as saves do (`group_commit`).

When no load is in flight, one goes at once, together with the others of its loop turn. While a
group is in flight, further loads are collected for the next one, and a second group goes along with
the first once there is enough for it. A group has entities of one type, each once. Each caller gets
the error of its group as an error of its own; it decides itself whether to load again. If the store
does not answer a group, the loads that waited behind it when it went fail with it: they have waited
as long, and each group of them would take as long again.

A group that was sent and got no answer may be too large for a server that limits its replies, as
Redis does by `client-output-buffer-limit`. The next groups have half as many loads, and grow again
after many that were answered (`GroupSize`). So each state is loaded that can be loaded alone.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from shardbus.errors import StoreError, StoreUnavailable
from shardbus.store.batches import failures
from shardbus.task_set import TaskSet

GROUP_LOADS = 128
READERS = 2
ALONGSIDE = 64
"""Loads that are worth a group of their own while another one is in flight."""


GROWS_AFTER, GROWS_AFTER_MAX = 16, 1024
"""Groups in a row that are answered before the next ones may have twice as many loads. The number
doubles with each group that was too large, up to the second one."""


class GroupSize:
    """How many loads the next group may have."""

    def __init__(self) -> None:
        self.most = GROUP_LOADS
        self._answered = 0
        self._grows_after = GROWS_AFTER

    def answered(self) -> None:
        """Note that the store answered a group."""
        if self.most == GROUP_LOADS:
            return
        self._answered += 1
        if self._answered < self._grows_after:
            return
        self._answered = 0
        self.most = min(2 * self.most, GROUP_LOADS)
        if self.most == GROUP_LOADS:
            self._grows_after = GROWS_AFTER

    def lost(self, loads: int) -> None:
        """Note that the store took a group of this many loads and did not answer it."""
        if self.most < GROUP_LOADS:
            self._grows_after = min(2 * self._grows_after, GROWS_AFTER_MAX)
        self._answered = 0
        self.most = max(1, min(self.most, loads) // 2)


class Load(NamedTuple):
    """A load of one entity's state, which raises its stored fence."""

    entity_type: str
    shard: str
    entity_id: str
    fence: int


Loaded = bytes | StoreError | None
"""The state, None if there is none, or why it was not loaded: StaleFence, or a stored fence that is
damaged."""

_Waiting = tuple[Load, asyncio.Future[bytes | None], int]
"""A load, the answer to its caller, and its number."""


class LoadGroup:
    """Collects loads. `load_all` loads entities of one type in one step."""

    def __init__(self, load_all: Callable[[Sequence[Load]], Awaitable[list[Loaded]]]) -> None:
        self._load_all = load_all
        self._waiting: deque[_Waiting] = deque()
        self._idle_readers = READERS
        self._size = GroupSize()
        self._number = 0
        """The number of the last load."""
        self._tasks = TaskSet()

    def load(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> asyncio.Future[bytes | None]:
        """Return a future of the state, None if there is none. Its errors are the same as of the
        store's `load_state`."""
        answer: asyncio.Future[bytes | None]
        answer = asyncio.Future(loop=asyncio.get_running_loop())
        self._number += 1
        self._waiting.append((Load(entity_type, shard, entity_id, fence), answer, self._number))
        idle = self._idle_readers
        if idle == READERS or (idle and len(self._waiting) >= ALONGSIDE):
            self._idle_readers -= 1
            self._tasks.spawn(self._read(), name="shardbus-loads")
        return answer

    async def _read(self) -> None:
        """Load groups until nothing waits."""
        try:
            while group := self._take():
                await self._load_group(group)
        finally:
            self._idle_readers += 1

    async def _load_group(self, group: list[_Waiting]) -> None:
        answers: Sequence[Loaded | Exception]
        last = self._number
        try:
            answers = await self._load_all([load for load, _, _ in group])
        except StoreUnavailable as e:
            if not e.definite:
                self._size.lost(len(group))
            while self._waiting and self._waiting[0][2] <= last:
                group.append(self._waiting.popleft())
            answers = failures(e, len(group))
        except Exception as e:
            answers = [e] * len(group)
        else:
            self._size.answered()
        for (_, answer, _), loaded in zip(group, answers, strict=True):
            if answer.done():
                continue
            if isinstance(loaded, Exception):
                answer.set_exception(loaded)
            else:
                answer.set_result(loaded)

    def _take(self) -> list[_Waiting]:
        """Return the next group."""
        group: dict[str, _Waiting] = {}
        waiting, entity_type = self._waiting, ""
        while waiting and len(group) < self._size.most:
            load, answer, _ = waiting[0]
            if load.entity_id in group or (group and load.entity_type != entity_type):
                break
            entry = waiting.popleft()
            if not answer.done():
                group[load.entity_id] = entry
                entity_type = load.entity_type
        return list(group.values())
