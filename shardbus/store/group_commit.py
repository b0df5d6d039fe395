"""Group commit: the saves of many entities share a round trip to the store.

When the store is idle, a save is written at once, together with the others of its loop turn. While
a write is in flight, further saves are collected for the next one; the slower the store, the larger
the batches. A batch is bounded in number and bytes. It holds at most one save of an entity, so that
to repeat a batch is safe.

A batch without an answer is sent again with the same operation ids, a bounded number of times and
for a bounded time. Then it fails for each of its callers; the store has either the old value or the
new one. The bound in time is for a process that stood still: the shard may have a new home by now,
and a store that failed over meanwhile may have lost the fence that keeps this save out.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.clock import machine_clock
from shardbus.store.protocol import Save, StateStore
from shardbus.task_set import TaskSet

ATTEMPTS = 3
BATCH_SAVES = 1000
BATCH_BYTES = 4 * 1024 * 1024


_Waiting = tuple[Save, asyncio.Future[None]]


class SaveGroup:
    """Collects saves for `store`. `op_ids` yields an unused operation id for each save. A batch is
    tried at most `attempts` times, `pause` seconds apart, and not again `within` seconds after the
    first time. `clock` returns seconds, and goes on while the machine sleeps."""

    def __init__(
        self,
        store: StateStore,
        op_ids: Iterator[int],
        *,
        attempts: int = ATTEMPTS,
        pause: float = 0.05,
        within: float = 6.0,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._store = store
        self._op_ids = op_ids
        self._attempts = attempts
        self._pause = pause
        self._within, self._clock = within, clock
        self._waiting: deque[_Waiting] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    def save(
        self, entity_type: str, entity_id: str, fence: int, data: bytes | None
    ) -> asyncio.Future[None]:
        """Return a future that is done once the store has the state. If it is cancelled, the state
        may still be written. Its errors:

            StaleFence: a newer activation loaded or saved the state. Nothing was written.
            StoreUnavailable: the store did not answer; the state may or may not have been written.
        """
        save = Save(entity_type, entity_id, fence, data, next(self._op_ids))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((save, answer))
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write(), name="shardbus-saves")
        return answer

    async def _write(self) -> None:
        while batch := self._take():
            try:
                _answer(batch, await self._save([save for save, _ in batch]))
            except StoreUnavailable as error:
                for _, answer in batch:
                    if not answer.done():
                        own = StoreUnavailable(
                            error.message, hint=error.hint, definite=error.definite
                        )
                        answer.set_exception(own)
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        entities: set[tuple[str, str]] = set()
        size = 0
        while self._waiting and len(batch) < BATCH_SAVES and size < BATCH_BYTES:
            save, answer = self._waiting[0]
            entity = save[:2]
            if entity in entities:
                break
            waiting = self._waiting.popleft()
            if not answer.done():
                batch.append(waiting)
                entities.add(entity)
                size += len(save.data or b"")
        return batch

    async def _save(self, saves: list[Save]) -> list[StaleFence | None]:
        definite, end = True, self._clock() + self._within
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._store.save_states(saves)
            except StoreUnavailable as error:
                definite = error.definite = definite and error.definite
                if attempt == self._attempts:
                    raise
                await asyncio.sleep(self._pause)
                if self._clock() >= end:
                    raise
        raise AssertionError("a batch is tried at least once")


def op_ids(uid: int) -> Iterator[int]:
    """Yield operation ids for the node with this uid: 63 random bits each, so that a collision in
    the cluster is negligible."""
    dice = random.Random(uid)
    while True:
        yield dice.getrandbits(63)


def _answer(batch: list[_Waiting], outcomes: list[StaleFence | None]) -> None:
    for (_, answer), outcome in zip(batch, outcomes, strict=True):
        if answer.done():
            continue
        if outcome is None:
            answer.set_result(None)
        else:
            answer.set_exception(outcome)
