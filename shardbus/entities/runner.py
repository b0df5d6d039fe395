"""One message at a time: running an entity's handlers, its start, its restarts and its end.

    receive ── idle ──> run ── done ──> idle
        └──── busy ──> mailbox      └─ waits ──> busy ── done ──> settle: mailbox, stop, or idle

`busy` is set while somebody else will call `settle`: a task that carries a handler on, a start, a
restart. A message that finds the entity idle runs where it arrived. `run` says whether the message
is done.

Supervision: a handler that raises fails its asker with EntityFailed and restarts the entity (a new
object, its state loaded anew, `on_start`), the first time at once, then with a doubling backoff;
messages wait. `resume` keeps the object, `stop` stops it. Of a start that fails, see `starting`.

A message that an entity asks of itself, directly or through others, is refused (`reentrancy`).

Source: S2.47-S2.49, S4.15, S4.19, S4.20, S4.23; C.18, C.19, C.30; B.108, B.122, B.136.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.config.settings import ShardingSettings
from shardbus.entities.answers import answer, told
from shardbus.entities.context import Context, Message
from shardbus.entities.delivery import Delivery
from shardbus.entities.entity_type import Directive, EntityType, Invoker, StopReason
from shardbus.entities.mailboxes import MESSAGE_BYTES, MailboxLimits
from shardbus.entities.running_handlers import RunningHandlers
from shardbus.entities.supervision import MOVES, StateLoader, Supervisor
from shardbus.errors import (
    EntityFailed,
    MailboxFull,
    StaleFence,
    Unhandled,
)
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import unreadable

log = logging.getLogger("shardbus.entity")

SETTLE_MAX = 256
"""Messages handled in one go before the loop's other work gets a turn."""


