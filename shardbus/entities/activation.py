"""An activation: one entity in the memory of this node, its messages, and the states of its life.

    ──> STARTING ──started──> RUNNING ──stops──> STOPPING ──ends──> GONE
         │ ^   │               │ │  ^                                ^
         │ │   └──<─restarts───┘ └──┘ rests (RESTING), wakes         │
         │ └─ lists (LISTING), pauses (PAUSING)                      │
         └──refuses──> REFUSING ─────────────ends────────────────────┘

- LISTING: the store adds a remembered entity to the list of its shard. The start follows.
- STARTING: the object is made, its state is loaded, `on_start` runs.
- PAUSING: the start has failed; the next attempt waits for its backoff.
- RUNNING: the entity handles messages. It is idle unless `busy` is set.
- RESTING: the entity has handled its stop message and has nothing to do until it calls `stop()`.
- STOPPING: `on_stop` runs. Messages that arrive wait for the next activation.
- REFUSING: the entity ends, and so do the messages that wait for it: they are refused.
- GONE: the activation has left memory.

An activation in any state can end. `TRANSITIONS` is the drawing as data. `Activation.step` is the
only place that changes the state, and refuses steps that the table lacks. The hot path reads two
slots instead of the state: `busy`, which `step` sets in every state but RUNNING, and `stopping`.

An activation that starts again after a failure makes another object of the entity, and the former
one is over: it may write and ask nothing any more, whatever its tasks do. `objects_ended` counts
these, so that `context` can tell one object from the next.

`Activation` is data. The methods that an entity calls are in `context`; the steps from state to
state are in `supervision`, `runner`, `stopping` and `host`.

Source: S2.38-S2.42, S4.15-S4.20; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from shardbus.entities.entity_type import Invoker, StopReason
from shardbus.errors import EntityFailed, LocalProtocolError
from shardbus.tasks.eager import EagerTask
from shardbus.transport.drop_reports import Origin
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

OUTCOME = "$outcome"
"""The name of the invoker of a piped outcome. No handler has this name."""

AFTER_CURRENT = (StopReason.PASSIVATION, StopReason.STOPPED, StopReason.FAILURE)
"""Reasons to stop after the current message. The mailbox's messages start a new activation."""

NEVER = 2**62
"""The deadline of a message that was put aside."""

MOVES = (StopReason.HANDOFF, StopReason.SHUTDOWN)
"""Reasons to stop after the messages that wait: the shard moves."""


class LifeState(IntEnum):
    """How far an activation is in its life. The order is used: from STOPPING on, it ends."""

    LISTING = 1
    STARTING = 2
    PAUSING = 3
    RUNNING = 4
    RESTING = 5
    STOPPING = 6
    REFUSING = 7
    GONE = 8


STARTING, RUNNING = LifeState.STARTING, LifeState.RUNNING
"""For the start of an entity: a look-up of a global costs less than one in an enumeration."""


class LifeStep(IntEnum):
    """The triggers that move an activation on."""

    LISTS = 1
    LISTED = 2
    PAUSES = 3
    RETRIES = 4
    STARTED = 5
    RESTARTS = 6
    RESTS = 7
    WAKES = 8
    STOPS = 9
    REFUSES = 10
    ENDS = 11


TRANSITIONS: dict[tuple[LifeState, LifeStep], LifeState] = {
    (LifeState.STARTING, LifeStep.LISTS): LifeState.LISTING,
    (LifeState.LISTING, LifeStep.LISTED): LifeState.STARTING,
    (LifeState.STARTING, LifeStep.PAUSES): LifeState.PAUSING,
    (LifeState.PAUSING, LifeStep.RETRIES): LifeState.STARTING,
    (LifeState.STARTING, LifeStep.STARTED): LifeState.RUNNING,
    (LifeState.STARTING, LifeStep.RESTARTS): LifeState.STARTING,
    (LifeState.RUNNING, LifeStep.RESTARTS): LifeState.STARTING,
    (LifeState.RUNNING, LifeStep.RESTS): LifeState.RESTING,
    (LifeState.RESTING, LifeStep.WAKES): LifeState.RUNNING,
    (LifeState.RUNNING, LifeStep.STOPS): LifeState.STOPPING,
    (LifeState.RESTING, LifeStep.STOPS): LifeState.STOPPING,
    (LifeState.REFUSING, LifeStep.STOPS): LifeState.REFUSING,
    **{(s, LifeStep.REFUSES): LifeState.REFUSING for s in LifeState if s is not LifeState.GONE},
    **{(s, LifeStep.ENDS): LifeState.GONE for s in LifeState if s is not LifeState.GONE},
}


