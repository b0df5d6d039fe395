"""The receiver's half of holds: entities without room, and their messages that came all the same.

A receiver that has no room for one entity says so to the sender, and only the messages for this
entity wait, in three places that each have a bound:

    sender                                     receiver
    queue of the entity (`held_entities`) ──>  rest of the entity ──> its mailbox
      ^ Hold: the mailbox is full                ^ messages on their way when Hold was sent
      └ Hold (begins False): there is room       └ handed out as soon as there is room

1. The receiver's mailbox is full. The inbox lists the entity here, and sends Hold, once.
2. Messages that were on their way become the *rest* of the entity: they are acknowledged like any
   other, because other messages of their batches were handled. A rest is in the memory of this
   process, as a mailbox is, and is lost only with it.
3. There is room again: runs of the rest are handed out until the entity is full again. Once the
   rest is empty and there is room, the sender gets Hold with `begins` False.

**Order** holds per sender and entity, so messages for other entities pass. Asks wait with the tells
of their sender, until their deadline; a sender whose tells do not wait is answered by the mailbox,
which refuses its asks. Before a Flush, and
before a MoveAck, every rest of the session is handed out, room or not: they say that everything
sent before them has arrived. Forwarded messages (Relayed) pass. Their sender's earlier messages
took the same way, and are no rest here.

**The end.** When the session ends, the rests are handed out as *owed*: the receiver takes them over
the bound in messages, within the bound in bytes.

**Bound.** The window bounds the messages on their way, and so the rests of a session. Over
`RESTS_WEIGHT_MAX`, which only a sender without regard for its window or with tiny messages in one
turn of its loop reaches, the inbox holds the whole session, until half of it is free.

A peer that does not speak of holds (`wire.batch.ENTITY_HOLDS`) is never listed here: its whole
session is paused.

Source: docs/guarantees.md; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardbus.transport.run_queue import EntityRun, RunQueue
from shardbus.wire.batch import AskRun, TellRun

Target = tuple[str, str]
"""An entity: type and id."""

RESTS_WEIGHT_MAX = 32 * 1024 * 1024
"""Weight of the rests of a session over which the whole session waits."""


class FullEntity(RunQueue):
    """An entity without room, and its rest. `full` is False while its rest is handed out."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        super().__init__()
        self.full = True


class FullEntities:
    """The entities of this process that have no room for the messages of one session."""

    __slots__ = ("entities", "weight")

    def __init__(self) -> None:
        self.entities: dict[Target, FullEntity] = {}
        self.weight = 0
        """Of all rests."""

    def add(self, target: Target) -> bool:
        """List an entity. Returns True if the sender must get a report."""
        entity = self.entities.get(target)
        if entity is not None:
            entity.full = True
            return False
        self.entities[target] = FullEntity()
        return True

    def withhold(self, run: EntityRun, tick: int) -> EntityRun | None:
        """Add the messages of a run for listed entities to their rests. Returns the run of the
        others, None if there are none."""
        waits: dict[str, FullEntity] = {}
        for entity_id in dict.fromkeys(run.ids):
            entity = self.entities.get((run.type, entity_id))
            if entity is not None:
                waits[entity_id] = entity
        if not waits:
            return run
        for entity_id, entity in waits.items():
            at = [n for n, other in enumerate(run.ids) if other == entity_id]
            whole = len(at) == len(run.ids)
            self.weight += entity.put(run if whole else part_of(run, at), tick)
            if whole:
                return None
        at = [n for n, entity_id in enumerate(run.ids) if entity_id not in waits]
        return part_of(run, at) if at else None

    def released(self, target: Target, tick: int) -> Iterator[EntityRun]:
        """There is room for an entity: yield runs of its rest until it is full again. The caller
        hands each of them out before it takes the next. Forget the entity if nothing is left."""
        entity = self.entities.get(target)
        if entity is None:
            return
        entity.full = False
        while entity and not entity.full:
            yield self._take(entity, tick)
        if not entity and not entity.full and self.entities.get(target) is entity:
            del self.entities[target]

    def __contains__(self, target: Target) -> bool:
        return target in self.entities

    def unlist(self, leaves: Callable[[Target], bool], tick: int) -> list[EntityRun]:
        """Forget these entities and return their rests."""
        runs: list[EntityRun] = []
        for target in [key for key in self.entities if leaves(key)]:
            entity = self.entities.pop(target)
            self.weight -= entity.weight
            runs += entity.take_all(tick)
        return runs

    def all_rests(self, tick: int) -> Iterator[EntityRun]:
        """Yield every rest, run by run. The entities stay listed."""
        for entity in list(self.entities.values()):
            while entity:
                yield self._take(entity, tick)

    def _take(self, entity: FullEntity, tick: int) -> EntityRun:
        weight = entity.weight
        run = entity.take(tick)
        self.weight -= weight - entity.weight
        return run

    def clear(self) -> None:
        """Forget everything."""
        self.entities.clear()
        self.weight = 0

    def check(self) -> None:
        """Audit the rests."""
        for entity in self.entities.values():
            entity.check()
            assert entity.full
        assert self.weight == sum(entity.weight for entity in self.entities.values())


def part_of(run: EntityRun, at: list[int]) -> EntityRun:
    """Return a run of the messages of `run` at these places."""
    ids, payloads = [run.ids[n] for n in at], [run.payloads[n] for n in at]
    if isinstance(run, TellRun):
        return TellRun(run.type, run.method, ids, payloads, run.trace)
    corrs = [run.corrs[n] for n in at]
    chain, trace = run.chain, run.trace
    return AskRun(run.type, run.method, run.timeout_ms, ids, payloads, corrs, chain, trace)
