"""The events of running entities: replay at the start, persist, and snapshots.

    start     load the snapshot: a state and the number of its last event
              open the journal under the shard's fence, fold the events behind that number
    persist   append after the last number ──stored──> fold, then answer
              (with the number of the delivery that the handler works on)
                                            ──no answer──> IN_DOUBT
    clear     save the empty state with the last number ──stored──> take it, trim all events
                        ──no answer──> STALE
    snapshot  every `snapshot_after` events: save state and number, then trim older events

An append without an answer, or one that its handler has given up, may be in the journal or not.
Then the log is IN_DOUBT, until it opens the journal again, which waits for the outcome of that
append, and folds the new events. A clear without an answer, or a fold that raises behind its
append, makes it STALE: it loads the snapshot, too. That is done by the next `persist` of the same
handler, and else before the next message (`SETTLE`), so no other handler decides on a state that
lacks stored events. An entity whose handler does not catch the error starts again, and reads them
there. So the state changes only once the store has the change.

A snapshot only saves time. If it cannot be saved, the command that was due for it goes on, and the
next one is tried `snapshot_after` events later. Events are trimmed only behind a snapshot that the
store has, so snapshot and journal together have the whole state in every moment.

**Deliveries** (`entities.deliveries`) take effect once: the append of a delivery's handler has its
number, a replay adds it to the record of the snapshot.

**Reminders** (`entities.reminding`) are rows of their own, which no append can write. So `persist`
has three steps, and returns after the last:

    new and earlier reminders ──stored──> append ──stored──> later, forgotten and fired ones

The first firing that an append of its handler ends has its `delivery` in that append. Between two
steps a crash leaves a reminder too many, and never one too few; a firing whose events are stored is
not called again, since a replay ends it. If the last step has no answer, the log is IN_DOUBT.

A projection of the events gets *news* after each append, and may have events of an append in doubt
from the store. An event is removed only once each projection here has handled it.

Opening raises the fence of the journal, so the activation before cannot append any more, and the
events read are all that there are.

Source: docs/how-to/event-sourcing.md; S2.74.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from shardbus import errors
from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, LifeState, Message
from shardbus.entities.entity_type import EntityType, Invoker, StopReason
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.projecting import Projecting
from shardbus.guarded_log import GuardedLog
from shardbus.store.journals import PAGE, Journals
from shardbus.transport.drop_reports import Origin
from shardbus.wire.stored_events import EventCodec, with_delivery
from shardbus.wire.stored_state import StateCodec, numbered, split_numbered, split_record

LOG = "__shardbus_log__"
"""The attribute of an entity that has its log."""
SETTLE = "$events settle"
"""The name of the invoker of the message by which an entity reads its journal again. No handler has
this name."""

LoadSnapshot = Callable[[str, str, str, int], Awaitable[bytes | None]]
"""Loads the record of an entity, by its type, shard, id and fence."""

log = GuardedLog("shardbus.entity")


class LogState(Enum):
    """The knowledge of the end of a journal."""

    KNOWN = "known"
    IN_DOUBT = "in doubt"
    """An append has no answer: the journal may have more than was folded."""
    STALE = "stale"
    """A clear has no answer, or a fold has raised: the state may be another than the stored one."""


class EventLogs:
    """The logs of one type's entities. `journals` and `load_snapshot` are the store's."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        journals: Journals | None,
        gate: SuspensionGate,
        load_snapshot: LoadSnapshot,
    ) -> None:
        if kind.events is None or kind.states is None:
            raise errors.ConfigError(f"{kind.name!r} is not event-sourced")
        if journals is None:
            raise errors.ConfigError(
                f"{kind.name!r} is event-sourced, and this store has no journals",
                hint="use a store of shardbus, or give the store `journals`",
            )
        self.name = kind.name
        self.events: EventCodec = kind.events
        self.states: StateCodec = kind.states
        self.journals, self.gate, self.load_snapshot = journals, gate, load_snapshot
        self.snapshot_after, self.kept = settings.snapshot_after, settings.events_kept
        self.projections: list[Projecting] = []
        """The projections of these events here."""

    async def load(self, activation: Activation, data: bytes | None) -> None:
        """Give a new object its state: its snapshot's, stored as `data`, with the events behind it.

        Raises:
            StateUnreadable: the snapshot or an event cannot be read, or is missing.
            StaleFence: the entity has a newer activation elsewhere. StoreUnavailable.
        """
        entity = activation.entity
        number, entity.state = self.snapshot(activation.key, data)
        event_log = EventLog(self, activation, number)
        vars(entity)[LOG] = event_log
        await event_log.catch_up(entity)

    def snapshot(self, key: str, data: bytes | None) -> tuple[int, Any]:
        """Return the number of the last event of a snapshot, stored as `data`, and its state.

        Raises:
            StateUnreadable: it cannot be read.
        """
        try:
            _, alone = split_record(data or b"")
            number, alone = split_numbered(alone)
        except ValueError as error:
            raise self.missing(key, f"the snapshot cannot be read: {error}") from error
        return number, self.states.read(key, alone) if alone else self.states.cls()

    def missing(self, key: str, why: str) -> errors.StateUnreadable:
        return errors.StateUnreadable(
            f"the journal of {self.name} {key!r:.100}: {why}",
            entity_type=self.name,
            entity_id=key,
            version=0,
            field="",
        )


