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

from shardbus.errors import EntityFailed
from shardbus.runtime.context import AFTER_CURRENT, OWN, Context, Message
from shardbus.runtime.entity_type import EntityType, StopReason, addressed
from shardbus.transport.asks import Clock

if TYPE_CHECKING:
    from asyncio import Task

    from shardbus.runtime.execution import Execution

log = logging.getLogger("shardbus.entity")


class Parting:
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


class Ending:
    """See the module. `gone(cell)` is called once an entity has stopped."""

    def __init__(self, kind: EntityType, patience: float, gone: Callable[[Context], None]) -> None:
        self._kind, self._gone = kind, gone
        self._patience = int(patience * 1000) // Clock.TICK_MS
        self._late: dict[Context, int] = {}
        """Entities that need time for their end, and the tick at which it is over."""
        self._finishing: set[Context] = set()
        """Those whose `on_stop` waits."""
        self._message: Message | None = None
        if kind.stop_message is not None:
            self._message = Message(*kind.stop_message, None, OWN, 0)
        self._execution: Execution

    def attach(self, execution: Execution) -> None:
        """What runs the entities; once, before anything stops."""
        self._execution = execution

    # ---- asking it to stop

    def end(self, cell: Context, reason: StopReason) -> None:
        """The runtime wants it to stop: by its stop message, if its type has one."""
        parting = cell.parting
        if cell.stopping is None and parting is not None:
            if reason not in AFTER_CURRENT and not parting.last:
                parting.reason = reason
        elif cell.stopping is None and self._message is not None:
            self._ask(cell, Parting(self._message, reason))
        else:
            self.stop(cell, reason)

    def stop(self, cell: Context, reason: StopReason) -> None:
        """Stop it: for a hand-off after its mailbox, otherwise after its current message."""
        if cell in self._finishing:
            return
        if cell.stopping is None or reason not in AFTER_CURRENT:
            cell.stopping = reason
        self._look(cell)

    def leave(self, cell: Context, reason: StopReason) -> None:
        """The entity wants to stop, after what it is doing."""
        if cell.stopping is None:
            self.stop(cell, reason if cell.parting is None else cell.parting.reason)

    def passivate(self, cell: Context, stop_message: object) -> None:
        """The entity wants to stop once it has handled what has come, and then this message.

        Raises:
            ConfigError: no handler takes the message.
        """
        message = Message(*addressed(self._kind.invokers, stop_message), None, OWN, 0)
        parting = cell.parting
        if cell.stopping is None and (parting is None or not parting.last):
            reason = StopReason.PASSIVATION if parting is None else parting.reason
            self._ask(cell, Parting(message, reason, last=True))

    def _ask(self, cell: Context, parting: Parting) -> None:
        cell.more().parting = parting
        if parting.reason in AFTER_CURRENT:
            self._expect(cell)
        self._execution.crowd.mailbox_of(cell).append(parting.message)
        self._look(cell)

    def _look(self, cell: Context) -> None:
        """Let it go on, unless somebody does so anyway."""
        resting = cell.parting is not None and cell.parting.rests
        if (resting or not cell.busy) and self._execution.cell is not cell:
            self._execution.settle(cell)

    def tell(self, cell: Context, message: Message) -> None:
        """A message of its own timers, which one that holds handles, too."""
        parting = cell.parting
        if parting is None or not parting.holds:
            self._execution.receive(cell, message, counts=False)
            return
        self._execution.crowd.mailbox_of(cell).append(message)
        self._look(cell)

    # ---- the end

    def finish(self, cell: Context) -> None:
        """It handles nothing more: run `on_stop`, then it is gone."""
        if cell.parting is not None:
            cell.parting.rests = False
        entity, cell.entity = cell.entity, None
        cell.end_incarnation()
        if entity is None or not self._kind.stops:
            self._gone(cell)
            return
        waiting = self._execution.waiting
        coroutine = self._on_stop(entity, cell)
        try:
            waits_for = waiting.step(cell, "on_stop", coroutine)
        except (StopIteration, CancelledError):
            self._gone(cell)
            return

        def done(task: Task[Any]) -> None:
            if waiting.ended(turn):
                self._gone(cell)

        self._finishing.add(cell)
        self._expect(cell)
        turn = waiting.carry_on(cell, coroutine, waits_for, done)

    async def _on_stop(self, entity: Any, cell: Context) -> None:
        try:
            await entity.on_stop(cell.stopping)
        except Exception:
            self._execution.counts.failures += 1
            log.exception("on_stop of %s %r failed", self._kind.name, cell.entity_id)

    def ended(self, cell: Context) -> None:
        """It is gone."""
        self._late.pop(cell, None)
        self._finishing.discard(cell)

    # ---- deadlines

    def _expect(self, cell: Context) -> None:
        self._late.setdefault(cell, self._execution.tick + self._patience)

    def sweep(self, tick: int) -> None:
        """Cut off who had time enough. Called about once a second."""
        for cell in [c for c, end in self._late.items() if tick >= end]:
            self.cut_off(cell)

    def cut_off(self, cell: Context) -> None:
        """It did not stop in time."""
        log.error("%s %r did not stop in time: cut off", self._kind.name, cell.entity_id)
        self._execution.counts.cut_off += 1
        if cell.parting is not None:
            cell.stopping = cell.stopping or cell.parting.reason
        self._tell(cell)
        self._execution.waiting.cut_off(cell)
        self._gone(cell)

    def _tell(self, cell: Context) -> None:
        """Whoever waits for what it was doing, unless that was put aside."""
        current = None if cell.turn is None else cell.turn.message
        if current is None or (cell.extras is not None and cell.extras.put_aside()):
            return
        _, _, session, corr, _ = current
        if session is not None and session.lost is None:
            text = f"{self._kind.name} {cell.entity_id!r} did not stop in time"
            session.fail(corr, EntityFailed("CancelledError", text))
