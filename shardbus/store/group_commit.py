"""Group commit: the saves of many entities share a round trip to the store.

When the store is idle, a save is written at once, together with the others of its loop turn. While
a batch is in flight, further saves are collected for the next one; the slower the store, the larger
the batches. Once `ALONGSIDE` saves have been collected, a second batch goes along with the first:
so the store writes one while the node goes on with what the other has answered. What waits is
shared equally between the writers that are free. The callers of a batch are answered in one
callback of the loop (`batch_answer`), and each goes on there.

A batch is bounded in number and bytes. Of an entity there is at most one save in flight, so that to
repeat a batch is safe.

A batch without an answer is sent again with the same operation ids, a bounded number of times and
for a bounded time, and so is the part of a batch whose server did not answer. Then it fails for
each of its callers; the store has either the old value or the new one. The bound in time is for a
process that stood still: the shard may have a new home by now, and a store that failed over
meanwhile may have lost the fence that keeps this save out.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from time import perf_counter
from typing import Protocol

from shardbus.errors import StoreUnavailable
from shardbus.store.batch_answer import BatchAnswer, settle_soon
from shardbus.store.clock import machine_clock
from shardbus.store.protocol import Save, StateStore
from shardbus.task_set import TaskSet

ATTEMPTS = 3
WRITERS = 2
ALONGSIDE = 64
"""Saves that are worth a batch of their own while another one is in flight."""
BATCH_SAVES = 1000
BATCH_BYTES = 4 * 1024 * 1024


_Entity = tuple[str, str, str]
"""Its type, shard and id."""
_Waiting = tuple[Save, BatchAnswer, float]
"""A save, the answer to its caller, and when the caller asked."""


class SaveObserver(Protocol):
    """Takes the figures of a group."""

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None: ...
    def failed(self, error: Exception) -> None: ...


class SaveGroup:
    """Collects saves for `store`. `op_ids` yields an unused operation id for each save. A batch is
    tried at most `attempts` times, `pause` seconds apart, and not again `within` seconds after the
    first time. `clock` returns seconds, and goes on while the machine sleeps."""

    def __init__(
        self,
        store: StateStore,
        op_ids: Iterator[int],
        observer: SaveObserver,
        *,
        attempts: int = ATTEMPTS,
        pause: float = 0.05,
        within: float = 6.0,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._store = store
        self._op_ids, self._observer = op_ids, observer
        self._attempts = attempts
        self._pause = pause
        self._within, self._clock = within, clock
        self._waiting: deque[_Waiting] = deque()
        self._in_flight: set[_Entity] = set()
        """The entities whose saves are in flight."""
        self._idle_writers = WRITERS
        self._writing: list[list[_Waiting]] = []
        """The batches in flight, one for each writer that has one."""
        self._tasks = TaskSet()

    def save(
        self, entity_type: str, shard: str, entity_id: str, fence: int, data: bytes | None
    ) -> asyncio.Future[None]:
        """Return a future that is done once the store has the state. If it is cancelled, the state
        may still be written. Its errors:

            StaleFence: a newer activation loaded or saved the state. Nothing was written.
            StoreUnavailable: the store did not answer; the state may or may not have been written.
        """
        save = Save(entity_type, shard, entity_id, fence, data, next(self._op_ids))
        answer = BatchAnswer.of(asyncio.get_running_loop())
        self._waiting.append((save, answer, perf_counter()))
        idle = self._idle_writers
        if idle == WRITERS or (idle and len(self._waiting) >= ALONGSIDE):
            self._idle_writers -= 1
            self._tasks.spawn(self._write(), name="shardbus-saves")
        return answer

    @property
    def backlog(self) -> tuple[int, float]:
        """The saves that are not in a batch yet, and for how many seconds the oldest has waited."""
        if not self._waiting:
            return 0, 0.0
        return len(self._waiting), perf_counter() - self._waiting[0][2]

    @property
    def longest_wait(self) -> float:
        """Seconds for which the oldest save has had no answer; 0 if none is under way. In a batch
        and among those that wait the first one is the oldest."""
        firsts = [batch[0][2] for batch in self._writing]
        if self._waiting:
            firsts.append(self._waiting[0][2])
        return perf_counter() - min(firsts) if firsts else 0.0

    async def _write(self) -> None:
        """Write batches until nothing waits."""
        try:
            while batch := self._take():
                self._writing.append(batch)
                try:
                    await self._write_batch(batch)
                finally:
                    self._writing = [other for other in self._writing if other is not batch]
                    self._in_flight.difference_update([save[:3] for save, _, _ in batch])
        finally:
            self._idle_writers += 1

    async def _write_batch(self, batch: list[_Waiting]) -> None:
        saves, answers, begun = zip(*batch, strict=True)
        outcomes: Sequence[Exception | None]
        try:
            outcomes = await self._save(saves)
        except Exception as e:
            outcomes = [e] * len(batch)
        ended, durations = perf_counter(), defaultdict[str, list[float]](list)
        for save, began in zip(saves, begun, strict=True):
            durations[save[0]].append(ended - began)
        for entity_type, seconds in durations.items():
            self._observer.saved(entity_type, seconds)
        for outcome in filter(None, outcomes):
            self._observer.failed(outcome)
        settle_soon(asyncio.get_running_loop(), answers, outcomes)

    def _take(self) -> list[_Waiting]:
        """Return the next batch: this writer's share of what waits."""
        batch: list[_Waiting] = []
        waiting, in_flight = self._waiting, self._in_flight
        share = max(ALONGSIDE, -(-len(waiting) // (WRITERS - len(self._writing))))
        most, size = min(share, BATCH_SAVES), 0
        while waiting and len(batch) < most and size < BATCH_BYTES:
            save, answer, _ = one = waiting[0]
            entity = save[:3]
            if entity in in_flight:
                break
            waiting.popleft()
            if not answer.done():
                in_flight.add(entity)
                batch.append(one)
                size += len(save[4] or b"")
        return batch

    async def _save(self, saves: Sequence[Save]) -> list[Exception | None]:
        """Write saves, and those again whose server did not answer."""
        end = self._clock() + self._within
        outcomes = await self._try(saves)
        for _ in range(1, self._attempts):
            left = _unanswered(outcomes) if any(outcomes) else []
            if not left:
                break
            await asyncio.sleep(self._pause)
            if self._clock() >= end:
                break
            again = await self._try([saves[i] for i in left])
            for i, outcome in zip(left, again, strict=True):
                before, outcomes[i] = outcomes[i], outcome
                if isinstance(outcome, StoreUnavailable) and isinstance(before, StoreUnavailable):
                    outcome.definite = outcome.definite and before.definite
        return outcomes

    async def _try(self, saves: Sequence[Save]) -> list[Exception | None]:
        """Return the answer to each save, StoreUnavailable for one without."""
        try:
            outcomes: list[Exception | None] = list(await self._store.save_states(saves))
        except StoreUnavailable as e:
            return [StoreUnavailable(e.message, hint=e.hint, definite=e.definite) for _ in saves]
        if missing := len(saves) - len(outcomes):  # a defect of the store
            error = ValueError(f"the store answered {len(outcomes)} of {len(saves)} saves")
            outcomes = [*outcomes[: len(saves)], *[error] * missing]
        return outcomes


def _unanswered(outcomes: Sequence[Exception | None]) -> list[int]:
    return [i for i, outcome in enumerate(outcomes) if isinstance(outcome, StoreUnavailable)]


def op_ids(uid: int) -> Iterator[int]:
    """Yield operation ids for the node with this uid, 63 bits each: they count from a random start,
    so that a collision in the cluster is negligible."""
    return count(random.Random(uid).getrandbits(62))
