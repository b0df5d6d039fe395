"""The sender's half of holds: entities at the other end without room, and their messages, which
wait here.

    ──Hold──> HELD ──room──> DRAINING ──queue empty──> (forgotten)
               ^               │
               └──────Hold─────┘

While an entity is held, or its queue drains, later messages for it join its queue, and messages for
other entities go on. `await tell` waits until the entity is forgotten, `tell_nowait` raises
BufferFull, and an ask waits until its deadline.

**Draining.** The queue leaves in portions. Each waits for the acknowledgement of the one before,
with which the Hold comes that its messages have caused. So a receiver that is full again after a
few messages gets a portion or two more than it has room for.

**Far ahead.** A sender that does not wait for room, or whose messages had to wait for a home, may
have more under way than the receiver's rests hold. So batches that have not left yet give back
their messages for an entity that is held now (`take_back`), if together they have more than
`TAKE_BACK_MIN`. A Flush and a MoveAck stay behind everything that was sent before them.

**Leaving.** When this process stops using the session for a shard, the messages that wait for the
shard's entities leave at once, ahead of the Flush or the MoveAck (`leave`). When the session ends,
the queues are returned with the other messages that were never sent, as the newest.

**Bounds.** A sender that does not await its tells is refused if an entity's queue has more than
half of the send buffer, or all queues together have three quarters of it and this one more than
`SMALL_WEIGHT`. So one such sender leaves room for the others. Over `HELD_MAX` entities Hold is
ignored: the receiver then holds the whole session.

Nothing here costs a message while no entity is held.

Source: docs/guarantees.md; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from shardbus.transport.full_entities import Target, part_of
from shardbus.transport.inbox import BEHIND_MESSAGES
from shardbus.transport.run_queue import EntityRun, RunQueue
from shardbus.wire.batch import AskRun, Control, Flush, Run, TellRun, decode_batch, encode_batch

HELD_MAX = 10_000
"""Entities that one session holds, at most."""
SMALL_WEIGHT = 1024 * 1024
"""A queue below this weight is refused nothing before the send buffer itself is full."""
PORTION_WEIGHT = 128 * 1024
"""Weight of a portion, exceeded by one run at most."""


TAKE_BACK_MIN = 1024 * 1024
"""Bytes that have not left, up to which nothing is taken back."""


class HeldEntity(RunQueue):
    """An entity without room at the other end, and its queue here."""

    __slots__ = ("draining", "waiters")

    def __init__(self) -> None:
        super().__init__()
        self.draining = False
        self.waiters: list[asyncio.Future[None]] = []
        """Of senders that await this entity's room."""


