"""Group commit: the saves of many entities share a round trip to the store.

When the store is idle, a save is written at once, together with the others of its loop turn. While
a batch is in flight, further saves are collected for the next one; the slower the store, the larger
the batches. Once `ALONGSIDE` saves have been collected, a second batch goes along with the first:
so the store writes one while the node goes on with the answers to the other. Waiting saves are
shared equally between the writers that are free. The callers of a batch are answered in one
callback of the loop (`batch_answer`), and each goes on there.

A store may offer `begin_saves`, which sends a batch without a task, and reports its end to a
callback. Then a batch goes as soon as `AT_ONCE` saves wait, and a third one may be in flight: where
one turn of the loop handles many messages, the store works on the first of them while the node
handles the others.

While every writer has a batch in flight, further handlers only take memory. So each time that
another `AT_ONCE` saves wait, the group notifies its observer, and the node lets the store's answers
come before further messages: handlers end before others begin, which takes a tenth less time.

Appends to journals are writes like saves, and have groups of their own.

A batch is bounded in number and bytes. Of an entity there is at most one save in flight, so that to
repeat a batch is safe.

**The end of an activation.** Its saves that wait are refused (`refuse_unsent`), and are not sent. A
save in flight, which may be sent again, is awaited (`outcome_of`) before the next activation loads
the stored state: so it is in that state, or it has failed for good and is sent no more. The store
keeps a save out that it executes after a later load (`protocol`, the third rule).

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
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import chain, count
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from shardbus.errors import StaleActivation, StoreUnavailable
from shardbus.quantities import counted
from shardbus.store.clock import machine_clock
from shardbus.store.journal_protocol import Append
from shardbus.store.protocol import Reminders, Save
from shardbus.task_set import TaskSet
from shardbus.tasks.batch_answer import BatchAnswer, settle_soon

ATTEMPTS = 3
WRITERS = 2
"""Batches in flight at once, at most."""
QUICK_WRITERS = 3
"""The same where they cost no task."""
ALONGSIDE = 64
"""Saves that are worth a batch of their own while another one is in flight."""
AT_ONCE = 96
"""Saves that are worth a batch while others are still coming, if it costs no task."""
BATCH_SAVES = 1000
BATCH_BYTES = 4 * 1024 * 1024


Entity = tuple[str, str, str]
"""Its type, shard and id."""
Write = Save | Append
"""A write of one row: a state or a journal. Both have type, shard, name and fence in the first four
places, and the operation id in the sixth."""
_Waiting = tuple[Write, BatchAnswer, float, Entity]
"""A write, the answer to its caller, when the caller asked, and for which entity."""
_made = tuple.__new__
"""Makes a named tuple in half the time that its class takes."""


Outcomes = Sequence[Exception | None]
"""Of each save of a batch: its error, None if the store has it."""
_Outcomes = Coroutine[Any, Any, Outcomes]
_Sent = tuple[_Outcomes, float]
"""The coming outcomes of a batch that was sent, and when that was."""
SavesEnded = Callable[[_Outcomes | None], None]
"""Called at the end of a batch: None if the store has it all, else a coroutine that returns the
outcomes, or raises, as `save_states` does."""
BeginSaves = Callable[[Sequence[Any], SavesEnded], bool]
"""Sends a batch at once, and calls `ended` later in a callback of the loop. Returns False, and does
nothing, if the batch must wait for something."""


@runtime_checkable
class BeginsSaves(Protocol):
    """A store that may send a batch without a task for it."""

    begin_saves: BeginSaves | None
    """None if it cannot, which a store may only see at its start."""


class BatchStore(Protocol):
    """The target of a group's batches: a `StateStore`, or the journals of one. It may offer
    `begin_saves`."""

    async def save_states(self, saves: Sequence[Any], /) -> Sequence[Exception | None]: ...


class SaveObserver(Protocol):
    """Takes the figures of a group."""

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def backed_up(self) -> None:
        """`AT_ONCE` more saves wait than before, and no writer is free."""
        ...


class SaveGroup:
    """Collects saves for `store`. `op_ids` yields an unused operation id for each save. A batch is
    tried at most `attempts` times, `pause` seconds apart, and not again `within` seconds after the
    first time. `clock` returns seconds, and goes on while the machine sleeps."""

    def __init__(
        self,
        store: BatchStore,
        op_ids: Iterator[int],
        observer: SaveObserver,
        *,
        attempts: int = ATTEMPTS,
        pause: float = 0.05,
        within: float = 6.0,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._store = store
        self._begin_saves: BeginSaves | None = None
        self._op_ids, self._observer = op_ids, observer
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of its callers. To look it up costs a system call."""
        self._attempts = attempts
        self._pause = pause
        self._within, self._clock = within, clock
        self._waiting: deque[_Waiting] = deque()
        self._in_flight: set[Entity] = set()
        """The entities whose saves are in flight."""
        self._outcomes: dict[Entity, list[asyncio.Future[None]]] = {}
        """The futures of callers that wait for the outcome of a save in flight."""
        self._refused: dict[Entity, int] = {}
        """By entity, the last operation id that is refused, if its save waits. The ids grow."""
        self._writers = self._idle_writers = WRITERS
        self._wakes = False
        """A callback of the loop lets writers begin."""
        self._writing: list[list[_Waiting]] = []
        """The batches in flight, one for each writer that has one."""
        self._tasks = TaskSet()

    def save(
        self,
        entity_type: str,
        shard: str,
        entity_id: str,
        fence: int,
        data: bytes | None,
        reminders: Reminders | None = None,
    ) -> BatchAnswer:
        """Return a future that is done once the store has the state, and the reminders with it. If
        it is cancelled, the state may still be written. Its errors:

            StaleFence: a newer activation loaded or saved the state. Nothing was written.
            StoreUnavailable: the store did not answer; the state may or may not have been written.
        """
        entity = (entity_type, shard, entity_id)
        op_id = next(self._op_ids)
        save = _made(Save, (entity_type, shard, entity_id, fence, data, op_id, reminders))
        return self._put(save, entity)

    def append(
        self, kind: str, shard: str, name: str, fence: int, after: int, entries: tuple[bytes, ...]
    ) -> BatchAnswer:
        """Return a future that is done once a journal has these entries. Its errors are `save`'s,
        and JournalConflict: its last number is not `after`."""
        append = Append(kind, shard, name, fence, entries, next(self._op_ids), after)
        return self._put(append, (kind, shard, name))

    def _put(self, write: Write, entity: Entity) -> BatchAnswer:
        """Let a write wait for a round trip; begin one if it is worth it."""
        loop = self._loop or self._first()
        answer = BatchAnswer.of(loop)
        self._waiting.append((write, answer, perf_counter(), entity))
        idle, waiting = self._idle_writers, len(self._waiting)
        if not idle or (idle < self._writers and waiting < ALONGSIDE):
            if not waiting % AT_ONCE:
                self._observer.backed_up()
            return answer
        if self._begin_saves is None:
            self._idle_writers -= 1
            self._tasks.spawn(self._write(), name="shardbus-saves")
        elif waiting >= AT_ONCE:
            self._begin()
        elif not self._wakes:
            self._wakes = True
            loop.call_soon(self._wake)
        return answer

    def refuse_unsent(self, entity: Entity) -> None:
        """Refuse the saves of an entity that wait, because the activation that asked is over. Their
        callers get StaleActivation when their turn comes."""
        if self._waiting:
            self._refused.pop(entity, None)  # so that the oldest comes first
            self._refused[entity] = self._waiting[-1][0].op_id

    def outcome_of(self, entity: Entity) -> asyncio.Future[None] | None:
        """Return a future that is done once the save of an entity that is in flight has an outcome,
        None if there is none."""
        if entity not in self._in_flight:
            return None
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes.setdefault(entity, []).append(outcome)
        return outcome

    def _first(self) -> asyncio.AbstractEventLoop:
        """Note the loop of the callers, and the abilities of a started store: the first save knows
        both."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self._store, BeginsSaves) and self._store.begin_saves is not None:
            self._begin_saves = self._store.begin_saves
            self._writers = self._idle_writers = QUICK_WRITERS
        return self._loop

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

    def _wake(self) -> None:
        """Let one writer begin, and another one if enough waits for it."""
        self._wakes = False
        if self._idle_writers == self._writers:
            self._begin()
        if self._idle_writers and len(self._waiting) >= ALONGSIDE:
            self._begin()

    def _begin(self) -> None:
        """Write a batch of waiting saves, without a task if the store can."""
        batch = self._take(AT_ONCE)
        if not batch:
            return
        self._idle_writers -= 1
        self._writing.append(batch)
        try:
            begun = self._begin_saves is not None and self._begin_saves(
                [one[0] for one in batch], partial(self._on_end, batch, self._clock())
            )
        except Exception:  # The task meets the same error, and gives it to the callers.
            begun = False
        if not begun:
            self._tasks.spawn(self._write(batch), name="shardbus-saves")

    def _on_end(self, batch: list[_Waiting], sent_at: float, outcomes: _Outcomes | None) -> None:
        """Go on once the store has answered a batch that had begun without a task."""
        if outcomes is not None:
            write = self._write(batch, (outcomes, sent_at))
            self._tasks.spawn(write, name="shardbus-saves")
            return
        self._leave(batch)
        self._idle_writers += 1
        self._answer(batch, [None] * len(batch))
        self._begin()

    async def _write(self, batch: list[_Waiting] | None = None, sent: _Sent | None = None) -> None:
        """Write batches until nothing waits, this one first."""
        try:
            if batch is None:
                batch = self._next()
            while batch:
                try:
                    await self._write_batch(batch, sent)
                finally:
                    self._leave(batch)
                batch, sent = self._next(), None
        finally:
            self._idle_writers += 1

    def _next(self) -> list[_Waiting]:
        """Return the next batch, which is in flight from now on: this writer's share."""
        share = -(-len(self._waiting) // (self._writers - len(self._writing)))
        batch = self._take(min(max(ALONGSIDE, share), BATCH_SAVES))
        if batch:
            self._writing.append(batch)
        return batch

    def _leave(self, batch: list[_Waiting]) -> None:
        """Note that a batch is in flight no more."""
        self._writing = [other for other in self._writing if other is not batch]
        self._in_flight.difference_update([one[3] for one in batch])
        if self._outcomes:
            awaited = [self._outcomes.pop(one[3], ()) for one in batch]
            for outcome in chain.from_iterable(awaited):
                if not outcome.done():
                    outcome.set_result(None)

    async def _write_batch(self, batch: list[_Waiting], sent: _Sent | None) -> None:
        outcomes: Outcomes
        try:
            outcomes = await self._save([one[0] for one in batch], sent)
        except Exception as e:
            outcomes = [e] * len(batch)
        self._answer(batch, outcomes)

    def _answer(self, batch: list[_Waiting], outcomes: Outcomes) -> None:
        """Tell the callers of a batch, and the observer."""
        ended = perf_counter()
        for entity_type in {save[0] for save, _, _, _ in batch}:
            seconds = [ended - began for save, _, began, _ in batch if save[0] == entity_type]
            self._observer.saved(entity_type, seconds)
        for outcome in filter(None, outcomes):
            self._observer.failed(outcome)
        answers = [one[1] for one in batch]
        settle_soon(asyncio.get_running_loop(), answers, outcomes)

    def _take(self, most: int) -> list[_Waiting]:
        """Return the next batch of waiting saves, `most` at most."""
        batch: list[_Waiting] = []
        waiting, in_flight, size = self._waiting, self._in_flight, 0
        refused = self._refused
        if refused:
            self._forget_refused()
        while waiting and len(batch) < most and size < BATCH_BYTES:
            one = waiting.popleft()
            save, answer, _, entity = one
            if answer.settled:
                continue
            if refused and save[5] <= refused.get(entity, -1):
                error = StaleActivation(save[0], save[2], save.fence, "save")
                settle_soon(asyncio.get_running_loop(), [answer], [error])
                continue
            if entity in in_flight:
                waiting.appendleft(one)
                break
            in_flight.add(entity)
            batch.append(one)
            size += save.size if isinstance(save, Append) else len(save[4] or b"")
        return batch

    def _forget_refused(self) -> None:
        """Forget refusals of saves that do not wait any more."""
        first = self._waiting[0][0].op_id if self._waiting else None
        while self._refused:
            entity = next(iter(self._refused))
            if first is not None and self._refused[entity] >= first:
                return
            del self._refused[entity]

    async def _save(self, saves: Sequence[Write], sent: _Sent | None) -> list[Exception | None]:
        """Write saves, and those again whose server did not answer. `sent`: they have begun."""
        if sent is None:
            sent = self._store.save_states(saves), self._clock()
        first, began = sent
        end = began + self._within
        outcomes = await self._try(saves, first)
        for _ in range(1, self._attempts):
            left = _unanswered(outcomes) if any(outcomes) else []
            if not left:
                break
            await asyncio.sleep(self._pause)
            if self._clock() >= end:
                break
            once_more = [saves[i] for i in left]
            again = await self._try(once_more, self._store.save_states(once_more))
            for i, outcome in zip(left, again, strict=True):
                before, outcomes[i] = outcomes[i], outcome
                if isinstance(outcome, StoreUnavailable) and isinstance(before, StoreUnavailable):
                    outcome.definite = outcome.definite and before.definite
        return outcomes

    async def _try(self, saves: Sequence[Write], answer: _Outcomes) -> list[Exception | None]:
        """Return the outcome of each save, StoreUnavailable for one without an answer."""
        try:
            outcomes: list[Exception | None] = list(await answer)
        except StoreUnavailable as e:
            return [StoreUnavailable(e.message, hint=e.hint, definite=e.definite) for _ in saves]
        if missing := len(saves) - len(outcomes):  # a defect of the store
            error = ValueError(
                f"the store answered {len(outcomes)} of {counted(len(saves), 'save')}"
            )
            outcomes = [*outcomes[: len(saves)], *[error] * missing]
        return outcomes


def _unanswered(outcomes: Sequence[Exception | None]) -> list[int]:
    return [i for i, outcome in enumerate(outcomes) if isinstance(outcome, StoreUnavailable)]


def op_ids(uid: int) -> Iterator[int]:
    """Yield operation ids for the node with this uid, 63 bits each: they count from a random start,
    so that a collision in the cluster is negligible."""
    return count(random.Random(uid).getrandbits(62))
