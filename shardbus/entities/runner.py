"""The runner of one entity type's messages: the hot path, the mailboxes, starts and failures.

Messages come in runs (`runs`), or one by one (`receive`). A message for a busy entity goes into the
mailbox; any other is handled where it arrived. The work behind a message is here for both: its
answer, the rest of the mailbox, the end of the entity.

**Suspension.** While the gate is shut nothing is handled and nothing starts: messages go into
mailboxes, and activations that would go on are held, in order. Once it opens, these go on, some in
each turn of the loop.

**Failures.** A handler that raises fails its asker with EntityFailed and restarts the entity (a new
object, its state loaded again, `on_start`) at once; messages wait. A tell whose handler raises is
counted as dropped, `failed`. The directive `resume` keeps the object, unless a delivery has failed
at an entity with state: it will be handled again. `stop` stops it.
`supervision` describes when a start waits for a backoff.

**Rejections.** A `Rejection` that a handler raises, or lets pass from an entity that it asked, is
an answer: the asker gets it, and the entity goes on as it is. A tell counts as dropped, `rejected`.
Only the stop message of an entity has no sender that could be refused: there it is a failure, which
stops the entity.

A message that an entity asks of itself, directly or through others, is refused (`reentrancy`).

Source: S2.47-S2.49, S4.15, S4.19, S4.20, S4.23; B.108, B.122, B.136.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from shardbus.config.settings import ShardingSettings
from shardbus.deliveries.numbers import MARK
from shardbus.entities.activation import (
    MOVES,
    NEVER,
    OUTCOME,
    RUNNING,
    STARTING,
    Activation,
    Current,
    LifeState,
    LifeStep,
    Message,
    StopRequest,
)
from shardbus.entities.carrying import CarriedStates
from shardbus.entities.deferred import DeferredWork
from shardbus.entities.entity_type import Directive, EntityType, Invoker, StopReason
from shardbus.entities.event_log import EventLogs
from shardbus.entities.failures import ON_START
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.mailboxes import MESSAGE_BYTES, MailboxLimits
from shardbus.entities.projecting import Projecting
from shardbus.entities.reminding import Reminding
from shardbus.entities.running_handlers import (
    NONE_LEFT,
    RunHeader,
    RunningHandlers,
    current_of,
)
from shardbus.entities.state_sizes import StateSizes
from shardbus.entities.supervision import LoadMerged, StateLoader, Supervisor
from shardbus.entities.unfinished_work import finish, is_unfinished
from shardbus.error_text import described, is_a, text_of, traceback_in, type_name
from shardbus.errors import (
    EntityFailed,
    MailboxFull,
    ReentrancyError,
    Rejection,
    SchemaError,
    StaleActivation,
    StaleFence,
    StateUnreadable,
    Unhandled,
)
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.tasks.eager import EagerTask, references
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.drop_reports import Origin
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import unreadable

log = GuardedLog("shardbus.entity")

Handled = tuple[Invoker, bytes, Session | None, int]
"""A message that a handler got: its method, payload, and the session and correlation id of its
asker."""

SETTLE_MAX = 256
"""Messages of one mailbox handled in a row before other callbacks of the loop run."""

OWN = int(Origin.OWN)
"""A look-up of a global costs less than one in an enumeration."""

GATE_EVERY = 16
"""Messages of one mailbox between two checks of the gate. A power of two."""

RESUMED_MAX = 256
"""Held activations that go on in one turn of the loop."""


class StateReplaced(Exception):
    """An operator has replaced the state of the entity, which starts again. Never leaves the
    runner."""


def invoked(invoker: Invoker, entity: Any, payload: bytes) -> Any:
    """Decode a payload, and return the result of the method called with it."""
    if invoker.decode_message is not None:
        return invoker.function(entity, invoker.decode_message(payload))
    return invoker.function(entity, *invoker.decoders[payload[0]](payload))


def answer(
    activation: Activation, invoker: Invoker, value: Any, session: Session, corr: int
) -> None:
    """Answer with the handler's result, unless it has put the message aside."""
    if activation.extras is not None and activation.extras.take_stashed():
        return
    try:
        payload = invoker.encode(value)
    except BaseException as e:  # of a property or a serializer of the application's
        raise_interrupt(e)
        why = e.message if is_a(e, SchemaError) else described(e)
        text = f"the handler returned a value that cannot be encoded: {why}"
        session.outbox.fail(corr, EntityFailed("SchemaError", text))
        activation.shard.host.runner.note_unanswered(activation, invoker, e)
    else:
        if (error := session.outbox.reply(corr, payload)) is not None:
            activation.shard.host.runner.note_unanswered(activation, invoker, error)