class EntityRunner(Delivery):
    """See the module."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        keeper: StateLoader,
        finish: Callable[[Context], None],
    ) -> None:
        super().__init__()
        self.kind, self.settings, self.loop = kind, settings, loop
        self._starter = Supervisor(kind, settings, keeper)
        self.counts = self._starter.counts
        self._finish = finish
        self.waiting = RunningHandlers(kind.name, loop, self)
        self._driver = self.waiting.driver
        self.mailbox_limits = MailboxLimits(settings, loop)
        self._mailbox_max = settings.mailbox

    def advance(self, tick: int) -> None:
        """Coarse time, in ticks of 50 ms, goes on."""
        self.tick = self._starter.tick = tick

    # ---- messages

    def receive(self, activation: Context, message: Message, *, counts: bool = True) -> None:
        """Handle one message now if the entity is idle, else queue it. `counts`: the entity is in
        use; a timer of its own does not keep it in memory."""
        if counts:
            activation.used = self.tick
        if activation.busy:
            self.queue(activation, message)
        elif self._run(activation, message):
            self._look_again(activation)

    def queue(self, activation: Context, message: Message) -> None:
        """Put it into the mailbox, if that has room. One that the entity itself waits for would
        wait there for good."""
        if message.chain and (error := self.waiting.closed_by(activation, message)) is not None:
            self.counts.drop("reentrant")
            if message.session is not None:
                message.session.fail(message.corr, error)
            return
        if activation.gone:
            self.counts.drop("stopped", via=message.corr)
            if message.session is not None:
                text = f"{self.kind.name} {activation.entity_id!r} stopped as it started"
                message.session.fail(message.corr, Unhandled(text))
            return
        mailbox, mailbox_limits = activation.mailbox, self.mailbox_limits
        if mailbox is None:
            mailbox = mailbox_limits.mailbox_of(activation)
        mailbox_limits.room -= len(message.payload) + MESSAGE_BYTES
        roomy = mailbox_limits.room > 0 and len(mailbox) < self._mailbox_max
        if roomy or mailbox_limits.admits(activation, message):
            mailbox.append(message)
            return
        self.counts.drop("mailbox_full", via=message.corr)
        if message.session is not None:
            text = f"{self.kind.name} {activation.entity_id!r} has {len(mailbox)} messages waiting"
            message.session.fail(message.corr, MailboxFull(text))

    def _look_again(self, activation: Context) -> None:
        if activation.stopping is not None or activation.mailbox:
            self.settle(activation)

    def settle(self, activation: Context) -> None:
        """The entity is done with something: go on with its mailbox, stop it, or let it be idle."""
        activation.busy = True
        for _ in range(SETTLE_MAX):
            mailbox, extras = activation.mailbox, activation.extras
            stop_request = None if extras is None else extras.stop_request
            if activation.stopping is not None and activation.ends_now:
                self._finish(activation)
                return
            if stop_request is not None and stop_request.rests_before(mailbox):
                return
            if not mailbox:
                activation.busy, activation.mailbox = False, None
                return
            message = mailbox.popleft()
            if stop_request is not None and message is stop_request.message:
                stop_request.told = True
            if message.session is not None and message.deadline <= self.tick:
                self.counts.drop("expired")
            elif not self._run(activation, message):
                return
        self.loop.call_soon(self.settle, activation)

    def settle_soon(self, activation: Context) -> None:
        """The same; but messages that wait are handled in a turn of their own, so that entities
        which stop after each message do not pile up on the stack. One whose start is given up ends
        in a turn of its own too: what comes in this one shall not start it again."""
        activation.busy = True
        if activation.mailbox or activation.refusal is not None:
            self.loop.call_soon(self.settle, activation)
        else:
            self.settle(activation)

    def _run(self, activation: Context, message: Message) -> bool:
        """Run one message; whether it is done. If not, `settle` will be called when it is."""
        invoker, payload, session, corr, _, chain = message
        outer, way = self._now(), (invoker, session, chain)
        self.activation, self.way, self.payload, self.corr = activation, way, payload, corr
        try:
            if invoker.one is not None:
                value = invoker.function(activation.entity, invoker.one(payload))
            else:
                value = invoker.function(activation.entity, *invoker.decoders[payload[0]](payload))
            if invoker.is_async:
                self._carry_on(activation, value, self._driver.step(value), session, corr)
                return False
        except Exception as e:
            if not (invoker.is_async and isinstance(e, StopIteration)):
                return self._raised(activation, invoker, payload, e, session, corr)
            value = e.value
        except asyncio.CancelledError as e:
            return self._raised(activation, invoker, payload, e, session, corr)
        finally:
            self.activation, self.way, self.payload, self.corr = outer
        if session is not None:
            answer(activation, value, session, corr)
        return True

    def _raised(
        self,
        activation: Context,
        invoker: Invoker,
        payload: bytes,
        error: BaseException,
        session: Session | None,
        corr: int,
    ) -> bool:
        """Reading or handling a message raised; whether the entity may go on. A payload that cannot
        be read never reached the handler: reading it once more tells the two apart."""
        try:
            invoker.one(payload) if invoker.one else invoker.decoders[payload[0]](payload)
        except Exception as e:
            self.counts.drop("schema", via=corr)
            if session is not None:
                session.fail(corr, unreadable(invoker.name, invoker.decoders, e))
            return True
        return self._failed(activation, error, session, corr)

    def _carry_on(
        self,
        activation: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        session: Session | None,
        corr: int,
    ) -> None:
        activation.busy = True

        def done(task: asyncio.Task[Any]) -> None:
            if not self.waiting.ended(turn):
                return
            error: BaseException | None
            if task.cancelled() and turn.doing:
                error = asyncio.CancelledError()  # of a start: it is tried again
            elif task.cancelled():
                error = EntityFailed("CancelledError", "was cancelled")
            else:
                error = task.exception()
            if error is not None:
                if not self._failed(activation, error, session, corr):
                    return
            elif session is not None:
                answer(activation, task.result(), session, corr)
            self.settle(activation)

        turn = self.waiting.carry_on(activation, coroutine, waits_for, done)

    # ---- start and restart

    def start(self, activation: Context, chain: Chain = ()) -> None:
        """Start an entity. A plain one is idle at once; another is busy until it has started.
        `chain`: the entities that wait for it, besides those whose messages are in its mailbox."""
        if self.kind.plain:
            outer, self.activation = self.activation, None
            try:
                self._starter.construct(activation)
                return
            except (Exception, asyncio.CancelledError) as e:
                if self._starter.gives_up(activation, e):
                    self.settle_soon(activation)
                    return
            finally:
                self.activation = outer
        self._begin(activation, chain)

    def _begin(self, activation: Context, chain: Chain = ()) -> None:
        """Start it, after a backoff if it has failed lately."""
        activation.busy = True
        if activation.mailbox and not chain:
            chain = activation.mailbox[0].chain
        coroutine = self._starter.start(activation)
        try:
            waits_for = self.waiting.step(activation, "on_start", coroutine, chain)
        except StopIteration:
            self.settle_soon(activation)
        except asyncio.CancelledError as e:
            if self._failed(activation, e, None, 0):
                self.settle_soon(activation)
        else:
            self._carry_on(activation, coroutine, waits_for, None, 0)

    def abandoned(self, activation: Context) -> bool:
        """It waits to start again after failures, and nobody waits for it."""
        return self._starter.abandoned(activation)

    def give_up(self, activation: Context) -> None:
        """An abandoned one is not tried again."""
        activation.stopping = activation.stopping or StopReason.PASSIVATION
        self.waiting.cut_off(activation)
        self.settle(activation)

    # ---- failures

    def _failed(
        self, activation: Context, error: BaseException, session: Session | None, corr: int
    ) -> bool:
        """A handler raised: tell the asker, do what the supervision says; whether that is done."""
        if session is not None and activation.extras is not None and activation.extras.put_aside():
            session = None  # its message will be handled again, and answered then
        if isinstance(error, Unhandled):
            self.counts.drop("unhandled", via=corr)
            if session is not None:
                session.fail(corr, error)
            return True
        if session is not None:
            session.fail(corr, told(activation, error))
        stale = isinstance(error, StaleFence)
        directive = Directive.STOP if stale else self._starter.directive(error)
        self._starter.failed(activation, "failed", error, again=directive is Directive.RESTART)
        if directive is Directive.RESUME:
            return True
        if self._ends(activation, directive):
            return True
        activation.end_incarnation()
        activation.entity = None
        self._begin(activation)
        return False

    def _ends(self, activation: Context, directive: Directive) -> bool:
        """Whether one that failed shall not start again as it is. In a shard that is to move it
        does, if messages wait for it; if it shall stop, its next incarnation gets them."""
        stop_request = activation.stop_request
        if stop_request is not None and stop_request.told:
            activation.stopping = activation.stopping or stop_request.reason
            return True
        reason = activation.stopping or (None if stop_request is None else stop_request.reason)
        waits = reason in MOVES and bool(activation.mailbox)
        if directive is Directive.STOP:
            activation.stopping = StopReason.FAILURE if waits or reason is None else reason
            return True
        return activation.stopping is not None and not waits

    def close(self) -> None:
        """The process ends: nothing that waits goes on."""
        self.mailbox_limits.stop()
        self.waiting.close()