class Message(NamedTuple):
    """A message that waits for its entity. `session` is None if no answer is expected; then
    `deadline` is 0 and `corr` is an `Origin` or the mark of a session. `chain`: the entities that
    wait for the answer."""

    invoker: Invoker
    payload: bytes
    session: Session | None
    corr: int
    deadline: int
    chain: Chain = ()

    @property
    def ends_with_activation(self) -> bool:
        """True if the message ends with the activation: it is of a timer, of piped work, or a stop
        message. Any other message starts the next activation."""
        return self.corr == Origin.OWN or self.invoker.name == OUTCOME

    @property
    def begun(self) -> bool:
        """True if a handler has begun with it, and has put it aside."""
        return self.deadline == NEVER

    def refuse(self, error: Exception) -> None:
        """Give an error to its asker, if there is one."""
        if self.session is not None:
            self.session.outbox.fail(self.corr, error, begun=self.begun)


Current = tuple[Invoker, bytes, Session | None, int, Chain]
"""The message being handled: a Message without its deadline."""

Asker = tuple[Session | None, int, Chain]
"""The session and correlation id to answer, if an answer is expected, and the entities that wait
for it."""


class StopRequest:
    """A stop message for an entity, and how far it has come."""

    __slots__ = ("handed", "last", "message", "reason")

    def __init__(self, message: Message, reason: StopReason, *, last: bool = False) -> None:
        self.message, self.reason = message, reason
        self.last = last
        """Messages behind it are for the next activation."""
        self.handed = False
        """The entity has been given the message."""

    @property
    def holds(self) -> bool:
        """True if messages of others wait for the next activation."""
        return self.handed and self.last

    def first_own(self, mailbox: deque[Message] | None) -> int | None:
        """Return the index of the first message that does not wait for the next activation."""
        return next(
            (at for at, message in enumerate(mailbox or ()) if message.ends_with_activation), None
        )


TIMERS_MIN = 16
"""Timers of an entity below which those that were cancelled are not looked for."""


