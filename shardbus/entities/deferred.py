"""Things that an entity puts aside: messages for later, and work that runs beside its messages.

    stash()                  the message being handled returns after unstash_all()
    pipe_to_self(work)       a task; `receive` gets its outcome as a message

The asker of a message that was put aside waits on: for the second handling of a stashed message,
or, with `answer=True`, for the handling of the outcome.

**Outcomes** are not encoded: they are the very objects, values or exceptions, and they are queued
however full the mailbox is. An entity that waits for one stashes the other messages.

**The stash** holds as many messages as the mailbox may. It outlives the activation: a restart keeps
it, and the next activation after a passivation begins with it. No later error of a message that was
put aside is definite, wherever it arises, because a handler has begun (`Message.begun`).

**Work** belongs to the activation that began it. When a failure or a stop ends that, its work is
cancelled, outcomes that still wait in the mailbox are removed, and their askers get EntityFailed. A
hand-off waits for work under way as it does for the mailbox, and idling does not end it.

**Not put aside** are messages whose end is stored once their handler has returned: reminders and
events of projections, which come again if it raises. A delivery, or an ask with a key, may be
stashed, since it comes back to its handler; work cannot answer it, because the effect would not be
stored with its number.

Source: S4.17-S4.23; docs/how-to/define-entities.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import NamedTuple, Protocol

from shardbus.deliveries.numbers import MARK
from shardbus.entities.activation import (
    NEVER,
    OUTCOME,
    Activation,
    Asker,
    Current,
    LifeState,
    Message,
)
from shardbus.entities.entity_type import EntityType, Invoker
from shardbus.entities.mailboxes import MailboxLimits
from shardbus.entities.supervision import EntityCounts
from shardbus.error_text import shown
from shardbus.errors import EntityFailed, LocalProtocolError, MailboxFull
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.transport.drop_reports import Origin
from shardbus.transport.session import Session

log = GuardedLog("shardbus.entity")

OF_NODE = "$"
"""The first character of the invokers' names of this package: no handler has such a name."""


class MessageRunner(Protocol):
    """The runner of the type, as deferred work calls it."""

    counts: EntityCounts
    mailbox_limits: MailboxLimits

    def handling(self, activation: Activation) -> Current | None: ...
    def receive(self, activation: Activation, message: Message) -> None: ...
    def settle(self, activation: Activation) -> None: ...
    def settle_later(self, activation: Activation) -> None: ...


