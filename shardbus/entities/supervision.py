"""Supervision: starting an entity, and the steps after a start or a handler that fails.

A start makes the object, loads its state, or takes the memory carried from the old home of its
shard (`carrying`), and runs `on_start`. A start that fails is tried again while the entity is
needed, the first time at once, then with a doubling backoff; messages wait:

    it fails ──> the directive is `stop` ──> it ends, and the messages that wait are refused
             ──> any other ────────────────> backoff ──> again
                                                ├─ an ask whose deadline comes before: refused with
                                                │  the cause
                                                └─ idle for too long, or over the limit, and no
                                                   asker waits for it: passivated

A handler that fails restarts its entity without a backoff, however often it does: otherwise a
sender of invalid messages would delay the valid ones of others. A start that succeeds ends the
backoff.

A timer, or piped work, that an entity begins in its start and that fails would restart it for ever,
without a pause. So if an entity fails by a message of its own, and has got no message of others
since the last time that it did, the start that follows waits as one that has failed as often.

A store that does not answer is no failure of the entity, so supervision is not asked about it.

At a hand-off, an entity is needed while messages wait for it, since they come before those that the
next home gets. A stop message alone, which it could not answer, does not count. Then only a store
that does not answer is asked again, until the entity is cut off. StaleFence is a failure, too: the
entity lives elsewhere and this shard stops soon; then the activation ends. The messages that wait
for an activation that ends go to the shard's next home.

An entity that calls `stop()` or `passivate()` while it starts refuses the messages that wait for
it, also if the start then fails: a new activation would do the same, without end.

Source: S2.47, S2.48, S2.69, S4.16-S4.20; docs/how-to/define-entities.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import filterfalse
from typing import Any, Protocol

from shardbus import errors
from shardbus.backoff import doubling
from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import MOVES, Activation, LifeState, LifeStep, Message
from shardbus.entities.carrying import CarriedStates
from shardbus.entities.dead_letters import KeepLetter
from shardbus.entities.entity_type import Directive, EntityType, Invoker, StopReason
from shardbus.entities.failures import ON_START, HandlerFailures
from shardbus.entities.state_sizes import StateSizes
from shardbus.error_text import is_a, is_exception, text_of, type_name
from shardbus.guarded_log import GuardedLog
from shardbus.store.journals import Journals
from shardbus.store.protocol import Reminders
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.asks import CoarseClock
from shardbus.transport.drop_reports import Origin, is_session_mark
from shardbus.transport.log_limiter import LogRateLimiter
from shardbus.transport.session import Session
from shardbus.wire.stored_state import StateCodec

log = GuardedLog("shardbus.entity")
store_log = GuardedLog("shardbus.entity.store", LogRateLimiter())


class StateLoader(Protocol):
    """Loads and saves the state of entities."""

    journals: Journals | None

    async def load(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None: ...
    def save(
        self,
        entity_type: str,
        shard: str,
        entity_id: str,
        fence: int,
        data: bytes | None,
        reminders: Reminders | None = None,
    ) -> Awaitable[None]: ...
    def refuse_unsent(self, entity_type: str, shard: str, entity_id: str) -> None: ...


class LoadReminders(Protocol):
    """Reads the reminders of an entity; see `reminding`."""

    async def __call__(self, activation: Activation, *, fenced: bool) -> None: ...


LoadState = Callable[[Activation, bytes | None], Awaitable[None]]
"""Gives the new object of an activation its state, stored as these bytes."""
LoadMerged = Callable[[Activation], Awaitable[None]]
"""Gives the new object of an activation the state that its instances have in common."""
LOGGED_MAX = 4096
"""Characters of an error's text in a line of the log."""


