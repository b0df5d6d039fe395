"""What an entity has put aside: messages for later, and work that it does beside its messages.

    stash()                  the message being handled comes again after unstash_all()
    pipe_to_self(work)       a task; its outcome comes to `receive` as a message of its own

Whoever waits for a message that was put aside waits on: for the second handling of a stashed one,
or, with `answer=True`, for that of the outcome.

**Outcomes** are sent nowhere: they are the very objects, values or exceptions, and they come
however full the mailbox is. The entity that waits for one stashes the rest.

**The stash** holds as many messages as the mailbox may. It outlives the incarnation: a restart
keeps it, and the next incarnation after a passivation begins with it.

**Work** belongs to the incarnation that began it. When that is over, by a failure or a stop, its
work is cancelled, outcomes that still wait in the mailbox are taken out, and who waited for one is
told. A hand-off waits for work under way as it does for the mailbox, and idling does not end it.

Source: S4.17-S4.23; docs/how-to/define-entities.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from shardbus.entities.context import OUTCOME, Context, Message
from shardbus.entities.entity_type import EntityType, Invoker
from shardbus.errors import EntityFailed, LocalProtocolError, MailboxFull
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

if TYPE_CHECKING:
    from shardbus.entities.runner import EntityRunner

NEVER = 2**62
Asker = tuple[Session | None, int, Chain]
"""Who waits for an answer, if somebody does, and the entities that wait for it."""


class DeferredWork:
    """What all entities of one type on one node have put aside."""

    def __init__(self, kind: EntityType, execution: EntityRunner, stash_max: int) -> None:
        self._name, self._execution, self._stash_max = kind.name, execution, stash_max
        takes = (invoker for invoker in kind.invokers.values() if invoker.one is not None)
        self._receive = next(takes, None)
        self._work: dict[Context, dict[asyncio.Future[Any], Asker]] = {}

    def works(self, activation: Context) -> bool:
        """Whether work of this entity is under way."""
        return activation in self._work

    # ---- messages

    def stash(self, activation: Context) -> None:
        """Put the current message aside."""
        message = self._taken(activation, "stashed")
        stash = activation.more().stash
        if len(stash) < self._stash_max:
            stash.append(message)
            return
        self._execution.counts.drop("mailbox_full", via=message.corr)
        if message.session is not None:
            text = f"{self._name} {activation.entity_id!r} has {len(stash)} messages stashed"
            message.session.fail(message.corr, MailboxFull(text))

    def unstash_all(self, activation: Context) -> None:
        """Queue what was put aside, before everything else."""
        if activation.extras is None or not activation.extras.stash:
            return
        stash, activation.extras.stash = activation.extras.stash, []
        self._execution.mailbox_limits.mailbox_of(activation).extendleft(reversed(stash))
        if not activation.busy and activation.handling is None:
            self._execution.loop.call_soon(self._execution.settle, activation)

    def _taken(self, activation: Context, what: str) -> Message:
        """The message being handled; it gets no answer now."""
        message, extras = activation.handling, activation.more()
        if message is None:
            raise LocalProtocolError(f"no message is being handled that could be {what}")
        if extras.stashed:
            raise LocalProtocolError(f"the message was put aside already: it cannot be {what}")
        invoker, payload, session, corr, chain = message
        extras.stashed = session is not None
        return Message(invoker, payload, session, corr, NEVER, chain)

    # ---- work

    def begin(self, activation: Context, work: Awaitable[object], *, answer: bool) -> None:
        """See `Context.pipe_to_self`."""
        if self._receive is None:
            raise LocalProtocolError(f"{self._name} has no receive for what comes of its work")
        asker: Asker = (None, 0, ())
        if answer:
            message = self._taken(activation, "answered later")
            asker = (message.session, message.corr, message.chain)
        task = asyncio.ensure_future(work)
        self._work.setdefault(activation, {})[task] = asker
        task.add_done_callback(lambda task: self._done(activation, task))

    def _done(self, activation: Context, task: asyncio.Future[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        work = self._work.get(activation, {})
        if task not in work:
            return  # the incarnation is over
        session, corr, chain = work.pop(task)
        if not work:
            del self._work[activation]
        outcome: object
        if task.cancelled():
            outcome = EntityFailed("CancelledError", "was cancelled")
        else:
            outcome = task.result() if error is None else error
        self._arrive(activation, Message(self._invoker(outcome), b"", session, corr, NEVER, chain))

    def _invoker(self, outcome: object) -> Invoker:
        """`receive`, of the very object."""
        assert self._receive is not None
        function, is_async = self._receive.function, self._receive.is_async
        return Invoker(OUTCOME, function, is_async, {}, lambda payload: outcome)

    def _arrive(self, activation: Context, message: Message) -> None:
        if not activation.busy:
            self._execution.receive(activation, message)
            return
        self._execution.mailbox_limits.mailbox_of(activation).append(message)
        if activation.stop_request is not None and activation.stop_request.rests:
            self._execution.settle(activation)

    # ---- the end

    def end(self, activation: Context) -> None:
        """The incarnation is over."""
        for task, (session, corr, _) in self._work.pop(activation, {}).items():
            task.cancel()
            self._tell(activation, session, corr)
        if activation.mailbox:
            activation.mailbox = deque(self._kept(activation, activation.mailbox))
        if activation.extras is not None:
            activation.extras.stash = self._kept(activation, activation.extras.stash)

    def close(self) -> None:
        """The process ends."""
        under_way, self._work = self._work, {}
        for work in under_way.values():
            for task in work:
                task.cancel()

    def _kept(self, activation: Context, messages: Iterable[Message]) -> list[Message]:
        """Without the outcomes of work."""
        kept = []
        for message in messages:
            if message.invoker.name == OUTCOME:
                self._tell(activation, message.session, message.corr)
            else:
                kept.append(message)
        return kept

    def _tell(self, activation: Context, session: Session | None, corr: int) -> None:
        if session is not None and session.lost is None:
            text = f"{self._name} {activation.entity_id!r} ended before its work was done"
            session.fail(corr, EntityFailed("CancelledError", text))