class EventLog:
    """The place of one object of an entity in its journal. `number` is the last folded event's."""

    __slots__ = ("_activation", "_due", "_logs", "_state", "_turn", "number")

    def __init__(self, logs: EventLogs, activation: Activation, number: int) -> None:
        self._logs, self._activation, self.number = logs, activation, number
        self._due = number + logs.snapshot_after
        """The number at which a snapshot is due."""
        self._state = LogState.KNOWN
        self._turn = asyncio.Lock()

    async def catch_up(self, entity: Any) -> None:
        """Open the journal, and fold the events behind the last number: behind the snapshot's if
        the state is stale."""
        logs, activation = self._logs, self._activation
        shard, key = activation.shard, activation.key
        place, number, state = (logs.name, shard.shard, key), self.number, None
        if self._state is LogState.STALE:
            number, state = logs.snapshot(key, await logs.load_snapshot(*place, shard.fence))
        page = await logs.journals.open(*place, shard.fence, number, PAGE)
        if page.last < number or page.first > number + 1:
            why = f"it has events {page.first} to {page.last}, and {number} are known"
            raise logs.missing(key, why)
        if self._state is LogState.STALE:
            self.number, entity.state = number, state
        before, self._state = self._state, LogState.STALE
        if page.entries and (before is not LogState.KNOWN or activation.objects_ended):
            self._report_news()  # of an append that had no answer
        while page.entries:
            self.number, done = logs.events.replay(entity, key, page.first, page.entries)
            try:
                firing = shard.host.deliveries.replayed(activation, done)
            except ValueError as error:
                raise logs.missing(key, str(error)) from error
            reminding = shard.host.runner.reminding
            if firing is not None and reminding is not None:
                reminding.replayed(activation, firing.name, firing.seq)
            if page.end >= page.last:
                break
            page = await logs.journals.read(*place, self.number, PAGE)
        self._state = LogState.KNOWN

    async def persist(self, entity: Any, events: tuple[object, ...]) -> None:
        """As `EventSourced.persist`."""
        logs = self._logs
        entity.context._acting("persist")
        write = logs.events.write
        written = [write(event) for event in events]
        if not written:
            return
        entries = [event.entry for event in written]
        async with self._turn:
            try:
                if self._state is not LogState.KNOWN:
                    await self.catch_up(entity)
                activation = entity.context._acting("persist")
                await self._append(entity, activation, entries)
                self._report_news()  # of what is stored, whatever its fold does
                self._state = LogState.STALE
                logs.events.apply(entity, written)
                self.number += len(entries)
                self._state = LogState.KNOWN
            finally:
                self._settle_next()
            if logs.snapshot_after and self.number >= self._due:
                await self._snapshot_due(entity)
        if logs.gate.close_if_due():
            await logs.gate.passed()

    def _report_news(self) -> None:
        """Let the projections here look at the journal."""
        for projection in self._logs.projections:
            projection.news(self._activation.shard.shard, self._activation.key)

    def _settle_next(self) -> None:
        """If the end of the journal is in doubt, read it before the next message."""
        activation = self._activation
        if self._state is LogState.KNOWN or activation.state >= LifeState.STOPPING:
            return
        invoker = Invoker(SETTLE, _settle, True, {}, lambda payload: None)
        message = Message(invoker, b"", None, Origin.OWN, 0)
        activation.shard.host.runner.receive_next(activation, message)

    async def settle(self, entity: Any) -> None:
        """Read the journal if its end is in doubt."""
        async with self._turn:
            if self._state is not LogState.KNOWN:
                await self.catch_up(entity)

    async def _append(self, entity: Any, activation: Activation, entries: list[bytes]) -> None:
        """Append to the journal, with the delivery or the firing at work, between the writes of
        reminders. Until the store has answered, its end is in doubt."""
        logs, shard = self._logs, activation.shard
        delivery, appending = shard.host.deliveries.begin_append(activation)
        reminding = shard.host.runner.reminding
        if reminding is not None:
            delivery = await reminding.begin_append(activation, entity.context) or delivery
        if delivery:
            entries[-1] = with_delivery(entries[-1], delivery)
        self._state = LogState.IN_DOUBT
        try:
            await logs.journals.append(
                logs.name, shard.shard, activation.key, shard.fence, self.number, tuple(entries)
            )
        except errors.StaleActivation:
            self._state = LogState.KNOWN
            raise
        except errors.StaleFence:
            activation.stopping = activation.stopping or StopReason.FAILURE
            raise
        except errors.StoreUnavailable as error:
            if error.definite:
                self._state = LogState.KNOWN
            raise
        shard.host.deliveries.end_append(activation, appending)
        if reminding is not None:
            try:
                await reminding.end_append(activation, entity.context)
            except (
                errors.StoreUnavailable,
                errors.StaleActivation,
            ) as error:  # the events are stored
                raise errors.StoreUnavailable(str(error)) from error
        self._state = LogState.KNOWN

    async def _snapshot_due(self, entity: Any) -> None:
        """Save a snapshot, and trim the journal behind it. The events are stored, so the command
        does not fail with it."""
        logs = self._logs
        self._due = self.number + logs.snapshot_after
        try:
            await self._save(entity, entity.state)
            if logs.kept:
                await self._trim(self.number - logs.kept)
        except (errors.StoreError, errors.SchemaError) as error:
            key = self._activation.key
            log.warning("%s %r has no new snapshot: %s", logs.name, key, error)

    async def snapshot(self, entity: Any) -> None:
        """As `EventSourced.save`."""
        async with self._turn:
            if self._state is not LogState.KNOWN:
                await self.catch_up(entity)
            await self._save(entity, entity.state)

    async def clear(self, entity: Any) -> None:
        """As `EventSourced.clear`."""
        async with self._turn:
            try:
                if self._state is not LogState.KNOWN:
                    await self.catch_up(entity)
                entity.context._acting("clear")
                await self._empty(entity)
            finally:
                self._settle_next()
            try:
                await self._trim(self.number)
            except errors.StoreUnavailable as error:  # never definite: the state is empty by now
                raise errors.StoreUnavailable(str(error)) from error

    async def _empty(self, entity: Any) -> None:
        """Save an empty state, and take it once the store has it."""
        empty = self._logs.states.cls()
        self._state = LogState.STALE
        try:
            await self._save(entity, empty, clears=True)
        except errors.StoreUnavailable as error:
            if error.definite:
                self._state = LogState.KNOWN
            raise
        entity.state, self._state = empty, LogState.KNOWN

    async def _save(self, entity: Any, state: Any, *, clears: bool = False) -> None:
        data = numbered(self.number, self._logs.states.write(state))
        await entity.context._save(data, clears=clears)
        self._due = self.number + self._logs.snapshot_after

    async def _trim(self, upto: int) -> None:
        """Remove events up to this number, as far as each projection here has handled them."""
        logs, shard, key = self._logs, self._activation.shard, self._activation.key
        for projection in logs.projections:
            if upto > 0:
                upto = min(upto, await projection.handled(shard.shard, key))
        if upto > 0:
            await logs.journals.trim(logs.name, shard.shard, key, shard.fence, upto)


async def _settle(entity: Any, payload: None) -> None:
    """Read the journal of an entity, as the handler of a message. It starts again if the store does
    not answer."""
    await vars(entity)[LOG].settle(entity)