class DeferredWork:
    """The messages and work that the entities of one type on one node have put aside."""

    def __init__(self, kind: EntityType, runner: MessageRunner, stash_max: int) -> None:
        self._name, self._runner, self._stash_max = kind.name, runner, stash_max
        self._stores = kind.durable_mailbox
        takes = (
            invoker for invoker in kind.invokers.values() if invoker.decode_message is not None
        )
        self._receive = next(takes, None)
        self._working: dict[Activation, None] = {}
        """Entities with work under way."""

    # ---- messages

    def stash(self, activation: Activation) -> None:
        """Put the current message aside."""
        message = self._current(activation, "stashed")
        name = message.invoker.name
        if name.startswith(OF_NODE) and name != OUTCOME:
            raise LocalProtocolError(
                "a reminder, or an event of a projection, cannot be stashed: raise, and it comes"
                " again"
            )
        if self._stores and message.session is None:
            raise LocalProtocolError(
                "a message of a durable mailbox cannot be stashed: raise, and it comes again"
            )
        activation.more().stashed = message.session is not None
        stash, counts = activation.more().stash, self._runner.counts
        # It is handed to a handler again, or dropped.
        counts.undone += not message.ends_with_activation
        if len(stash) < self._stash_max:
            stash.append(message)
            counts.stashed += not message.ends_with_activation
            return
        counts.lose("mailbox_full", activation.key, *message[:4])
        text = f"{self._name} {activation.key!r} has {counted(len(stash), 'message')} stashed"
        message.refuse(MailboxFull(text))

    def unstash_all(self, activation: Activation) -> None:
        """Queue the stashed messages, before all others."""
        if activation.extras is None or not activation.extras.stash:
            return
        stash = self.take_stash(activation)
        self._runner.mailbox_limits.mailbox_of(activation).extendleft(reversed(stash))
        if not activation.busy and self._runner.handling(activation) is None:
            self._runner.settle_later(activation)

    def take_stash(self, activation: Activation) -> list[Message]:
        """Return the stashed messages, which are stashed no more."""
        extras = activation.extras
        if extras is None:
            return []
        stash, extras.stash = extras.stash, []
        self._runner.counts.stashed -= sum(not message.ends_with_activation for message in stash)
        return stash

    def _current(self, activation: Activation, what: str) -> Message:
        """Return the message being handled, if it can be put aside."""
        message = self._runner.handling(activation)
        if message is None:
            raise LocalProtocolError(f"no message is being handled that could be {what}")
        if activation.more().stashed:
            raise LocalProtocolError(f"the message was put aside already: it cannot be {what}")
        invoker, payload, session, corr, chain = message
        return Message(invoker, payload, session, corr, NEVER, chain)

    # ---- work

    def begin(self, activation: Activation, work: Awaitable[object], *, answer: bool) -> None:
        """Run work beside the messages; see `Context.pipe_to_self`."""
        if self._receive is None:
            raise LocalProtocolError(f"{self._name} has no receive for the outcome of its work")
        asker: Asker = (None, Origin.OWN, ())
        if answer:
            message = self._current(activation, "answered later")
            if message.invoker.name.startswith(MARK):
                raise LocalProtocolError(
                    "a delivery, or an ask with a key, cannot be answered later: await the work in"
                    " its handler"
                )
            asker = (message.session, message.corr, message.chain)
        if asyncio.isfuture(work):
            task: asyncio.Future[object] = work
        elif inspect.isawaitable(work):
            task = asyncio.ensure_future(_contained(work))
        else:
            raise TypeError(f"pipe_to_self takes a coroutine or a future, not {shown(work)}")
        task.add_done_callback(lambda task: self._done(activation, task))
        if asyncio.iscoroutine(work):  # one that is cancelled before it begins was never awaited
            task.add_done_callback(lambda task: work.close())
        extras = activation.more()
        extras.work[task] = asker
        extras.stashed = extras.stashed or asker[0] is not None
        self._working[activation] = None

    def _done(self, activation: Activation, task: asyncio.Future[object]) -> None:
        outcome = _outcome_of(task)
        work = activation.more().work
        if task not in work:
            return  # the activation that began it is over
        session, corr, chain = work.pop(task)
        if not work:
            del self._working[activation]
        self._arrive(activation, Message(self._invoker(outcome), b"", session, corr, NEVER, chain))

    def _invoker(self, outcome: object) -> Invoker:
        """Return an invoker of `receive` for the very object."""
        assert self._receive is not None
        function, is_async = self._receive.function, self._receive.is_async
        return Invoker(OUTCOME, function, is_async, {}, lambda payload: outcome)

    def _arrive(self, activation: Activation, message: Message) -> None:
        if not activation.busy:
            self._runner.receive(activation, message)
            return
        self._runner.mailbox_limits.mailbox_of(activation).append(message)
        if activation.state is LifeState.RESTING:
            self._runner.settle(activation)

    # ---- the end

    def end(self, activation: Activation) -> None:
        """End an activation's timers and work. Its stash stays."""
        extras = activation.extras
        if extras is not None:
            extras.cancel_timers()
            work, extras.work = extras.work, {}
            self._working.pop(activation, None)
            for task, (session, corr, _) in work.items():
                _cancel(task)
                self._fail(activation, session, corr)
        if activation.mailbox:
            activation.mailbox = deque(self._without_outcomes(activation, activation.mailbox))
        if extras is not None:
            extras.stash = self._without_outcomes(activation, extras.stash)

    def close(self) -> None:
        """Cancel all work: the process ends."""
        for activation in list(self._working):
            extras = activation.more()
            work, extras.work = extras.work, {}
            for task in work:
                _cancel(task)
        self._working.clear()

    def _without_outcomes(
        self, activation: Activation, messages: Iterable[Message]
    ) -> list[Message]:
        kept = []
        for message in messages:
            if message.invoker.name == OUTCOME:
                self._fail(activation, message.session, message.corr)
            else:
                kept.append(message)
        return kept

    def _fail(self, activation: Activation, session: Session | None, corr: int) -> None:
        if session is not None and session.lost is None:
            text = f"{self._name} {activation.key!r} ended before its work was done"
            session.outbox.fail(corr, EntityFailed("CancelledError", text))


class EndedProcess(NamedTuple):
    """Work has raised an exception that would end the process: `sys.exit` does. Only the entity
    gets it."""

    error: BaseException


async def _contained(work: Awaitable[object]) -> object:
    """Await work. No task may raise an exception that ends its loop."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        return EndedProcess(error)


def _outcome_of(task: asyncio.Future[object]) -> object:
    """Return the outcome of work: its value, or the exception itself. The future may be of a class
    of the application's."""
    try:
        if task.cancelled():
            return EntityFailed("CancelledError", "was cancelled")
        error = task.exception()
        value = task.result() if error is None else error
    except BaseException as e:
        return e
    return value.error if type(value) is EndedProcess else value


def _cancel(task: asyncio.Future[object]) -> None:
    """Cancel work, whatever its future does."""
    try:
        task.cancel()
    except BaseException:
        log.exception("piped work was not cancelled")