def failure_for_asker(
    entity_type: str, entity_id: str, error: BaseException, *, begun: bool = True
) -> Exception:
    """Return the error that the asker of a failed handler gets, which is never definite. Every
    entity on a cycle of asks gets the ReentrancyError that names it; a caller outside the cycle
    sees its entity fail. `begun`: False if its start failed, before any handler."""
    if is_a(error, EntityFailed, ReentrancyError):
        with suppress(Exception):  # a subclass may lack the attributes of its class
            match error:
                case StateUnreadable():
                    same = (error.entity_type, error.entity_id) == (entity_type, entity_id)
                    return error if same and not begun else EntityFailed(error.type, error.message)
                case EntityFailed() if not error.definite:
                    return error
                case ReentrancyError(cycle=(first, *_)) if first != (entity_type, entity_id):
                    return error
                case _:
                    pass
    return EntityFailed(type_name(error), text_of(error))


def was_called(function: Callable[..., Any], error: BaseException) -> bool:
    """True if the traceback of an error shows that this handler was called. An error without one,
    which no code has raised, is the cancellation of a handler that has returned."""
    codes, trace, layer = set[Any](), traceback_in(error), cast("Any", function)
    if trace is None:
        return True
    while layer is not None:  # a decorator may show the function that it wraps, and not itself
        codes.add(getattr(layer.func if isinstance(layer, partial) else layer, "__code__", None))
        layer = getattr(layer, "__wrapped__", None)
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


