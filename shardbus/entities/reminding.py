"""The reminders of one entity type on one node: the shell of `reminders.schedule`.

    shard starts ──> its fence is raised in the store, the first window is read
    due          ──> Wake: the entity gets a message, and starts if it is not in memory
    message      ──> the first due reminder fires: its handler runs, the record that follows is
                     stored, with the handler's own save or after it

**Durable.** `remind` changes the record in memory. The next save of the handler stores it in the
same write. If there is none, the runner stores it before the handler's answer leaves (`store`);
of a class without state it is stored at once. A handler that raises has set nothing that it has
not saved.

**Once.** The record that follows a firing is the record from the moment the handler begins, so its
save ends the firing, too. An entity has one such message at a time. If the handler raises before
that, it is called again after a pause, `ATTEMPTS` times; then the firing is a dead letter. If it
has returned and the store does not answer, only the write is repeated (`ShardReminders.fired`).

**Events.** An append cannot write reminders. The first one of a firing's handler has the firing's
`delivery`; a start finds it there, and the record that it loads is the one after that firing.
`begin_append` stores what the append must not be without, `end_append` the rest (`event_log`).

An entity of such a type starts once the shard's fence is raised, and its record is read if it may
have one. If a save has no answer, the record is unknown, and is read before it is used.

Source: docs/how-to/reminders.md; B.119, B.120.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import floor
from typing import Any

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.deliveries.record import encode_firing
from shardbus.entities.activation import Activation, LifeState, Shard
from shardbus.entities.entity_type import EntityType, absent
from shardbus.entities.in_turns import InTurns
from shardbus.entities.own_messages import WorkHost, has_own, order, send_own
from shardbus.entities.passivation_settings import duration
from shardbus.entities.supervision import StateLoader
from shardbus.entities.unfinished_work import finish, is_unfinished
from shardbus.error_text import is_a
from shardbus.errors import (
    ConfigError,
    Rejection,
    StaleFence,
    StateUnreadable,
    StoreError,
    StoreUnavailable,
)
from shardbus.guarded_log import GuardedLog
from shardbus.ids import check_text
from shardbus.reminders.record import (
    EMPTY,
    LATE_MS,
    NAME_MAX,
    Entry,
    Record,
    decoded,
    encoded,
    is_left_out,
    jitter,
)
from shardbus.reminders.rule import MOMENT_MAX, Late, Rule, checked, moments, zone
from shardbus.reminders.schedule import (
    Doubtful,
    Effect,
    Ended,
    Event,
    IndexRead,
    ReadIndex,
    ReminderSchedule,
    Saved,
    Wake,
)
from shardbus.routing.refs import NO_ARGUMENTS
from shardbus.store.protocol import Reminders, ReminderStore, StateStore
from shardbus.task_set import TaskSet
from shardbus.tasks.context_variables import restore
from shardbus.transport.drop_reports import Origin
from shardbus.wire.schema import encode_arguments

log = GuardedLog("shardbus.reminders")

DUE = "$reminders"
"""The name of the invoker of the message that wakes an entity. No handler has this name."""
CANCEL = "$cancel"
"""The name of the invoker of the message by which an operator cancels reminders."""
ATTEMPTS = 10
PAUSE_MIN_S = 0.1
CLAIM_S = 5.0
"""Seconds for which the start of an entity waits for the shard's fence."""
SPAN_MAX_S = 3e8
WAKES_AT_ONCE = 64
"""Entities that are woken in one turn of the loop: at midnight all of a type may be due."""
NEAR_S = 1.5
"""A due moment that is nearer has a timer of its own; a sweep of each second looks for others."""
FIRING: ContextVar[Entry | None] = ContextVar("shardbus firing", default=None)
"""The reminder whose handler runs in this task, or has begun it."""
NO_DATA: Any = type("NoData", (), {"__repr__": lambda self: "no data"})()
Every = float | str | timedelta
"""Seconds, or a text with a unit as "10m", or a timedelta."""