class HeldEntities:
    """The held entities of one session."""

    __slots__ = ("_entities", "_leave_waiters", "weight")

    def __init__(self) -> None:
        self._entities: dict[Target, HeldEntity] = {}
        self._leave_waiters: list[tuple[dict[Target, int], asyncio.Future[None]]] = []
        """Wait until messages have left the queues."""
        self.weight = 0
        """Of all queues."""

    def __bool__(self) -> bool:
        return bool(self._entities)

    def __contains__(self, target: Target) -> bool:
        return target in self._entities

    def hold(self, target: Target) -> bool:
        """The receiver has no room for an entity. Returns False if there are too many."""
        entity = self._entities.get(target)
        if entity is not None:
            entity.draining = False
        elif len(self._entities) < HELD_MAX:
            self._entities[target] = HeldEntity()
        else:
            return False
        return True

    def drain(self, target: Target) -> None:
        """The receiver has room again."""
        entity = self._entities.get(target)
        if entity is not None:
            entity.draining = True

    def drains(self, target: Target) -> bool:
        """True if the queue of an entity leaves."""
        entity = self._entities.get(target)
        return entity is not None and entity.draining

    def portion(self, target: Target, tick: int) -> list[EntityRun]:
        """Remove and return the next runs of a queue that drains."""
        entity, runs, start = self._entities.get(target), list[EntityRun](), 0
        if entity is None or not entity.draining:
            return runs
        start = entity.weight
        while entity and start - entity.weight < PORTION_WEIGHT:
            runs.append(entity.take(tick))
        self.weight -= start - entity.weight
        return runs

    def drained(self, target: Target) -> list[asyncio.Future[None]] | None:
        """Forget an entity that drains, if its queue is empty, and return the waiters for its room.
        None if it is not forgotten."""
        entity = self._entities.get(target)
        if entity is None:
            return []
        if entity or not entity.draining:
            return None
        del self._entities[target]
        return entity.waiters

    def waiters(self, target: Target) -> list[asyncio.Future[None]] | None:
        """The waiters for the room of an entity; None if it is not held."""
        entity = self._entities.get(target)
        return None if entity is None else entity.waiters

    def refuses(self, target: Target, limit: int) -> bool:
        """True if no further message may wait for a held entity. `limit`: the send buffer's."""
        entity = self._entities[target]
        if entity.weight <= min(SMALL_WEIGHT, limit // 2):
            return False
        return entity.weight > limit // 2 or self.weight > limit // 4 * 3

    def put(self, target: Target, run: EntityRun, tick: int) -> None:
        """Append a run to the queue of a held entity."""
        self.weight += self._entities[target].put(run, tick)

    def empty(self, target: Target) -> bool:
        """True if an entity is held and nothing waits for it."""
        entity = self._entities.get(target)
        return entity is not None and not entity

    def leave(self, leaves: Callable[[Target], bool], tick: int) -> list[EntityRun]:
        """Remove and return the messages that wait for these entities, which stay held."""
        runs: list[EntityRun] = []
        for target, entity in self._entities.items():
            if entity and leaves(target):
                self.weight -= entity.weight
                runs += entity.take_all(tick)
        return runs

    def when_left(self, waiter: asyncio.Future[None]) -> None:
        """Let a waiter wait until the present messages of all queues have left."""
        marks = {target: entity.added for target, entity in self._entities.items() if entity}
        self._leave_waiters.append((marks, waiter))

    def take_leave_waiters(self) -> list[asyncio.Future[None]]:
        """Remove and return the waiters whose messages have left."""
        if not self._leave_waiters:
            return []
        rows, entities = self._leave_waiters, self._entities
        left = [
            all(t not in entities or entities[t].left >= mark for t, mark in marks.items())
            for marks, _ in rows
        ]
        self._leave_waiters = [row for row, gone in zip(rows, left, strict=True) if not gone]
        return [waiter for (_, waiter), gone in zip(rows, left, strict=True) if gone]

    def all_waiters(self) -> list[asyncio.Future[None]]:
        """Every waiter, because the session ends."""
        waiting = [waiter for entity in self._entities.values() for waiter in entity.waiters]
        return waiting + [waiter for _, waiter in self._leave_waiters]

    @property
    def runs(self) -> list[EntityRun]:
        """Everything that waits."""
        return [run for entity in self._entities.values() for run in entity.runs]

    def check(self) -> None:
        """Audit the queues."""
        assert len(self._entities) <= HELD_MAX
        for entity in self._entities.values():
            entity.check()
        assert self.weight == sum(entity.weight for entity in self._entities.values())


def take_back(body: bytes, targets: Collection[Target]) -> tuple[bytes, list[EntityRun]] | None:
    """Take the messages for these entities out of a batch. Returns the batch of the others, and the
    messages taken; None if a run of the batch says that everything before it has been sent."""
    runs = decode_batch(body)
    if any(_is_behind(run) for run in runs):
        return None
    kept: list[Run] = []
    taken: list[EntityRun] = []
    for run in runs:
        if not isinstance(run, TellRun | AskRun):
            kept.append(run)
            continue
        others = []
        places: dict[str, list[int]] = {}
        for at, entity_id in enumerate(run.ids):
            if (run.type, entity_id) in targets:
                places.setdefault(entity_id, []).append(at)
            else:
                others.append(at)
        taken += [part_of(run, at) for at in places.values()]
        if others:
            kept.append(part_of(run, others) if places else run)
    return (encode_batch(kept) if taken else body), taken


def _is_behind(run: Run) -> bool:
    return isinstance(run, Flush) or (isinstance(run, Control) and run.tag in BEHIND_MESSAGES)
