"""Group commit: the saves of many entities share a round trip to the store.

When the store is idle, a save is written at once, together with the others of its loop turn. While
a batch is in flight, further saves are collected for the next one; the slower the store, the larger
the batches. Once `ALONGSIDE` saves have been collected, a second batch goes along with the first:
so the store writes one while the node goes on with the answers to the other. Waiting saves are
shared equally between the writers that are free.

**One road.** `begin_saves` of the store takes a batch, and its callback ends it (`batches`). The
callers go on in that callback, each in its own context (`batch_answer`). A store for which small
batches are as good as large ones says so (`quick`): then a batch goes as soon as `AT_ONCE` saves
wait, and a third one may be in flight. Where one turn of the loop handles many messages, the store
works on the first of them while the node handles the others.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from time import perf_counter
from typing import Protocol

from shardbus.errors import StaleActivation, StoreUnavailable
from shardbus.store.batches import BeginsSaves, Outcomes, failures
from shardbus.store.clock import machine_clock
from shardbus.store.journal_protocol import Append
from shardbus.store.protocol import Reminders, Save
from shardbus.tasks.batch_answer import BatchAnswer, settle, settle_soon

ATTEMPTS = 3
WRITERS = 2
"""Batches in flight at once, at most."""
QUICK_WRITERS = 3
"""The same at a quick store."""
ALONGSIDE = 64
"""Saves that are worth a batch of their own while another one is in flight."""
AT_ONCE = 96
"""Saves that are worth a batch at a quick store while others are still coming."""
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


@dataclass(slots=True, eq=False)
class _Flight:
    """A batch in flight. `end`: it is not sent again from then on. `places`: of the writes that
    were sent last."""

    batch: list[_Waiting]
    end: float
    places: Sequence[int]
    outcomes: list[Exception | None]
    tries: int = 1

    def note(self, outcomes: Outcomes) -> None:
        """Note the outcomes of the writes that were sent last."""
        for place, outcome in zip(self.places, outcomes, strict=True):
            before, self.outcomes[place] = self.outcomes[place], outcome
            if isinstance(outcome, StoreUnavailable) and isinstance(before, StoreUnavailable):
                outcome.definite = outcome.definite and before.definite
        self.places = [
            place
            for place, outcome in enumerate(self.outcomes)
            if isinstance(outcome, StoreUnavailable)
        ]


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
        store: BeginsSaves,
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
        self._quick = False
        self._writers = self._idle_writers = WRITERS
        self._wakes = False
        """A callback of the loop lets writers begin."""
        self._writing: list[list[_Waiting]] = []
        """The batches in flight, one for each writer that has one."""

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
        if idle and self._quick and waiting >= AT_ONCE:
            self._begin()
        elif not self._wakes and (idle == self._writers or (idle and waiting >= ALONGSIDE)):
            self._wakes = True
            loop.call_soon(self._wake)
        elif not waiting % AT_ONCE:
            self._observer.backed_up()
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
        """Note the loop of the callers, and the kind of a started store: the first save knows
        both."""
        self._loop, self._quick = asyncio.get_running_loop(), self._store.quick
        if self._quick:
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
        waiting = len(self._waiting)
        if self._idle_writers == self._writers:
            self._begin()
        if self._idle_writers and waiting >= ALONGSIDE:
            self._begin()

    def _begin(self) -> None:
        """Write a batch of waiting saves: the share of a writer that is free."""
        share = -(-len(self._waiting) // self._idle_writers)
        batch = self._take(AT_ONCE if self._quick else min(max(ALONGSIDE, share), BATCH_SAVES))
        if batch:
            self._idle_writers -= 1
            self._writing.append(batch)
            end, places = self._clock() + self._within, range(len(batch))
            self._send(_Flight(batch, end, places, [None] * len(batch)))

    def _send(self, flight: _Flight) -> None:
        """Write what is left of a batch."""
        saves = [flight.batch[place][0] for place in flight.places]
        ended = partial(self._on_end, flight)
        try:
            self._store.begin_saves(saves, ended)
        except Exception as e:
            asyncio.get_running_loop().call_soon(ended, failures(e, len(saves)))

    def _on_end(self, flight: _Flight, outcomes: Outcomes) -> None:
        """Go on once the store has answered: send the writes again whose server did not, or answer
        the callers."""
        if any(outcomes) or flight.tries > 1:
            flight.note(outcomes)
            if flight.places and flight.tries < self._attempts:
                asyncio.get_running_loop().call_later(self._pause, self._send_again, flight)
                return
        self._end(flight)

    def _send_again(self, flight: _Flight) -> None:
        if self._clock() >= flight.end:
            self._end(flight)
            return
        flight.tries += 1
        self._send(flight)

    def _end(self, flight: _Flight) -> None:
        """Begin the next batch, and answer the callers of this one."""
        self._leave(flight.batch)
        self._idle_writers += 1
        self._begin()
        self._answer(flight.batch, flight.outcomes)

    def _leave(self, batch: list[_Waiting]) -> None:
        """Note that a batch is in flight no more."""
        self._writing = [other for other in self._writing if other is not batch]
        self._in_flight.difference_update([entry[3] for entry in batch])
        if self._outcomes:
            awaited = [self._outcomes.pop(entry[3], ()) for entry in batch]
            for outcome in chain.from_iterable(awaited):
                if not outcome.done():
                    outcome.set_result(None)

    def _answer(self, batch: list[_Waiting], outcomes: Outcomes) -> None:
        """Tell the callers of a batch, and the observer."""
        ended = perf_counter()
        for entity_type in {save[0] for save, _, _, _ in batch}:
            seconds = [ended - began for save, _, began, _ in batch if save[0] == entity_type]
            self._observer.saved(entity_type, seconds)
        for outcome in filter(None, outcomes):
            self._observer.failed(outcome)
        answers = [entry[1] for entry in batch]
        settle(asyncio.get_running_loop(), answers, outcomes)

    def _take(self, most: int) -> list[_Waiting]:
        """Return the next batch of waiting saves, `most` at most."""
        batch: list[_Waiting] = []
        waiting, in_flight, size = self._waiting, self._in_flight, 0
        refused = self._refused
        if refused:
            self._forget_refused()
        while waiting and len(batch) < most and size < BATCH_BYTES:
            entry = waiting.popleft()
            save, answer, _, entity = entry
            if answer.settled:
                continue
            if refused and save[5] <= refused.get(entity, -1):
                error = StaleActivation(save[0], save[2], save.fence, "save")
                settle_soon(asyncio.get_running_loop(), [answer], [error])
                continue
            if entity in in_flight:
                waiting.appendleft(entry)
                break
            in_flight.add(entity)
            batch.append(entry)
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


def op_ids(uid: int) -> Iterator[int]:
    """Yield operation ids for the node with this uid, 63 bits each: they count from a random start,
    so that a collision in the cluster is negligible."""
    return count(random.Random(uid).getrandbits(62))