class EntityRunner:
    """Handles the messages of one entity type on one node. `finish(activation)` is called when an
    entity has nothing left to do before `on_stop`."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        keeper: StateLoader,
        finish: Callable[[Activation], None],
        gate: SuspensionGate | None = None,
    ) -> None:
        self.gate = gate or SuspensionGate()
        self._held: dict[Activation, Callable[[], None]] = {}
        """Activations that would go on if the gate were open, each with its next step."""
        self.gate.on_open(self._resume_some)
        self.kind, self.settings, self.loop = kind, settings, loop
        self.plain = kind.plain
        self.activation: Activation | None = None
        """The entity that handles a message at this very moment."""
        self.run_header: RunHeader | None = None
        """The run of this message."""
        self.tick = 0
        """Coarse time, in units of 50 ms."""
        self.deferred = DeferredWork(kind, self, settings.mailbox)
        self._supervisor = Supervisor(kind, settings, keeper, self.deferred.end)
        self.logs: EventLogs | None = None
        """None for a type that is not event-sourced."""
        if kind.events is not None:
            self.logs = EventLogs(kind, settings, keeper.journals, self.gate, keeper.load)
            self._supervisor.load_state = self.logs.load
        self.counts = self._supervisor.counts
        self.carrying: CarriedStates | None = None
        self.reminding: Reminding | None = None
        """None for a type whose entities set no reminders."""
        self.projecting: Projecting | None = None
        """None for a type that is no projection."""
        self._finish = finish
        self.running_handlers = RunningHandlers(kind.name, loop, self, self.gate)
        self.eager = self.running_handlers.eager
        self.mailbox_limits = MailboxLimits(settings, loop, self.gate, kind.name)
        self._mailbox_max = settings.mailbox

    def advance(self, tick: int) -> None:
        """Set the coarse time, in ticks of 50 ms."""
        self.tick = self._supervisor.tick = tick

    def carry(self, carrying: CarriedStates) -> None:
        """Let entities take their carried memory when they start. Called once, before any
        starts."""
        self.carrying = self._supervisor.carrying = carrying

    def remind(self, reminding: Reminding) -> None:
        """Let entities set reminders. Called once, before any starts."""
        self.reminding = reminding
        self._supervisor.load_reminders = reminding.load

    def share(self, load: LoadMerged) -> None:
        """Let entities have the state that their instances share. Called once, before any
        starts."""
        self._supervisor.load_merged = load

    def follow(self, projecting: Projecting) -> None:
        """Report the events of this type to a projection of them."""
        if self.logs is not None:
            self.logs.projections.append(projecting)

    def project(self, projecting: Projecting) -> None:
        """Let entities handle events as parts of a projection. Called once, before any starts."""
        self.projecting = projecting
        self._supervisor.load_state = projecting.load

    def measure(self, sizes: StateSizes) -> StateSizes:
        """Note the size of each state that is loaded. Called once, before any entity starts."""
        self._supervisor.sizes = sizes
        return sizes

    def handling(self, activation: Activation) -> Current | None:
        """Return the message that an entity handles; None if it handles none."""
        if self.activation is not activation or self.run_header is None:
            return activation.task.message if activation.task is not None else None
        return current_of(self.run_header)

    # ---- single messages

    def receive(self, activation: Activation, message: Message, *, counts: bool = True) -> None:
        """Handle one message now if the entity is idle, else queue it. `counts`: the entity is in
        use; a timer of its own does not keep it in memory."""
        if counts:
            activation.used = self.tick
        if activation.busy:
            self.queue(activation, message)
        elif self.gate.close_if_due():
            self.hold_message(activation, message)
        elif self.run(activation, message):
            self.settle_if_needed(activation)

    def receive_next(self, activation: Activation, message: Message) -> None:
        """Handle a message of the entity's own before all that wait, and behind the one at work."""
        self.mailbox_limits.mailbox_of(activation).appendleft(message)
        if not activation.busy and self.handling(activation) is None:
            activation.busy = True
            self.settle_later(activation)

    def queue(self, activation: Activation, message: Message) -> None:
        """Append a message to the mailbox if it has room, else refuse it. Refuse a message that the
        entity itself waits for, which would wait for ever."""
        if (
            message.chain
            and (error := self.running_handlers.closed_by(activation, message)) is not None
        ):
            self.counts.lose("reentrant", activation.key, *message[:4])
            message.refuse(error)
            return
        state = activation.state
        if state is not RUNNING and state is not STARTING and self._refused(activation, message):
            return
        mailbox, mailbox_limits = activation.mailbox, self.mailbox_limits
        if mailbox is None:
            mailbox = mailbox_limits.mailbox_of(activation)
        mailbox_limits.room -= len(message.payload) + MESSAGE_BYTES
        roomy = mailbox_limits.room > 0 and len(mailbox) < self._mailbox_max
        if roomy or mailbox_limits.admits(activation, message):
            mailbox.append(message)
            return
        self.counts.lose("mailbox_full", activation.key, *message[:4])
        text = f"{self.kind.name} {activation.key!r} has {counted(len(mailbox), 'message')} waiting"
        message.refuse(MailboxFull(text))

    def _refused(self, activation: Activation, message: Message) -> bool:
        """Refuse a message for an entity that stopped as it started, or whose next attempt to start
        comes after the deadline of the message. Returns True if it is refused."""
        if activation.state >= LifeState.REFUSING:
            self.counts.lose("stopped", activation.key, *message[:4])
            message.refuse(Unhandled(f"{self.kind.name} {activation.key!r} stopped as it started"))
            return True
        return self._supervisor.starts_too_late(activation, message)

    def settle_if_needed(self, activation: Activation) -> None:
        if activation.stopping is not None or activation.mailbox:
            self.settle(activation)

    def settle(self, activation: Activation) -> None:
        """Go on after something an entity has done: handle its mailbox, stop it, or leave it
        idle."""
        if activation.stopping is None and not activation.mailbox and activation.extras is None:
            activation.busy, activation.mailbox = False, None
            return
        activation.busy = True
        for handled in range(SETTLE_MAX):
            if handled % GATE_EVERY == 0 and self.gate.close_if_due():
                self._hold(activation, partial(self._settle_unless_over, activation))
                return
            mailbox, extras = activation.mailbox, activation.extras
            stop_request = None if extras is None else extras.stop_request
            if activation.stopping is not None and activation.ends_now:
                self._finish(activation)
                return
            if stop_request is not None and self._rests(activation, stop_request):
                return
            if not mailbox:
                activation.busy, activation.mailbox = False, None
                return
            message = mailbox.popleft()
            if stop_request is not None and message is stop_request.message:
                stop_request.handed = True
            if message.session is not None and message.deadline <= self.tick:
                self.counts.lose("expired", activation.key, *message[:4])
            elif not self.run(activation, message):
                return
        self.settle_later(activation)

    def settle_soon(self, activation: Activation) -> None:
        """Settle an entity that has started. Messages that wait are handled in a callback of their
        own, so that entities which stop after each message do not pile up on the stack. An entity
        whose start is given up ends in a callback of its own, too: the messages that arrive in this
        one do not start it again."""
        activation.busy = True
        if activation.mailbox or activation.refusal is not None:
            self.settle_later(activation)
        else:
            self.settle(activation)

    def settle_later(self, activation: Activation) -> None:
        """Settle an entity in a callback of its own."""
        self.loop.call_soon(self._settle_unless_over, activation)

    def _settle_unless_over(self, activation: Activation) -> None:
        """Settle an entity, unless its `on_stop` runs or it has left memory."""
        if activation.state < LifeState.STOPPING or activation.entity is not None:
            self.settle(activation)

    def _rests(self, activation: Activation, stop_request: StopRequest) -> bool:
        """Let an entity rest that has handled its stop message, if nothing in its mailbox is for
        this activation. Otherwise bring the first message that is to the front."""
        if activation.state is LifeState.RESTING:
            activation.step(LifeStep.WAKES)
        if not stop_request.holds:
            return False
        mailbox = activation.mailbox
        first = stop_request.first_own(mailbox)
        if first is None:
            activation.step(LifeStep.RESTS)
            return True
        if mailbox and first:
            message = mailbox[first]
            del mailbox[first]
            mailbox.appendleft(message)
        return False

    def run(
        self,
        activation: Activation,
        message: Message,
        work: Coroutine[Any, Any, Any] | None = None,
    ) -> bool:
        """Handle one message. Returns True if that is done; otherwise `settle` is called later.
        `work`: the rest of its handler's work, instead of a call of it."""
        invoker, payload, session, corr, deadline, chain = message
        if corr != OWN and invoker.name != OUTCOME and work is None:
            self.counts.begun += 1
        return self._handle(activation, invoker, payload, session, corr, deadline, chain, work)

    def _handle(
        self,
        activation: Activation,
        invoker: Invoker,
        payload: bytes,
        session: Session | None,
        corr: int,
        deadline: int,
        chain: Chain,
        work: Coroutine[Any, Any, Any] | None = None,
    ) -> bool:
        """Handle a message, given by its fields, as `run` does."""
        outer, outer_header = self.activation, self.run_header
        self.activation = activation
        self.run_header = (invoker, session, chain, (payload,), corr, NONE_LEFT)
        eager, coroutine = self.eager, work
        entered = eager.enter()
        try:
            task = eager.task
            task.context = context = eager.base.copy()
            error: BaseException | None = None
            task.coroutine = value = None
            before = references(eager.task)
            try:
                if work is None:
                    value = context.run(invoked, invoker, activation.entity, payload)
                    if invoker.is_async:
                        coroutine = value
                    elif not invoker.returns_values and is_unfinished(value):
                        coroutine = finish(value)
                if coroutine is not None:
                    task.coroutine = coroutine
                    waits_for = context.run(coroutine.send, None)
                    self.carry_on(activation, coroutine, waits_for, context)
                    return False
            except StopIteration as e:
                if coroutine is not None:
                    value = e.value
                else:  # of decoding
                    error = e
            except BaseException as e:
                error = e
            if error is not None or eager.has_traces(before, context):
                error = eager.replace(value, error)
            if error is not None:
                begun = deadline == NEVER
                return self.raised(activation, invoker, payload, error, session, corr, begun)
            if invoker.returns_values or not is_unfinished(value):
                if session is not None:
                    context.run(answer, activation, invoker, value, session, corr)
                return True
        finally:
            eager.leave(entered)
            self.activation, self.run_header = outer, outer_header
        message = Message(invoker, payload, session, corr, deadline, chain)
        return self.run(activation, message, finish(value))

    def raised(
        self,
        activation: Activation,
        invoker: Invoker,
        payload: bytes,
        error: BaseException,
        session: Session | None,
        corr: int,
        begun: bool = False,
    ) -> bool:
        """Act on an error of decoding or handling a message. Returns True if the entity may go on.
        An undecodable payload never reached the handler: decoding it again tells the two apart. A
        message whose own checks depend on the time may fail only the second time, so the traceback
        decides, if it shows the handler. `begun`: a handler has put the message aside before."""
        raise_interrupt(error)
        if was_called(invoker.function, error):
            return self._failed(activation, error, (invoker, payload, session, corr))
        try:
            invoker.decode_message(payload) if invoker.decode_message else invoker.decoders[
                payload[0]
            ](payload)
        except BaseException as e:
            self.counts.lose("schema", activation.key, invoker, payload, session, corr)
            self.counts.undone += corr != OWN
            if session is not None:
                session.outbox.fail(
                    corr, unreadable(invoker.name, invoker.decoders, payload, e), begun=begun
                )
            return True
        return self._failed(activation, error, (invoker, payload, session, corr))

    def carry_on(
        self,
        activation: Activation,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        context: contextvars.Context,
    ) -> None:
        """Let the current task carry the message being handled to its end."""
        activation.busy = True
        self.running_handlers.carry_on(activation, coroutine, waits_for, self.carried, context)

    def carried(self, task: EagerTask) -> None:
        """Answer the message that a task has carried to its end, if it was for one, and go on."""
        if not self.running_handlers.ended(task):
            return
        activation: Activation = task.activation
        message: Current | None = task.message
        error = task.error
        if error is not None:
            if is_a(error, asyncio.CancelledError):  # a start is tried again
                text = "was cancelled"
                error = (
                    asyncio.CancelledError() if task.doing else EntityFailed("CancelledError", text)
                )
            if not self._failed(activation, error, None if message is None else message[:4]):
                return
        elif message is not None:
            invoker, payload, session, corr, chain = message
            if not invoker.returns_values and is_unfinished(task.value):
                unfinished = Message(invoker, payload, session, corr, 0, chain)
                if not self.run(activation, unfinished, finish(task.value)):
                    return
            elif self.reminding is not None and self.reminding.is_unsaved(activation):
                unstored = Message(invoker, payload, session, corr, 0, chain)
                work = self.reminding.store(activation.context_now(), task.value)
                if not self.run(activation, unstored, work):
                    return
            elif session is not None:
                answer(activation, invoker, task.value, session, corr)
        self.settle(activation)

    # ---- suspension

    def _hold(self, activation: Activation, action: Callable[[], None]) -> None:
        """Let an activation go on by this action once the gate opens."""
        activation.busy = True
        self._held.setdefault(activation, action)

    def holds(self, activation: Activation) -> bool:
        """True if an activation goes on once the gate opens."""
        return activation in self._held

    def hold_message(self, activation: Activation, message: Message) -> None:
        """Queue a message, whatever its entity does."""
        idle = not activation.busy
        self.queue(activation, message)
        if idle:
            self._hold(activation, partial(self._settle_unless_over, activation))

    def _resume_some(self) -> None:
        """Let some held activations go on, and the others in the next turns of the loop."""
        for _ in range(min(RESUMED_MAX, len(self._held))):
            if self.gate.close_if_due():
                return
            activation = next(iter(self._held))
            self._held.pop(activation)()
        if self._held:
            self.loop.call_soon(self._resume_some)

    def _start_held(self, activation: Activation, chain: Chain) -> None:
        if activation.state is LifeState.STARTING:
            self.start(activation, chain)

    # ---- start and restart

    def start(self, activation: Activation, chain: Chain = ()) -> None:
        """Start an entity. One without state and `on_start` is idle at once; any other is busy
        until it has started. `chain`: the entities that wait for it, besides those whose messages
        are in its mailbox."""
        if self.gate.closed:
            self._hold(activation, partial(self._start_held, activation, chain))
            return
        if self.plain:
            outer, self.activation = self.activation, None
            try:
                if self.eager.depth:  # it belongs to the message that starts it
                    self._supervisor.construct(activation)
                else:
                    self.eager.call(self._supervisor.construct, activation)
            except BaseException as e:
                raise_interrupt(e)
                if self._supervisor.gives_up(activation, e):
                    self.settle_soon(activation)
                    return
            else:
                if activation.stopping is None:
                    activation.state, activation.busy = RUNNING, False
                    if activation.mailbox:
                        self.settle_soon(activation)
                else:
                    self._stopped_in_start(activation)
                return
            finally:
                self.activation = outer
        self._begin(activation, chain)

    def _stopped_in_start(self, activation: Activation) -> None:
        """End an entity that stopped in its constructor. Its `on_stop` does not run."""
        activation.entity = None
        activation.step(LifeStep.REFUSES)
        self._finish(activation)

    def _begin(self, activation: Activation, chain: Chain = ()) -> None:
        """Start an entity, after a backoff if it has failed lately."""
        if self.gate.close_if_due():
            self._hold(activation, partial(self._begin, activation, chain))
            return
        activation.busy = True
        if activation.mailbox and not chain:
            chain = activation.mailbox[0].chain
        coroutine = self._supervisor.start(activation)
        try:
            ended = self.running_handlers.begin(
                activation, "on_start", coroutine, self.carried, chain
            )
        except BaseException as e:
            raise_interrupt(e)
            ended = self._failed(activation, e, None)
        if ended:
            self.settle_soon(activation)

    def disown(self, activation: Activation) -> None:
        """Refuse later acts of an entity's object, which is to be replaced."""
        self._supervisor.disown(activation)

    def abandoned(self, activation: Activation) -> bool:
        """True if the entity waits for its next start after failures, and no asker waits for it."""
        return self._supervisor.abandoned(activation)

    def give_up(self, activation: Activation) -> None:
        """End an abandoned entity: its start is not tried again."""
        activation.stopping = activation.stopping or StopReason.PASSIVATION
        self.running_handlers.cut_off(activation)
        self.settle(activation)

    # ---- failures

    def _failed(
        self, activation: Activation, error: BaseException, message: Handled | None
    ) -> bool:
        """Fail the asker of a handler that raised, or count its tell, and follow the directive.
        Returns True if the entity goes on or stops, False if it starts again. `message`: None if a
        start failed."""
        if is_a(error, StateReplaced):
            self._start_again(activation)
            return False
        session, corr = (None, 0) if message is None else message[2:]
        extras = activation.extras
        self.revert(activation)
        put_aside = session is not None and extras is not None and extras.take_stashed()
        if put_aside:
            session = None  # its message will be handled again, and answered then
        if is_a(error, Unhandled) and error.declined:
            self._lost("unhandled", activation, message)
            if session is not None:
                session.outbox.fail(corr, error)
            return True
        if is_a(error, Rejection) and not self._stops_by(activation, corr):
            if session is not None:
                session.outbox.fail(corr, error)
            elif not put_aside:
                self._lost("rejected", activation, message)
            return True
        if session is not None:
            session.outbox.fail(corr, failure_for_asker(self.kind.name, activation.key, error))
        elif corr <= Origin.UNREPORTED and not put_aside:
            self._lost("failed", activation, message)
        stale = self._is_stale(activation, error)
        directive = Directive.STOP if stale else self._supervisor.directive(error)
        if directive is Directive.RESUME and self._is_repeated(message):
            directive = Directive.RESTART
        in_start = activation.state is LifeState.STARTING  # cancelled
        again = in_start and directive is Directive.RESTART
        method = ON_START if message is None else message[0].name
        self._supervisor.failed(activation, method, "failed", error, again=again)
        if directive is Directive.RESUME:
            return True
        if self._supervisor.stops_itself(activation, error) or self._ends(activation, directive):
            if self.carrying is not None:
                self.carrying.spoil(activation)
            return True
        if corr == Origin.OWN:
            self._supervisor.failed_by_itself(activation)
        if not in_start:
            self.counts.restarted()
        self._start_again(activation)
        return False

    def revert(self, activation: Activation) -> None:
        """Forget the reminders and the deliveries that a handler has not saved: it has raised."""
        if self.reminding is not None:
            self.reminding.revert(activation)
        activation.shard.host.deliveries.revert(activation)

    def _is_repeated(self, message: Handled | None) -> bool:
        """True if a message that failed is handled again, so that what it has left in the state
        would be there twice."""
        delivery = message is not None and message[0].name.startswith(MARK)
        return delivery and self.kind.states is not None

    def note_failure(self, activation: Activation, method: str, error: BaseException) -> None:
        """Count a failure of a method, and keep it for operators."""
        self._supervisor.note_failure(activation, method, error)

    def note_unanswered(
        self, activation: Activation, invoker: Invoker, error: BaseException
    ) -> None:
        """Keep for operators that an answer could not be sent. The entity goes on."""
        now, failed = self.loop.time(), self.counts.failed
        failed.add(now, invoker.name, activation.key, error, "its answer cannot be sent: ")

    def _lost(self, reason: str, activation: Activation, message: Handled | None) -> None:
        """Count a message that its handler did not take."""
        if message is None:
            self.counts.drop(reason, via=Origin.OWN)
            return
        self.counts.lose(reason, activation.key, *message)
        self.counts.undone += message[3] != OWN

    def _start_again(self, activation: Activation) -> None:
        """Start an entity again, with its stored state, in the same activation."""
        self._supervisor.end_object(activation)
        activation.step(LifeStep.RESTARTS)
        self._begin(activation)

    def _is_stale(self, activation: Activation, error: BaseException) -> bool:
        """True if the store has refused the fence of this very activation. A handler may also get
        the refusal of another entity, or of a former activation, whose task it awaits."""
        if not is_a(error, StaleFence) or is_a(error, StaleActivation):
            return False
        names = "entity_type", "entity_id", "fence"  # which a subclass may lack
        refused = tuple(getattr(error, name, None) for name in names)
        return refused == (self.kind.name, activation.key, activation.shard.fence)

    @staticmethod
    def _stops_by(activation: Activation, corr: int) -> bool:
        """True if the message is the entity's stop message, or a later one of its own: an error of
        any class then stops it."""
        stop_request = activation.stop_request
        return corr == Origin.OWN and stop_request is not None and stop_request.handed

    def _ends(self, activation: Activation, directive: Directive) -> bool:
        """Decide whether a failed entity stops instead of starting again. In a shard that moves it
        starts again if messages wait for it; if the directive is to stop, its next activation gets
        them."""
        stop_request = activation.stop_request
        if stop_request is not None and stop_request.handed:
            activation.stopping = activation.stopping or stop_request.reason
            return True
        reason = activation.stopping or (None if stop_request is None else stop_request.reason)
        waits = reason in MOVES and bool(activation.mailbox)
        if directive is Directive.STOP:
            activation.stopping = StopReason.FAILURE if waits or reason is None else reason
            return True
        return activation.stopping is not None and not waits

    @property
    def at_work(self) -> int:
        """Messages of others on which handlers work that have begun to wait."""
        at_work = (eager.message for eager in self.running_handlers.tasks.values())
        return sum(m is not None and m[3] != OWN and m[0].name != OUTCOME for m in at_work)

    @property
    def waiting(self) -> int:
        """Messages of others that are in mailboxes and stashes, or that a handler works on. Costs a
        pass over the mailboxes' messages."""
        return self.mailbox_limits.waiting_of_others + self.counts.stashed + self.at_work

    def close(self) -> None:
        """Cancel every handler that waits: the process ends."""
        self.mailbox_limits.stop()
        self.running_handlers.close()