@dataclass(slots=True, eq=False, repr=False)
class Extras:
    """The state that few entities need: timers, a stash, piped work, an idle timeout of their own,
    a stop request, the error of a start that is not tried again, failures, the last failure of a
    start, failures of their own timers, former objects, and reminders."""

    timers: dict[object, asyncio.TimerHandle] = field(default_factory=dict)
    """Timers that are set, each by a key of its own, and some that were cancelled."""
    timers_max: int = TIMERS_MIN
    """With more timers than this, those that were cancelled are forgotten."""
    stash: list[Message] = field(default_factory=list)
    stashed: bool = False
    """The message being handled was put aside and has no answer yet."""
    work: dict[asyncio.Future[Any], Asker] = field(default_factory=dict)
    """Piped work under way."""
    idle_timeout: float | None = None
    stop_request: StopRequest | None = None
    refusal: BaseException | None = None
    reminders: Any = None
    """Its `EntityReminders`; None if it has none."""
    failures: int = 0
    """Starts in a row that have failed, with the failure that led to the first."""
    start_failure: EntityFailed | None = None
    """The last failure of a start, as its askers get it."""
    resumes_at: int = 0
    """The tick of the next attempt, while the entity waits for it."""
    pause: asyncio.Future[None] | None = None
    """Done when the next attempt is due."""
    own_failures: int = 0
    """Failures by messages of the entity's own, without one of others in between."""
    used_at_failure: int = 0
    """`used` at the last of these failures."""
    objects_ended: int = 0
    """Objects of the entity that are over, while the activation goes on."""

    def take_stashed(self) -> bool:
        """Return `stashed`, and clear it for the next message."""
        stashed, self.stashed = self.stashed, False
        return stashed

    def add_timer(self, key: object, timer: asyncio.TimerHandle) -> None:
        """Keep a timer, in the place of the former one with this key, so that it is cancelled with
        the activation. Once it fires, it is taken out of `timers`, or set again."""
        self.timers[key] = timer
        if len(self.timers) > self.timers_max:
            self.timers = {k: kept for k, kept in self.timers.items() if not kept.cancelled()}
            self.timers_max = max(TIMERS_MIN, 2 * len(self.timers))

    def cancel_timers(self) -> None:
        """Cancel every timer."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()


@dataclass(slots=True, eq=False, repr=False)
class Shard:
    """A shard that this node hosts: its fence, the messages it admits, and its activations.

    An open shard admits every message, and its activations are in `ActivationTable.active`, on the
    hot path. `activations` holds them while the shard is not open. The region machine decides which
    messages a shard admits."""

    shard: str
    fence: int
    host: Any = None
    """The `ContextHost`, for `Context`."""
    arrivals: bool = False
    """Messages from links are admitted; if `via` is set, only those from that node."""
    via: object | None = None
    open: bool = False
    """Every message is admitted."""
    activations: dict[str, Activation] = field(default_factory=dict)
    live: int = 0
    """Activations in memory."""
    records: dict[str, Any] = field(default_factory=dict)
    """By entity id, the deliveries to the entity (`entities.deliveries`), as far as they are
    known here."""
    returning: set[str] = field(default_factory=set)
    """Ids of remembered entities that stopped and start again after a backoff."""
    stopping: StopReason | None = None
    cut_off: bool = False
    """Its time to stop is over: no entity starts here any more."""

    def admit(self, arrivals: bool, via: object | None = None) -> None:
        """Admit messages from links, or none; with `via`, only those from that node."""
        self.arrivals, self.via = arrivals, via
        self.open = arrivals and via is None

    def lets_in(self, session: Session, local: bool) -> bool:
        """True if a message that arrived on this session is admitted. `local`: it is of this
        node."""
        if local:
            return self.stopping is None
        return self.arrivals and (self.via is None or self.via == session.tag)


class HotSlots:
    """The slots of an activation that every message reads. The slots of a base class come first in
    memory, so these are in one line of the processor's cache, with the object's header."""

    __slots__ = ("busy", "entity", "mailbox", "stopping", "used")


class Activation(HotSlots):
    """One entity in memory. There is one object per entity, so it is small; `Context` adds methods
    and no slots."""

    __slots__ = ("extras", "key", "shard", "state", "task")

    def __init__(self, shard: Shard, key: str) -> None:
        self.shard = shard
        self.key = key
        """The id under which its messages arrive: the entity's, with the instance if there is
        one."""
        self.entity: Any = None
        """The object. None before a start, between two attempts and once `on_stop` runs."""
        self.state = STARTING
        self.busy = True
        """Messages go into the mailbox. False if the entity is idle: the next message is handled
        where it arrives."""
        self.mailbox: deque[Message] | None = None
        self.stopping: StopReason | None = None
        """Why the entity stops, once that is decided."""
        self.used = 0
        """The tick of the last message from outside."""
        self.task: EagerTask | None = None
        """The task of a handler, a start or an `on_stop` that waits."""
        self.extras: Extras | None = None

    def step(self, step: LifeStep) -> None:
        """Move on to the state that follows.

        Raises:
            LocalProtocolError: the table has no such transition. Nothing has changed.
        """
        following = TRANSITIONS.get((self.state, step))
        if following is None:
            raise LocalProtocolError(f"entity {self.key!r}: {step.name} in state {self.state.name}")
        self.state = following
        if following is not LifeState.RUNNING:
            self.busy = True

    def more(self) -> Extras:
        """Return `extras`, made if there are none."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    def context_now(self) -> Any:
        """Return the `context` of the object that is made now; see `context`."""
        raise NotImplementedError

    @property
    def objects_ended(self) -> int:
        """Objects of the entity that are over, while the activation goes on."""
        return 0 if self.extras is None else self.extras.objects_ended

    @property
    def stop_request(self) -> StopRequest | None:
        """The stop message on its way to the entity."""
        return None if self.extras is None else self.extras.stop_request

    @property
    def failures(self) -> int:
        """Starts in a row that have failed, with the failure that led to the first."""
        return 0 if self.extras is None else self.extras.failures

    @property
    def refusal(self) -> BaseException | None:
        """Why the start failed, if it is not tried again."""
        return None if self.extras is None else self.extras.refusal

    @property
    def works(self) -> bool:
        """True if piped work is under way."""
        return self.extras is not None and bool(self.extras.work)

    @property
    def idle(self) -> bool:
        """True if no handler runs and no piped work is under way."""
        return not self.busy and not self.works

    @property
    def ends_now(self) -> bool:
        """True if an entity that is to stop has nothing left to do before `on_stop`."""
        if self.entity is None or self.stopping in AFTER_CURRENT:
            return True
        stop_request, left = self.stop_request, bool(self.mailbox)
        if stop_request is not None and stop_request.holds:
            left = stop_request.first_own(self.mailbox) is not None
        return not left and not self.works