class EntityReminders:
    """The reminders of an entity in memory."""

    __slots__ = ("began", "firing", "kept", "record", "stored")

    def __init__(self, record: Record) -> None:
        self.record = record
        """As the next write stores them."""
        self.stored: Record | None = record
        """As they are stored. None: unknown, because a write has no answer."""
        self.kept = record
        """As they are after a handler that raises: the stored ones, and a firing has ended whose
        effect is stored."""
        self.firing: Entry | None = None
        """The reminder whose handler runs."""
        self.began = 0
        """When that was called, in milliseconds since 1970."""

    def read(self, stored: Record, kept: Record) -> None:
        """Take the stored record, which was unknown."""
        self.stored, self.kept, self.record = stored, kept, kept
        if self.firing is not None:
            self.record = kept.after_firing(self.firing.delivery, self.began)

    @property
    def is_ours(self) -> bool:
        """True unless a firing is under way that is not this task's: its end stores them."""
        return self.firing is None or FIRING.get() is self.firing

    @property
    def unsaved(self) -> bool:
        """True if the record differs from the stored one."""
        return self.stored is not None and self.record is not self.stored


class ReminderCounts(msgspec.Struct):
    """Counts, for metrics."""

    fired: int = 0
    """Firings whose handler has returned."""
    late: int = 0
    """Fired ones that began more than `LATE_MS` after they were due."""
    left_out: int = 0
    """Moments that `late="skip"` left out."""
    failed: int = 0
    """Attempts whose handler raised."""
    dead: int = 0
    """Firings that failed too often."""


class ShardReminders:
    """The reminders of one shard, on the node that hosts it."""

    __slots__ = ("claimed", "fired", "hosted", "is_open", "schedule")

    def __init__(self, hosted: Shard, claimed: asyncio.Future[None]) -> None:
        self.hosted, self.claimed = hosted, claimed
        self.schedule = ReminderSchedule()
        self.is_open = True
        """The shard is here, and the store knows no later home."""
        self.fired: dict[str, tuple[str, int]] = {}
        """By entity: the delivery whose handler has returned, or whose events are stored, and when
        that handler was called, while the end of the firing is not stored."""

    def settle(self, entity_id: str, record: Record) -> Record:
        """Return a stored record, after the firing that is not to be repeated. Forgets that firing
        if the store has its end."""
        fired = self.fired.get(entity_id)
        after = record if fired is None else record.after_firing(*fired)
        if after is record:
            self.fired.pop(entity_id, None)
        return after


