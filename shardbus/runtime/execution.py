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

from shardbus.errors import (
    EntityFailed,
    MailboxFull,
    StaleFence,
    Unhandled,
)
from shardbus.runtime.answers import answer, told
from shardbus.runtime.context import Context, Message
from shardbus.runtime.crowd import MESSAGE_BYTES, Crowd
from shardbus.runtime.delivery import Delivery
from shardbus.runtime.entity_type import Directive, EntityType, Invoker, StopReason
from shardbus.runtime.starting import MOVES, Keeper, Starter
from shardbus.runtime.waiting import Waiting
from shardbus.settings import ShardingSettings
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import unreadable

log = logging.getLogger("shardbus.entity")

SETTLE_MAX = 256
"""Messages handled in one go before the loop's other work gets a turn."""


class Execution(Delivery):
    """See the module."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        keeper: Keeper,
        finish: Callable[[Context], None],
    ) -> None:
        super().__init__()
        self.kind, self.settings, self.loop = kind, settings, loop
        self._starter = Starter(kind, settings, keeper)
        self.counts = self._starter.counts
        self._finish = finish
        self.waiting = Waiting(kind.name, loop, self)
        self._driver = self.waiting.driver
        self.crowd = Crowd(settings, loop)
        self._mailbox_max = settings.mailbox

    def advance(self, tick: int) -> None:
        """Coarse time, in ticks of 50 ms, goes on."""
        self.tick = self._starter.tick = tick

    # ---- messages

    def receive(self, cell: Context, message: Message, *, counts: bool = True) -> None:
        """Handle one message now if the entity is idle, else queue it. `counts`: the entity is in
        use; a timer of its own does not keep it in memory."""
        if counts:
            cell.used = self.tick
        if cell.busy:
            self.queue(cell, message)
        elif self._run(cell, message):
            self._look_again(cell)

    def queue(self, cell: Context, message: Message) -> None:
        """Put it into the mailbox, if that has room. One that the entity itself waits for would
        wait there for good."""
        if message.chain and (error := self.waiting.closed_by(cell, message)) is not None:
            self.counts.drop("reentrant")
            if message.session is not None:
                message.session.fail(message.corr, error)
            return
        if cell.gone:
            self.counts.drop("stopped", via=message.corr)
            if message.session is not None:
                text = f"{self.kind.name} {cell.entity_id!r} stopped as it started"
                message.session.fail(message.corr, Unhandled(text))
            return
        mailbox, crowd = cell.mailbox, self.crowd
        if mailbox is None:
            mailbox = crowd.mailbox_of(cell)
        crowd.room -= len(message.payload) + MESSAGE_BYTES
        roomy = crowd.room > 0 and len(mailbox) < self._mailbox_max
        if roomy or crowd.admits(cell, message):
            mailbox.append(message)
            return
        self.counts.drop("mailbox_full", via=message.corr)
        if message.session is not None:
            text = f"{self.kind.name} {cell.entity_id!r} has {len(mailbox)} messages waiting"
            message.session.fail(message.corr, MailboxFull(text))

    def _look_again(self, cell: Context) -> None:
        if cell.stopping is not None or cell.mailbox:
            self.settle(cell)

    def settle(self, cell: Context) -> None:
        """The entity is done with something: go on with its mailbox, stop it, or let it be idle."""
        cell.busy = True
        for _ in range(SETTLE_MAX):
            mailbox, extras = cell.mailbox, cell.extras
            parting = None if extras is None else extras.parting
            if cell.stopping is not None and cell.ends_now:
                self._finish(cell)
                return
            if parting is not None and parting.rests_before(mailbox):
                return
            if not mailbox:
                cell.busy, cell.mailbox = False, None
                return
            message = mailbox.popleft()
            if parting is not None and message is parting.message:
                parting.told = True
            if message.session is not None and message.deadline <= self.tick:
                self.counts.drop("expired")
            elif not self._run(cell, message):
                return
        self.loop.call_soon(self.settle, cell)

    def settle_soon(self, cell: Context) -> None:
        """The same; but messages that wait are handled in a turn of their own, so that entities
        which stop after each message do not pile up on the stack. One whose start is given up ends
        in a turn of its own too: what comes in this one shall not start it again."""
        cell.busy = True
        if cell.mailbox or cell.refusal is not None:
            self.loop.call_soon(self.settle, cell)
        else:
            self.settle(cell)

    def _run(self, cell: Context, message: Message) -> bool:
        """Run one message; whether it is done. If not, `settle` will be called when it is."""
        invoker, payload, session, corr, _, chain = message
        outer, way = self._now(), (invoker, session, chain)
        self.cell, self.way, self.payload, self.corr = cell, way, payload, corr
        try:
            if invoker.one is not None:
                value = invoker.function(cell.entity, invoker.one(payload))
            else:
                value = invoker.function(cell.entity, *invoker.decoders[payload[0]](payload))
            if invoker.is_async:
                self._carry_on(cell, value, self._driver.step(value), session, corr)
                return False
        except Exception as e:
            if not (invoker.is_async and isinstance(e, StopIteration)):
                return self._raised(cell, invoker, payload, e, session, corr)
            value = e.value
        except asyncio.CancelledError as e:
            return self._raised(cell, invoker, payload, e, session, corr)
        finally:
            self.cell, self.way, self.payload, self.corr = outer
        if session is not None:
            answer(cell, value, session, corr)
        return True

    def _raised(
        self,
        cell: Context,
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
        return self._failed(cell, error, session, corr)

    def _carry_on(
        self,
        cell: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        session: Session | None,
        corr: int,
    ) -> None:
        cell.busy = True

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
                if not self._failed(cell, error, session, corr):
                    return
            elif session is not None:
                answer(cell, task.result(), session, corr)
            self.settle(cell)

        turn = self.waiting.carry_on(cell, coroutine, waits_for, done)

    # ---- start and restart

    def start(self, cell: Context, chain: Chain = ()) -> None:
        """Start an entity. A plain one is idle at once; another is busy until it has started.
        `chain`: the entities that wait for it, besides those whose messages are in its mailbox."""
        if self.kind.plain:
            outer, self.cell = self.cell, None
            try:
                self._starter.construct(cell)
                return
            except (Exception, asyncio.CancelledError) as e:
                if self._starter.gives_up(cell, e):
                    self.settle_soon(cell)
                    return
            finally:
                self.cell = outer
        self._begin(cell, chain)

    def _begin(self, cell: Context, chain: Chain = ()) -> None:
        """Start it, after a backoff if it has failed lately."""
        cell.busy = True
        if cell.mailbox and not chain:
            chain = cell.mailbox[0].chain
        coroutine = self._starter.start(cell)
        try:
            waits_for = self.waiting.step(cell, "on_start", coroutine, chain)
        except StopIteration:
            self.settle_soon(cell)
        except asyncio.CancelledError as e:
            if self._failed(cell, e, None, 0):
                self.settle_soon(cell)
        else:
            self._carry_on(cell, coroutine, waits_for, None, 0)

    def abandoned(self, cell: Context) -> bool:
        """It waits to start again after failures, and nobody waits for it."""
        return self._starter.abandoned(cell)

    def give_up(self, cell: Context) -> None:
        """An abandoned one is not tried again."""
        cell.stopping = cell.stopping or StopReason.PASSIVATION
        self.waiting.cut_off(cell)
        self.settle(cell)

    # ---- failures

    def _failed(
        self, cell: Context, error: BaseException, session: Session | None, corr: int
    ) -> bool:
        """A handler raised: tell the asker, do what the supervision says; whether that is done."""
        if session is not None and cell.extras is not None and cell.extras.put_aside():
            session = None  # its message will be handled again, and answered then
        if isinstance(error, Unhandled):
            self.counts.drop("unhandled", via=corr)
            if session is not None:
                session.fail(corr, error)
            return True
        if session is not None:
            session.fail(corr, told(cell, error))
        stale = isinstance(error, StaleFence)
        directive = Directive.STOP if stale else self._starter.directive(error)
        self._starter.failed(cell, "failed", error, again=directive is Directive.RESTART)
        if directive is Directive.RESUME:
            return True
        if self._ends(cell, directive):
            return True
        cell.end_incarnation()
        cell.entity = None
        self._begin(cell)
        return False

    def _ends(self, cell: Context, directive: Directive) -> bool:
        """Whether one that failed shall not start again as it is. In a shard that is to move it
        does, if messages wait for it; if it shall stop, its next incarnation gets them."""
        parting = cell.parting
        if parting is not None and parting.told:
            cell.stopping = cell.stopping or parting.reason
            return True
        reason = cell.stopping or (None if parting is None else parting.reason)
        waits = reason in MOVES and bool(cell.mailbox)
        if directive is Directive.STOP:
            cell.stopping = StopReason.FAILURE if waits or reason is None else reason
            return True
        return cell.stopping is not None and not waits

    def close(self) -> None:
        """The process ends: nothing that waits goes on."""
        self.crowd.stop()
        self.waiting.close()
