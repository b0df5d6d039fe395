"""The ends of entities: how one is made to stop, and what if it does not.

Somebody wants an entity to stop: the runtime (a hand-off, a shutdown, idleness, a limit), or the
entity itself. Without a stop message it handles what it has to, `on_stop` runs, and it is gone:

    hand-off, shutdown     after the messages in its mailbox, and work that it piped to itself
    passivation, stop()    after its current message; what waits starts a new incarnation

A type may have a stop message instead. Then the runtime says it with that:

    the runtime wants it to stop ──> the stop message goes to the end of the mailbox
                                     the entity handles it like any other, and goes on handling
    the entity calls stop() ───────> as above, for the reason for which it was asked

and an entity may send itself one, `passivate(stop_message)`. Then it *holds*: it handles what had
come until then and the stop message, and what comes later waits for the next incarnation. Only
messages of its own timers, and what comes of work that it piped to itself, are still handled, until
it calls `stop()`.

**Deadlines.** Whoever was asked, and whose `on_stop` waits, is cut off once a hand-off would cut it
off, which is 5 s before `handoff_timeout` ends: what waits for it is cancelled, it is counted, and
the next incarnation may start. Its code may still run, if it does not let itself be cancelled. A
shard on the move has a clock of its own (`hosting`).

**Failures.** Who fails once it has its stop message stops, and so does who cannot start while one
waits for it; at a hand-off not before it has been tried for what came before that (`starting`).
Nobody is asked twice.

Source: S0.23, S2.27, S2.40-S2.42; B.50; C.18.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardbus.entities.context import AFTER_CURRENT, OWN, Context, Message
from shardbus.entities.entity_type import EntityType, StopReason, addressed
from shardbus.errors import EntityFailed
from shardbus.transport.asks import CoarseClock

if TYPE_CHECKING:
    from asyncio import Task

    from shardbus.entities.runner import EntityRunner

log = logging.getLogger("shardbus.entity")


class StopRequest:
    """A stop message on its way to an entity, and what became of it."""

    __slots__ = ("last", "message", "reason", "rests", "told")

    def __init__(self, message: Message, reason: StopReason, *, last: bool = False) -> None:
        self.message, self.reason = message, reason
        self.last = last
        """What comes behind it is for the next incarnation."""
        self.told = False
        """The entity has it."""
        self.rests = False
        """The entity holds and does nothing; it is marked as busy, and nobody will settle it."""

    @property
    def holds(self) -> bool:
        """Messages wait for the next incarnation."""
        return self.told and self.last

    def rests_before(self, mailbox: deque[Message] | None) -> bool:
        """Whether nothing in this mailbox is for the incarnation that parts; then it rests. If it
        holds and something is, that comes to the front."""
        self.rests = False
        if self.holds:
            first = self.first_own(mailbox)
            self.rests = first is None
            if mailbox and first:
                message = mailbox[first]
                del mailbox[first]
                mailbox.appendleft(message)
        return self.rests

    def first_own(self, mailbox: deque[Message] | None) -> int | None:
        """The place of the first message that does not wait for the next incarnation."""
        return next((at for at, message in enumerate(mailbox or ()) if message.own), None)


class Stopper:
    """See the module. `gone(cell)` is called once an entity has stopped."""

    def __init__(self, kind: EntityType, patience: float, gone: Callable[[Context], None]) -> None:
        self._kind, self._gone = kind, gone
        self._patience = int(patience * 1000) // CoarseClock.TICK_MS
        self._late: dict[Context, int] = {}
        """Entities that need time for their end, and the tick at which it is over."""
        self._finishing: set[Context] = set()
        """Those whose `on_stop` waits."""
        self._message: Message | None = None
        if kind.stop_message is not None:
            self._message = Message(*kind.stop_message, None, OWN, 0)
        self._execution: EntityRunner

    def attach(self, execution: EntityRunner) -> None:
        """What runs the entities; once, before anything stops."""
        self._execution = execution

    # ---- asking it to stop

    def end(self, activation: Context, reason: StopReason) -> None:
        """The runtime wants it to stop: by its stop message, if its type has one."""
        stop_request = activation.stop_request
        if activation.stopping is None and stop_request is not None:
            if reason not in AFTER_CURRENT and not stop_request.last:
                stop_request.reason = reason
        elif activation.stopping is None and self._message is not None:
            self._ask(activation, StopRequest(self._message, reason))
        else:
            self.stop(activation, reason)

    def stop(self, activation: Context, reason: StopReason) -> None:
        """Stop it: for a hand-off after its mailbox, otherwise after its current message."""
        if activation in self._finishing:
            return
        if activation.stopping is None or reason not in AFTER_CURRENT:
            activation.stopping = reason
        self._look(activation)

    def leave(self, activation: Context, reason: StopReason) -> None:
        """The entity wants to stop, after what it is doing."""
        if activation.stopping is None:
            self.stop(
                activation,
                reason if activation.stop_request is None else activation.stop_request.reason,
            )

    def passivate(self, activation: Context, stop_message: object) -> None:
        """The entity wants to stop once it has handled what has come, and then this message.

        Raises:
            ConfigError: no handler takes the message.
        """
        message = Message(*addressed(self._kind.invokers, stop_message), None, OWN, 0)
        stop_request = activation.stop_request
        if activation.stopping is None and (stop_request is None or not stop_request.last):
            reason = StopReason.PASSIVATION if stop_request is None else stop_request.reason
            self._ask(activation, StopRequest(message, reason, last=True))

    def _ask(self, activation: Context, stop_request: StopRequest) -> None:
        activation.more().stop_request = stop_request
        if stop_request.reason in AFTER_CURRENT:
            self._expect(activation)
        self._execution.mailbox_limits.mailbox_of(activation).append(stop_request.message)
        self._look(activation)

    def _look(self, activation: Context) -> None:
        """Let it go on, unless somebody does so anyway."""
        resting = activation.stop_request is not None and activation.stop_request.rests
        if (resting or not activation.busy) and self._execution.activation is not activation:
            self._execution.settle(activation)

    def tell(self, activation: Context, message: Message) -> None:
        """A message of its own timers, which one that holds handles, too."""
        stop_request = activation.stop_request
        if stop_request is None or not stop_request.holds:
            self._execution.receive(activation, message, counts=False)
            return
        self._execution.mailbox_limits.mailbox_of(activation).append(message)
        self._look(activation)

    # ---- the end

    def finish(self, activation: Context) -> None:
        """It handles nothing more: run `on_stop`, then it is gone."""
        if activation.stop_request is not None:
            activation.stop_request.rests = False
        entity, activation.entity = activation.entity, None
        activation.end_incarnation()
        if entity is None or not self._kind.stops:
            self._gone(activation)
            return
        waiting = self._execution.waiting
        coroutine = self._on_stop(entity, activation)
        try:
            waits_for = waiting.step(activation, "on_stop", coroutine)
        except (StopIteration, CancelledError):
            self._gone(activation)
            return

        def done(task: Task[Any]) -> None:
            if waiting.ended(turn):
                self._gone(activation)

        self._finishing.add(activation)
        self._expect(activation)
        turn = waiting.carry_on(activation, coroutine, waits_for, done)

    async def _on_stop(self, entity: Any, activation: Context) -> None:
        try:
            await entity.on_stop(activation.stopping)
        except Exception:
            self._execution.counts.failures += 1
            log.exception("on_stop of %s %r failed", self._kind.name, activation.entity_id)

    def ended(self, activation: Context) -> None:
        """It is gone."""
        self._late.pop(activation, None)
        self._finishing.discard(activation)

    # ---- deadlines

    def _expect(self, activation: Context) -> None:
        self._late.setdefault(activation, self._execution.tick + self._patience)

    def sweep(self, tick: int) -> None:
        """Cut off who had time enough. Called about once a second."""
        for activation in [c for c, end in self._late.items() if tick >= end]:
            self.cut_off(activation)

    def cut_off(self, activation: Context) -> None:
        """It did not stop in time."""
        log.error("%s %r did not stop in time: cut off", self._kind.name, activation.entity_id)
        self._execution.counts.cut_off += 1
        if activation.stop_request is not None:
            activation.stopping = activation.stopping or activation.stop_request.reason
        self._tell(activation)
        self._execution.waiting.cut_off(activation)
        self._gone(activation)

    def _tell(self, activation: Context) -> None:
        """Whoever waits for what it was doing, unless that was put aside."""
        current = None if activation.turn is None else activation.turn.message
        if current is None or (activation.extras is not None and activation.extras.put_aside()):
            return
        _, _, session, corr, _ = current
        if session is not None and session.lost is None:
            text = f"{self._kind.name} {activation.entity_id!r} did not stop in time"
            session.fail(corr, EntityFailed("CancelledError", text))