class Reminding:
    """Sets, stores and fires the reminders of one type."""

    what = "reminders"
    """The name of its sweep."""

    def __init__(
        self,
        host: WorkHost,
        store: StateStore,
        reminders: ReminderStore,
        keeper: StateLoader,
        settings: ShardingSettings,
    ) -> None:
        self._host, self._store, self._reminders, self._keeper = host, store, reminders, keeper
        self._pause_max = settings.shard_failure_backoff
        self._shards: dict[Shard, ShardReminders] = {}
        self._tasks = TaskSet()
        self._wakes = InTurns(host.loop, self._wake_each, WAKES_AT_ONCE)
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self.counts = ReminderCounts()

    # ---- shards

    def open(self, hosted: Shard) -> None:
        """Take over the reminders of a shard that this node hosts now."""
        entry = self._shards[hosted] = ShardReminders(hosted, self._host.loop.create_future())
        self._tasks.spawn(self._claim(entry), self._host.loop)

    def close(self, hosted: Shard) -> None:
        """Forget a shard that has left this node."""
        entry = self._shards.pop(hosted, None)
        if entry is not None:
            entry.is_open = False

    def stop(self) -> None:
        """Cancel everything: the node ends."""
        self._tasks.cancel()
        self._wakes.stop()
        if self._timer is not None:
            self._timer[1].cancel()
        self._shards.clear()

    def claim_again(self) -> None:
        """Raise the fences again in a store that may have lost them, and read its indexes anew."""
        for hosted in list(self._shards):
            self.close(hosted)
            self.open(hosted)

    async def _claim(self, entry: ShardReminders) -> None:
        name, shard, fence = self._host.name, entry.hosted.shard, entry.hosted.fence
        if (
            await self._insist(entry, lambda: self._store.add_remembered(name, shard, (), fence))
            and not entry.claimed.done()
        ):
            entry.claimed.set_result(None)
            self._carry_out(entry, entry.schedule.begin())

    async def _load(self, entry: ShardReminders, load: ReadIndex) -> None:
        name, shard = self._host.name, entry.hosted.shard

        async def read() -> None:
            page = await self._reminders.page_due(name, shard, load.after, load.limit)
            if entry.is_open:
                self._handle(entry, IndexRead(tuple((due, entity_id) for due, entity_id in page)))

        await self._insist(entry, read)

    async def _insist(
        self, entry: ShardReminders, attempt: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Repeat a store operation until it succeeds. Returns False if the shard has left."""
        pause = min(PAUSE_MIN_S, self._pause_max)
        while entry.is_open:
            try:
                await attempt()
                return entry.is_open
            except StaleFence as stale:
                log.warning("%s shard %s: %s", self._host.name, entry.hosted.shard, stale)
                entry.is_open = False
            except StoreError as error:
                log.warning("%s shard %s: %s", self._host.name, entry.hosted.shard, error)
            except Exception:  # a defect must not end it: no reminder would fire any more
                log.exception(
                    "%s shard %s: a call for its reminders failed",
                    self._host.name,
                    entry.hosted.shard,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._pause_max)
        return False

    # ---- time

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return floor(self._host.wall_clock() * 1000)

    def sweep(self, tick: int) -> None:
        """Wake the entities that are due, about once a second: the wall clock may have been set."""
        now = self.now()
        for entry in list(self._shards.values()):
            if not entry.hosted.stopping:
                self._carry_out(entry, entry.schedule.tick(now))

    def _on_timer(self) -> None:
        self._timer = None
        if not self._host.gate.close_if_due():
            self.sweep(0)

    def _handle(self, entry: ShardReminders, event: Event) -> None:
        self._carry_out(entry, entry.schedule.handle(event, self.now()))

    def _carry_out(self, entry: ShardReminders, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReadIndex):
                self._tasks.spawn(self._load(entry, effect), self._host.loop)
            else:
                self._wakes.add([(entry, effect)])
        deadline = entry.schedule.deadline()
        if deadline is not None:
            self._arm(max(0.001, (deadline - self.now()) / 1000))

    def _arm(self, seconds: float) -> None:
        """Set the timer, if a sweep would come too late and no earlier one is set."""
        if seconds > NEAR_S:
            return
        at = self._host.loop.time() + seconds
        if self._timer is not None:
            if self._timer[0] <= at:
                return
            self._timer[1].cancel()
        self._timer = at, self._host.loop.call_later(seconds, self._on_timer)

    def overdue(self) -> tuple[int, float]:
        """Return how many entities have a reminder that is due and has not fired, and for how many
        seconds the first has been."""
        now = self.now()
        each = [entry.schedule.overdue(now) for entry in self._shards.values()]
        return sum(count for count, _ in each), max((ms for _, ms in each), default=0) / 1000

    @property
    def held(self) -> int:
        """Entries of schedules in memory."""
        return sum(entry.schedule.held for entry in self._shards.values())

    # ---- firing

    def _wake_each(self, wakes: list[tuple[ShardReminders, Wake]]) -> None:
        for entry, wake in wakes:
            self._wake(entry, wake)

    def _wake(self, entry: ShardReminders, wake: Wake) -> None:
        """Hand an entity the message by which it looks for due reminders."""
        host, hosted = self._host, entry.hosted
        here = host.shards.get(hosted.shard) is hosted and not hosted.stopping
        if not here or not entry.is_open:
            return  # the next home wakes it
        if host.gate.close_if_due():
            self._ends_later(entry, Ended(wake.entity_id, False))
            return
        activation = host.find(wake.entity_id, hosted.shard)
        if activation is not None and has_own(host, activation, DUE):
            return
        if activation is None:
            activation = host.activate(hosted, wake.entity_id, "reminder")

        async def fire(entity: Any) -> None:
            await self._fire(entry, activation, entity, wake.attempt)

        send_own(host, activation, DUE, fire)
        if not has_own(host, activation, DUE):  # it has ended already, or its mailbox is full
            self._ends_later(entry, Ended(wake.entity_id, False))

    def _ends_later(self, entry: ShardReminders, ended: Ended) -> None:
        """Report the end in a callback of its own: the entity may be at work yet."""

        def end() -> None:
            if entry.is_open:
                self._handle(entry, ended)

        self._host.loop.call_soon(end)

    def gone(self, activation: Activation) -> None:
        """Note that an entity has left memory: a message that it had not handled is void."""
        entry = self._shards.get(activation.shard)
        if entry is not None and entry.is_open:
            self._ends_later(entry, Ended(activation.key, False))

    async def _fire(
        self, entry: ShardReminders, activation: Activation, entity: Any, attempt: int
    ) -> None:
        """Call the handler of the first reminder that is due, and store the record after it."""
        done = raised = False
        reminders: EntityReminders | None = None
        try:
            reminders, now = await self._current(activation), self.now()
            if activation.key in entry.fired:  # an append has the last firing alone
                await self._end_firing(entry, activation, entity)
            while (due := reminders.record.first_due(now)) is not None and is_left_out(due, now):
                reminders.record = reminders.record.past(due, now)
                self.counts.left_out += 1
            if due is not None:
                reminders.record = reminders.record.past(due, now)
                reminders.firing, reminders.began = due, now
                await self._call(activation, entity, due, attempt)
            await self._end_firing(entry, activation, entity)
            done = True
        except Rejection:
            await self._end_firing(entry, activation, entity)
            done = True
            raise
        except BaseException as error:
            raised = not is_a(error, StoreError, asyncio.CancelledError, GeneratorExit)
            self.counts.failed += raised
            raise
        finally:
            self.revert(activation)
            # `claim_again` may have read the index anew, for which the entity is at work, too.
            latest = self._shards.get(activation.shard, entry)
            if reminders is not None:
                reminders.firing = None
                if reminders.stored is not None and latest.is_open:
                    self._handle(latest, Saved(activation.key, reminders.stored.due))
            self._ends_later(latest, Ended(activation.key, done, raised))

    async def _end_firing(self, entry: ShardReminders, activation: Activation, entity: Any) -> None:
        """Store the record after a firing, if the handler has not."""
        reminders: EntityReminders = activation.more().reminders
        if reminders.firing is not None:
            entry.fired[activation.key] = reminders.firing.delivery, reminders.began
            reminders.kept = reminders.record
        reminders = await self._current(activation)
        if reminders.unsaved:
            await self._host.saver.save(entity.context, None, alone=True)
        entry.fired.pop(activation.key, None)

    async def _call(self, activation: Activation, entity: Any, due: Entry, attempt: int) -> None:
        """Call the handler of a due reminder, unless it has failed too often."""
        invoker = self._host.kind.invokers.get(due.handler) or absent(due.handler)
        if attempt > ATTEMPTS:
            self.counts.dead += 1
            name = f"{self._host.name} {activation.key!r}"
            log.error("%s: reminder %r failed %d times", name, due.name, ATTEMPTS)
            self._host.runner.counts.lose(
                "failed", activation.key, invoker, due.payload, None, int(Origin.OWN)
            )
            return
        if due.payload[0] not in invoker.decoders:
            raise ConfigError(f"no handler {due.handler!r} takes reminder {due.name!r}")
        late = self.now() - due.due > LATE_MS
        token = FIRING.set(due)
        try:
            value = invoker.function(entity, *invoker.decoders[due.payload[0]](due.payload))
            if invoker.is_async:
                value = await value
            elif not invoker.returns_values and is_unfinished(value):
                await finish(value)
        finally:
            restore(FIRING, token)
        self.counts.fired += 1
        self.counts.late += late

    # ---- records

    async def load(self, activation: Activation, *, fenced: bool, again: bool = False) -> None:
        """Read the reminders of an entity that starts, if it may have some. `fenced`: its stored
        fence is raised already, so that no earlier save is applied any more. `again`: the entity
        runs, and they are unknown.

        Raises:
            StoreError: the store does not answer, or another node is the home.
            StateUnreadable: they are damaged.
        """
        host, shard, key = self._host, activation.shard, activation.key
        entry = await self._claimed(shard)
        if not entry.schedule.may_have(key):
            entry.fired.pop(key, None)
            if activation.extras is not None:
                activation.extras.reminders = None
            return
        if not fenced:
            await self._keeper.load(host.name, shard.shard, key, shard.fence)
        [data] = await self._reminders.load_reminders(host.name, shard.shard, [key])
        try:
            record = decoded(data)
        except Exception as error:
            text = f"the reminders of {host.name} {key!r:.100} are damaged: {error}"
            raise StateUnreadable(
                text, entity_type=host.name, entity_id=key, version=0, field=""
            ) from None
        kept = entry.settle(key, record)
        if again and activation.more().reminders is not None:
            activation.more().reminders.read(record, kept)
        elif record.entries:
            reminders = activation.more().reminders = EntityReminders(record)
            reminders.kept = reminders.record = kept
        elif activation.extras is not None:
            activation.extras.reminders = None
        self._handle(entry, Saved(key, record.due))

    async def _claimed(self, shard: Shard) -> ShardReminders:
        entry = self._shards.get(shard)
        if entry is None:
            raise StoreUnavailable(f"shard {shard.shard!r:.100} is not here", definite=True)
        if not entry.claimed.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(CLAIM_S):
                    await asyncio.shield(entry.claimed)
        if not entry.claimed.done():
            text = f"the reminders of {self._host.name} shard {shard.shard!r:.100} are not read yet"
            raise StoreUnavailable(text, hint="see why the store does not answer", definite=True)
        return entry

    def reminders_of(self, activation: Activation) -> EntityReminders | None:
        """Return the reminders of an entity, None if it has none.

        Raises:
            StoreUnavailable: they are unknown, because a write has no answer.
        """
        reminders = None if activation.extras is None else activation.extras.reminders
        if reminders is not None and reminders.stored is None:
            text = f"the reminders of {self._host.name} {activation.key!r:.100} are unknown: a save"
            raise StoreUnavailable(f"{text} had no answer", definite=True)
        return reminders

    async def _current(self, activation: Activation) -> EntityReminders:
        """Return the reminders of an entity, read again if they are unknown."""
        extras = activation.more()
        reminders: EntityReminders | None = extras.reminders
        if reminders is not None and reminders.stored is None:
            await self.load(activation, fenced=False, again=True)
            reminders = extras.reminders
        if reminders is None:
            reminders = extras.reminders = EntityReminders(EMPTY)
        return reminders

    async def change(self, context: Any, change: Callable[[Record], Record]) -> None:
        """Change the reminders of an entity. They are stored by the next save of the handler that
        runs, else before its answer leaves; at once if none runs or there is no state."""
        activation = context._acting("remind")
        reminders = await self._current(activation)
        reminders.record = change(reminders.record)
        handled = self._host.runner.handling(activation)
        if self._host.kind.states is None or handled is None:
            await self._host.saver.save(context, None, alone=True)
        else:
            await asyncio.sleep(0)  # the handler waits, so the runner sees its end in `carried`
            context._acting("remind")

    async def store(self, context: Any, value: Any) -> Any:
        """Store the reminders that a handler has set and not saved. Returns `value`, which the
        handler has returned."""
        await self._host.saver.save(context, None, alone=True)
        return value

    def is_unsaved(self, activation: Activation) -> bool:
        """True if a handler has set reminders that are not stored."""
        extras = activation.extras
        return extras is not None and extras.reminders is not None and extras.reminders.unsaved

    def revert(self, activation: Activation) -> None:
        """Forget the reminders that a handler has set and not saved: it has raised."""
        reminders = None if activation.extras is None else activation.extras.reminders
        if reminders is not None and reminders.stored is not None:
            reminders.record = reminders.kept

    # ---- events

    def replayed(self, activation: Activation, delivery: str, at: int) -> None:
        """Note that the journal of an entity has the end of a firing that began at this time."""
        entry = self._shards.get(activation.shard)
        if entry is None:
            return
        entry.fired[activation.key] = delivery, at
        reminders = None if activation.extras is None else activation.extras.reminders
        if reminders is not None and reminders.stored is not None:
            entry.settle(activation.key, reminders.stored)

    async def begin_append(self, activation: Activation, context: Any) -> bytes:
        """Store the reminders that events must not be stored without, as a handler persists them.
        Returns the stored form of the firing that ends with the events, empty for none.

        Raises:
            StoreError: as `SaveGroup.save`. The events are not to be stored.
        """
        if activation.extras is None or activation.extras.reminders is None:
            return b""
        reminders = await self._current(activation)
        if not reminders.is_ours:
            return b""
        assert reminders.stored is not None
        if reminders.record.beside(reminders.stored) is not reminders.stored:
            await self._host.saver.save(context, None, alone=True, early=True)
        if reminders.firing is None:
            return b""
        return encode_firing(reminders.firing.delivery, reminders.began)

    async def end_append(self, activation: Activation, context: Any) -> None:
        """Store the reminders as they are, once the events are stored. Raises as
        `SaveGroup.save`."""
        reminders = None if activation.extras is None else activation.extras.reminders
        if reminders is None or not reminders.is_ours:
            return
        if reminders.firing is not None:
            self.replayed(activation, reminders.firing.delivery, reminders.began)
        reminders.kept = reminders.record
        if reminders.unsaved:
            await self._host.saver.save(context, None, alone=True)

    # ---- writes

    def writes(self, activation: Activation, *, clears: bool) -> bool:
        """True if a save of the state must write reminders, too. `clears`: it ends them."""
        extras = activation.extras
        if extras is None or extras.reminders is None:
            return False
        reminders = extras.reminders
        return (
            reminders.unsaved
            or reminders.stored is None
            or (clears and bool(reminders.record.entries))
        )

    async def save(
        self,
        activation: Activation,
        data: bytes | None,
        *,
        alone: bool,
        clears: bool,
        early: bool = False,
    ) -> None:
        """Write reminders with a state, or `alone`. `clears`: they go. `early`: those that must be
        stored before events. Raises as `SaveGroup.save`."""
        host, key, shard = self._host, activation.key, activation.shard
        reminders = await self._current(activation)
        before = reminders.record
        record = EMPTY if clears else before
        if early and reminders.stored is not None:
            record = before.beside(reminders.stored)
        write = Reminders(record.due, encoded(record), alone)
        entry = self._shards.get(shard)
        try:
            await self._keeper.save(host.name, shard.shard, key, shard.fence, data, write)
        except BaseException as error:
            if not is_a(error, StaleFence) and not getattr(error, "definite", False):
                reminders.stored = None
                if entry is not None:
                    self._handle(entry, Doubtful(key, record.due))
            raise
        reminders.stored = reminders.kept = record
        if reminders.record is before and not early:
            reminders.record = record
        if entry is not None:
            entry.settle(key, record)
        if entry is not None and activation.state is not LifeState.GONE:
            self._handle(entry, Saved(key, record.due))

    # ---- for operators

    async def cancel(self, shard: str, entity_id: str, name: str) -> list[str]:
        """Cancel a reminder of an entity, all of them without a name; the entity starts if it is
        not in memory. Returns the names of those that were cancelled, once that is stored.

        Raises:
            Refused: the shard is not here, or moves. Nothing was changed.
            AskTimeout: the entity has not come to it; they may be cancelled later.
        """

        async def forget(activation: Activation, entity: Any) -> list[str]:
            reminders = await self._current(activation)
            names = [name] if name else list(reminders.record.entries)
            names = [entry for entry in names if entry in reminders.record.entries]
            reminders.record = reminders.record.without(names)
            if names:
                await self._host.saver.save(entity.context, None, alone=True)
            return names

        return await order(self._host, shard, entity_id, CANCEL, forget)


def entry_of(
    kind: EntityType,
    now: int,
    seed: str,
    name: str,
    *,
    handler: str | None = None,
    at: datetime | None = None,
    after: Every | None = None,
    every: Every | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    late: Late = "once",
    jitter_by: Every = 0.0,
    data: Any = NO_DATA,
) -> Entry:
    """Return a new reminder, as `context.remind` describes it. `seed` names the entity.

    Raises:
        ConfigError: an argument is invalid, two exclude each other, or no handler takes it.
    """
    name = check_text("the name of a reminder", name)
    handler = name if handler is None else check_text("the handler of a reminder", handler)
    if not 0 < len(name) <= NAME_MAX:
        raise ConfigError(f"the name of a reminder is a text of 1 to {NAME_MAX} characters")
    wait = None if after is None else _milliseconds("after", after)
    interval = 0 if every is None else _milliseconds("every", every)
    spread = _milliseconds("jitter", jitter_by) if jitter_by else 0
    if every is not None and not interval:
        raise ConfigError("every is 0")
    rule = checked(Rule(interval, cron or "", tz, late, spread))
    if at is not None and wait is not None:
        raise ConfigError("a reminder has `at` or `after`, not both")
    if cron and (at is not None or wait is not None):
        raise ConfigError("a reminder by `cron` has neither `at` nor `after`")
    if cron:
        moment = next(moments(cron, tz, now), 0)
        if not moment:
            raise ConfigError(f"cron {cron!r:.80} is never due")
    elif at is not None:
        moment = _instant(at, tz)
    elif wait is not None or interval:
        moment = now + (interval if wait is None else wait)
    else:
        raise ConfigError("a reminder needs one of `at`, `after`, `every` and `cron`")
    if not 0 < moment <= MOMENT_MAX:
        raise ConfigError(
            "a reminder is due after 1970-01-01 and before 9999-12-31",
            hint="a reminder that is never due needs no `remind`",
        )
    payload = _payload(kind, handler, data)
    token = int.from_bytes(blake2b(f"{seed}/{name}/{now}".encode(), digest_size=8).digest()) >> 1
    due = min(moment + jitter(rule, token, 1), MOMENT_MAX)
    return Entry(name, handler, payload, token, moment, due, rule)


def _milliseconds(name: str, span: Every) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, float | int) and not isinstance(seconds, bool):
        if seconds < 0:
            raise ConfigError(f"{name} is below 0")
        if seconds < SPAN_MAX_S:
            return round(float(seconds) * 1000)
    return round(duration(name, seconds) * 1000)


def _instant(at: datetime, tz: str) -> int:
    """Return a time in UTC; 0 if it has no moment, at the ends of time. One without a zone is of
    the clock on the wall of `tz`."""
    if not isinstance(at, datetime):
        raise ConfigError(f"at is {at!r:.60}, which is no datetime")
    aware = at if at.tzinfo is not None else at.replace(tzinfo=zone(tz))
    try:
        return round(aware.astimezone(UTC).timestamp() * 1000)
    except OverflowError:
        return 0


def _payload(kind: EntityType, handler: str, data: Any) -> bytes:
    """Return the arguments for a handler, which must take them."""
    payload = NO_ARGUMENTS if data is NO_DATA else encode_arguments((data,))
    invoker = kind.invokers.get(handler) if handler and not handler.startswith("$") else None
    if invoker is None:
        names = ", ".join(sorted(name for name in kind.invokers if name and name[0] not in "$:"))
        raise ConfigError(f"{kind.name} has no handler {handler!r:.80}", hint=f"it has {names}")
    try:
        invoker.decoders[payload[0]](payload)
    except Exception:
        number = "no argument" if data is NO_DATA else "this `data` as its argument"
        raise ConfigError(f"handler {handler!r} of {kind.name} does not take {number}") from None
    return payload
