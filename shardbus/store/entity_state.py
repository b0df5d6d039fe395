"""The state of entities in the store: single loads, and saves that share round trips.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter

from shardbus.errors import StoreUnavailable
from shardbus.histograms import Histogram, HistogramWindow
from shardbus.store.batches import batches_of
from shardbus.store.clock import machine_clock
from shardbus.store.group_commit import ATTEMPTS, Entity, SaveGroup, op_ids
from shardbus.store.journal_protocol import journals_of
from shardbus.store.journals import Journals
from shardbus.store.protocol import HasLanes, Reminders, StateStore
from shardbus.tasks.batch_answer import BatchAnswer

LOAD, SAVE, APPEND = "load", "save", "append"
OUTCOME_S = 1.0
"""Seconds, beyond the time that a batch takes at most, for which a load waits for its outcome."""
MARKS = 6
"""Marks by which recent latencies are known: one in ten seconds makes a minute."""


class _Appends:
    """Takes the figures of appends, which count beside loads and saves."""

    def __init__(self, states: EntityStates) -> None:
        self._states = states

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None:
        self._states.latencies(entity_type, APPEND).observe_all(seconds)

    def failed(self, error: Exception) -> None:
        self._states.failed(error)

    def backed_up(self) -> None:
        self._states.backed_up()


class EntityStates:
    """Loads and saves the state of a node's entities, and measures the store. `uid` is the node's,
    from which operation ids are drawn. A save is not sent again `within` seconds after it was first
    sent. `backed_up` is called when many saves wait. `clock` is the one of `SaveGroup`."""

    def __init__(
        self,
        store: StateStore,
        uid: int,
        within: float = 6.0,
        backed_up: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = machine_clock,
    ) -> None:
        self._store, self.backed_up = store, backed_up
        ids = op_ids(uid)
        batches = batches_of(store, lambda saves: store.save_states(saves))
        self._group = SaveGroup(batches, ids, self, within=within, clock=clock)
        self._lane = store.lane if isinstance(store, HasLanes) else None
        self._groups: dict[int, SaveGroup] = defaultdict(
            lambda: SaveGroup(batches, ids, self, within=within, clock=clock)
        )
        """The groups of a store of several servers, which answer each at its own time."""
        self.save = self._group.save if self._lane is None else self._save_in_lane
        """Writes a state (`SaveGroup.save`), None for `data` to remove it."""
        journals = journals_of(store)
        self.journals: Journals | None = None
        """The journals of the store, None if it has none."""
        if journals is not None:
            self.journals = Journals(
                journals, uid, observer=_Appends(self), lane=self._lane, within=within, clock=clock
            )
        self.errors = 0
        self._patience = within + within / ATTEMPTS + OUTCOME_S
        self._silent_at: float | None = None
        self.silent_because = ""
        """The last failure of the store, with the remedy."""
        self.durations: dict[tuple[str, str], Histogram] = {}
        """Of calls that have ended, by entity type and `load`, `save` or `append`."""
        self._window = HistogramWindow[tuple[str, str]](MARKS)

    async def load(self, entity_type: str, shard: str, entity_id: str, fence: int) -> bytes | None:
        """Return the stored state, None if there is none; raise its stored fence to `fence`. A save
        of the entity that was sent is in it, or will never be applied.

        Raises:
            StoreUnavailable: such a save has no outcome yet, or the store does not answer.
        """
        entity = (entity_type, shard, entity_id)
        if (outcome := self._group_of(entity).outcome_of(entity)) is not None:
            await self._wait_for(outcome, entity)
        began = perf_counter()
        try:
            return await self._store.load_state(entity_type, shard, entity_id, fence)
        except Exception as e:
            self.failed(e)
            raise
        finally:
            self.latencies(entity_type, LOAD).observe(perf_counter() - began)

    async def _wait_for(self, outcome: asyncio.Future[None], entity: Entity) -> None:
        """Wait for the outcome of the save of an entity that is in flight. Behind it is none of an
        ended activation (`refuse_unsent`)."""
        try:
            async with asyncio.timeout(self._patience):
                await outcome
        except TimeoutError:
            text = f"an earlier save of {entity[0]} {entity[2]!r:.100} has no outcome yet"
            error = StoreUnavailable(text, hint="see why the store does not answer", definite=True)
            self.failed(error)
            raise error from None

    def refuse_unsent(self, entity_type: str, shard: str, entity_id: str) -> None:
        """Refuse the saves and appends of an entity that are not sent: the activation that asked is
        over."""
        if self._lane is None or self._groups:
            entity = (entity_type, shard, entity_id)
            self._group_of(entity).refuse_unsent(entity)
        if self.journals is not None:
            self.journals.refuse_unsent(entity_type, shard, entity_id)

    def _group_of(self, entity: Entity) -> SaveGroup:
        if self._lane is None:
            return self._group
        return self._groups[self._lane(entity[0], entity[1])]

    def _save_in_lane(
        self,
        entity_type: str,
        shard: str,
        entity_id: str,
        fence: int,
        data: bytes | None,
        reminders: Reminders | None = None,
    ) -> BatchAnswer:
        group = self._group_of((entity_type, shard, entity_id))
        return group.save(entity_type, shard, entity_id, fence, data, reminders)

    @property
    def backlog(self) -> tuple[int, float]:
        """Return the saves and appends that wait for a round trip, and the age of the oldest in
        seconds."""
        waiting = [group.backlog for group in (self._group, *self._groups.values())]
        if self.journals is not None:
            waiting.append(self.journals.backlog)
        return sum(count for count, _ in waiting), max(age for _, age in waiting)

    @property
    def silent_ago(self) -> float | None:
        """Return the seconds since the store last gave no answer, None if it always answered."""
        return None if self._silent_at is None else perf_counter() - self._silent_at

    def failed(self, error: Exception) -> None:
        """Note that a load or a save has failed."""
        self.errors += 1
        if isinstance(error, StoreUnavailable):
            self._silent_at, self.silent_because = perf_counter(), str(error)

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None:
        """Note that saves have ended, and how long each of their callers waited."""
        self.latencies(entity_type, SAVE).observe_all(seconds)

    def latencies(self, entity_type: str, operation: str) -> Histogram:
        """Return the durations of one kind of call."""
        histogram = self.durations.get((entity_type, operation))
        if histogram is None:
            histogram = self.durations[entity_type, operation] = Histogram()
        return histogram

    def mark(self) -> None:
        """Let measurements of up to `MARKS` marks ago be recent no more."""
        self._window.mark(self.durations)

    def recent(self, entity_type: str, operation: str) -> Histogram:
        """Return the durations of the last minute."""
        key = (entity_type, operation)
        return self._window.recent(key, self.durations.get(key) or Histogram())

    def recent_of_all(self) -> Histogram:
        """Return the durations of all calls of the last minute."""
        total = Histogram()
        for key in list(self.durations):
            total.add(self.recent(*key))
        return total

    @property
    def longest_save(self) -> float:
        """Seconds for which the oldest save or append under way has had no answer; 0 without
        one."""
        saves = max(group.longest_wait for group in (self._group, *self._groups.values()))
        return saves if self.journals is None else max(saves, self.journals.longest_append)