@dataclass(slots=True, eq=False, repr=False)
class EntityCounts:
    """Counts of messages and entities, for metrics."""

    accepted: int = 0
    """Messages that have arrived, also those that another node forwarded."""
    readmitted: int = 0
    """Messages that waited on this node for a home, and got one here."""
    begun: int = 0
    """Messages that were handed to a handler; one that is stashed is handed again later."""
    undone: int = 0
    """How many of them were stashed, or dropped by an act of their handler."""
    stashed: int = 0
    """Messages in stashes now."""
    own_dropped: int = 0
    """Drops of messages that entities sent themselves, which have not arrived from anywhere."""
    carried: dict[str, int] = field(default_factory=dict)
    """By outcome: entities that were to carry their memory."""
    cut_off: int = 0
    expired: int = 0
    """States that were removed after `state_ttl`."""
    failures: int = 0
    failed: HandlerFailures = field(default_factory=HandlerFailures)
    """Which methods and starts failed, and how."""
    dropped: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)
    report_drop: Callable[[int, str, int], None] | None = None
    """Reports dropped tells to their sender: its session's mark, the reason, the number."""
    keep_letter: KeepLetter | None = None
    """Keeps dropped messages as dead letters."""

    def restarted(self) -> None:
        """Count an entity that starts again after a failure, in the same activation."""
        self.started["restart"] = self.started.get("restart", 0) + 1

    @property
    def all_started(self) -> int:
        """Entities started, for whatever cause."""
        return sum(self.started.values())

    def drop(self, reason: str, count: int = 1, via: int = Origin.UNREPORTED) -> None:
        """Count messages that no handler gets. `via`: the `corr` of such a message."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        if via == Origin.OWN:
            self.own_dropped += count
        if is_session_mark(via) and self.report_drop is not None:
            self.report_drop(via, reason, count)

    def lose(
        self,
        reason: str,
        entity_id: str,
        invoker: Invoker,
        payload: bytes,
        session: Session | None,
        corr: int,
    ) -> None:
        """Count a message that no handler gets, and keep it as a dead letter. A message of the node
        itself to an entity, such as the outcome of piped work, is an object and has no bytes."""
        self.drop(reason, via=corr)
        if self.keep_letter is not None:
            has_bytes = invoker.decode_message is None or not invoker.name.startswith("$")
            self.keep_letter(
                reason,
                entity_id,
                invoker.name,
                payload if has_bytes else None,
                corr if session is None else session.name,
                invoker.trace,
                answered=session is not None,
            )


def _may_pass(error: BaseException) -> bool:
    """True if a start that failed so may succeed soon: the store did not answer."""
    return is_a(error, errors.StoreError) and not is_a(
        error, errors.StaleFence, errors.StateTooLarge
    )


def _is_wanted(activation: Activation) -> bool:
    """True if the entity must start, even if it was asked to stop meanwhile."""
    if activation.stopping in MOVES:
        return _awaited(activation)
    return activation.stopping is None


def _stopped_itself(activation: Activation) -> bool:
    """True if the entity called `stop()` or `passivate()` while it starts."""
    itself = activation.stopping in (StopReason.STOPPED, StopReason.PASSIVATION)
    return itself and activation.state is LifeState.STARTING


def _awaited(activation: Activation) -> bool:
    """True if messages of others wait for the entity."""
    return any(not message.ends_with_activation for message in activation.mailbox or ())


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


@dataclass(eq=False, repr=False)
class Supervisor:
    """Starts entities of one type. `tick` is the node's coarse time. `end_work(activation)` ends an
    activation's timers and work."""

    _kind: EntityType
    _settings: ShardingSettings
    _keeper: StateLoader
    _end_work: Callable[[Activation], None]
    counts: EntityCounts = field(default_factory=EntityCounts)
    tick: int = 0
    carrying: CarriedStates | None = None
    """The carried memory of entities, of a type that carries."""
    sizes: StateSizes | None = None
    load_reminders: LoadReminders | None = None
    """Reads the reminders of an entity that starts; None: its type sets none."""
    load_state: LoadState | None = None
    """Gives an object the state of a type whose states have the number of an event."""
    load_merged: LoadMerged | None = None
    """Gives an object the state of a type whose states merge."""

    async def start(self, activation: Activation) -> None:
        """Construct, load the state, run `on_start`; again after a backoff while that fails."""
        while _is_wanted(activation):
            backoff = self._backoff(activation)
            if backoff:
                await self._pause(activation, backoff)
            try:
                await self._prepare(activation)
                if self._kind.starts:
                    await activation.entity.on_start()
            except (GeneratorExit, asyncio.CancelledError):  # of the runner, or of the loop's end
                raise
            except BaseException as e:  # StaleFence too: the region sees that the shard has moved
                raise_interrupt(e)
                if self.gives_up(activation, e):
                    return
            else:
                if activation.extras is not None:
                    activation.extras.failures = 0
                    activation.extras.start_failure = None
                self.counts.failed.started(activation.key)
                if self.carrying is not None:
                    self.carrying.forget(activation)
                ended = _stopped_itself(activation)
                activation.step(LifeStep.REFUSES if ended else LifeStep.STARTED)
                return

    def failed_by_itself(self, activation: Activation) -> None:
        """Note that an entity, which starts again now, has failed by a message of its own."""
        extras = activation.more()
        again = extras.own_failures and extras.used_at_failure == activation.used
        extras.own_failures = extras.own_failures + 1 if again else 1
        extras.used_at_failure = activation.used
        extras.failures = extras.own_failures

    async def _pause(self, activation: Activation, seconds: float) -> None:
        """Wait for the next attempt. Refuse the asks that would be too late for it: their senders
        get the cause instead of a timeout. A pause after failures by its own messages ends once a
        message of another arrives."""
        loop, extras = asyncio.get_running_loop(), activation.more()
        pause = extras.pause = loop.create_future()
        extras.resumes_at = self.tick + CoarseClock.ticks(seconds)
        activation.step(LifeStep.PAUSES)
        if activation.mailbox:
            late = partial(self.starts_too_late, activation)
            activation.mailbox = deque(filterfalse(late, activation.mailbox))
        timer = loop.call_later(seconds, _end, pause)
        try:
            await pause
        finally:
            timer.cancel()
            extras.pause = None
            if activation.state is LifeState.PAUSING:
                activation.step(LifeStep.RETRIES)

    def starts_too_late(self, activation: Activation, message: Message) -> bool:
        """Refuse an ask whose deadline passes before the next attempt to start the entity. Returns
        True if it is refused. Its start has not failed: begin the attempt at once."""
        extras = activation.extras
        if activation.state is not LifeState.PAUSING or extras is None:
            return False
        failure = extras.start_failure
        if failure is None:
            if extras.pause is not None and not message.ends_with_activation:
                _end(extras.pause)
            return False
        if message.session is None or message.deadline > extras.resumes_at:
            return False
        self.counts.lose("start_failed", activation.key, *message[:4])
        message.refuse(failure)
        return True

    def abandoned(self, activation: Activation) -> bool:
        """True if the entity waits for its next attempt and no message waits for it. Asks whose
        deadline has passed are dropped."""
        if activation.state is not LifeState.PAUSING:
            return False
        mailbox = activation.mailbox
        while mailbox and mailbox[0].session is not None and mailbox[0].deadline <= self.tick:
            self.counts.lose("expired", activation.key, *mailbox.popleft()[:4])
        return not _awaited(activation)

    def gives_up(self, activation: Activation, error: BaseException) -> bool:
        """Note a failed start. Returns True if it is not tried again. If supervision or the entity
        decided so, the messages that wait are refused: a next activation would fail alike."""
        self.end_object(activation)
        unreadable = is_a(error, errors.StateUnreadable)
        why = f"it does not start: {text_of(error)}"
        activation.more().start_failure = errors.EntityFailed(type_name(error), why)
        now = asyncio.get_running_loop().time()
        self.counts.failed.not_started(now, activation.key, error, unreadable=unreadable)
        if self.stops_itself(activation, error):
            self.failed(activation, ON_START, "failed to start", error, again=False)
            return True
        stops = self.directive(error) is Directive.STOP
        self.failed(activation, ON_START, "failed to start", error, again=not stops)
        if self._ends(activation, error):
            return True
        if stops:
            activation.stopping = StopReason.FAILURE
            activation.more().refusal = error
        return stops

    def end_object(self, activation: Activation) -> None:
        """End the object of an entity and its timers and work. The activation goes on with another
        object, or ends."""
        self._end_work(activation)
        activation.entity = None
        self.disown(activation)

    def disown(self, activation: Activation) -> None:
        """Refuse later asks and acts of an entity's object, and its saves that are not sent yet."""
        activation.more().objects_ended += 1
        self._keeper.refuse_unsent(self._kind.name, activation.shard.shard, activation.key)

    def stops_itself(self, activation: Activation, error: BaseException) -> bool:
        """Return True if the entity had stopped itself before its start failed. The messages that
        wait are then refused."""
        if not _stopped_itself(activation):
            return False
        activation.more().refusal = error
        return True

    def directive(self, error: BaseException) -> Directive:
        """Return the directive for a failure. A state that cannot be read is not read again until
        the next message."""
        if is_a(error, errors.StateUnreadable):
            return Directive.STOP
        of_store = is_a(error, errors.StoreError) and not is_a(error, errors.StaleActivation)
        if of_store or not is_exception(error):
            return Directive.RESTART  # memory may be ahead of the store, or half-way
        try:
            return Directive(self._kind.supervision(error))
        except BaseException:
            log.exception("the supervision of %s failed", self._kind.name)
            return Directive.RESTART

    def _ends(self, activation: Activation, error: BaseException) -> bool:
        """Decide whether a failed start is not tried again: the entity is to stop, and no message
        waits for it, or the next attempt would fail as well."""
        stop_request = activation.stop_request
        requested = None if stop_request is None else stop_request.reason
        reason = activation.stopping or requested
        if reason is None or (reason in MOVES and _may_pass(error) and _awaited(activation)):
            return False
        activation.stopping = reason
        return True

    def construct(self, activation: Activation) -> None:
        """Make the object; its `context` is there before `__init__` runs."""
        cls: Any = self._kind.cls
        entity = cls.__new__(cls)
        entity.context = activation if activation.extras is None else activation.context_now()
        entity.__init__()
        activation.entity = entity

    async def _prepare(self, activation: Activation) -> None:
        """Make the object, and give it its memory carried from another node, else its stored
        state."""
        self.construct(activation)
        if self.carrying is not None and self.carrying.has(activation):
            if self.carrying.restore(activation):
                if self.load_reminders is not None:
                    await self.load_reminders(activation, fenced=False)
                return
            self.end_object(activation)
            self.construct(activation)
        if self._kind.states is not None:
            await self._load(activation, self._kind.states)
        elif self.load_merged is not None:
            await self.load_merged(activation)
        if self.load_reminders is not None:
            await self.load_reminders(activation, fenced=self._kind.states is not None)

    async def _load(self, activation: Activation, states: StateCodec) -> None:
        key, shard = activation.key, activation.shard
        data = await self._keeper.load(self._kind.name, shard.shard, key, shard.fence)
        if self.sizes is not None:
            self.sizes.note(activation, data)
        if self._kind.events is not None:
            self._load_record(activation, data, states)  # a replay adds to it
        if self.load_state is not None:
            await self.load_state(activation, data)
        else:
            activation.entity.state = states.cls() if data is None else states.read(key, data)
        if self._kind.events is None:
            self._load_record(activation, data, states)

    def _load_record(self, activation: Activation, data: bytes | None, states: StateCodec) -> None:
        """Take the record of deliveries that is stored with a state."""
        try:
            activation.shard.host.deliveries.loaded(activation, data)
        except ValueError as error:
            raise states.unreadable(activation.key, 0, error) from error

    def _backoff(self, activation: Activation) -> float:
        """Return the seconds to wait: 0 unless this start failed more than once, then doubling
        up to the maximum."""
        if activation.failures <= 1:
            return 0.0
        settings = self._settings
        least, most = settings.entity_restart_backoff_min, settings.entity_restart_backoff
        return doubling(least, most, activation.failures - 1)

    def failed(
        self,
        activation: Activation,
        method: str,
        what: str,
        error: BaseException,
        *,
        again: bool = True,
    ) -> None:
        """Count, keep and log a failure of a method. `again`: it is a start that is tried again,
        after a longer backoff than the last time."""
        self.note_failure(activation, method, error)
        if again:
            activation.more().failures += 1
        # A store that fails may fail all entities of a node.
        stored = is_a(error, errors.StoreUnavailable, errors.StateUnreadable)
        output = store_log if stored else log
        output.warning(
            "%s %r %s: %s: %s",
            self._kind.name,
            activation.key,
            what,
            type_name(error),
            text_of(error, LOGGED_MAX),
            exc_info=None if stored or is_a(error, errors.StoreError) else error,
            extra={"shard": activation.shard.shard, "fence": activation.shard.fence},
        )

    def note_failure(self, activation: Activation, method: str, error: BaseException) -> None:
        """Count a failure of a method, and keep it for operators."""
        self.counts.failures += 1
        now = asyncio.get_running_loop().time()
        self.counts.failed.add(now, method, activation.key, error)
