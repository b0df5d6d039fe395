"""How an entity stops, and the measures if it does not.

The node asks an entity to stop (for a hand-off, a shutdown, idleness, a limit), or the entity stops
itself. Without a stop message it handles the messages that it must, `on_stop` runs, and it leaves
memory:

    hand-off, shutdown     after the messages in its mailbox, and its piped work
    passivation, stop()    after its current message; the mailbox starts a new activation

A type may declare a stop message. Then the node asks with that:

    the node has to stop it ───> the stop message goes to the end of the mailbox
                                  the entity handles it like any other, and goes on
    the entity calls stop() ────> as above, with the reason of the request

An entity may also send itself a stop message, by `passivate(stop_message)`. Then it *holds*: it
handles the messages that had arrived and the stop message, and later ones wait for the next
activation. It still handles messages of its own timers and outcomes of its piped work, until it
calls `stop()`; without any, it rests.

**Deadlines.** An entity that was asked to passivate or whose `on_stop` waits is cut off after the
time that a hand-off grants, which is 5 s less than `handoff_timeout`: its task is cancelled, the
cut-off is counted, and the next activation may start. Its code may still run if it ignores the
cancellation. A moving shard has a deadline of its own (`host`).

**Failures.** An entity that fails once it has its stop message stops. So does one that cannot start
while a stop message waits for it; at a hand-off, only after attempts for the messages before it
(`supervision`). No entity gets a second stop message.

Source: S0.23, S2.27, S2.40-S2.42.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardbus.entities.activation import (
    AFTER_CURRENT,
    Activation,
    LifeState,
    LifeStep,
    Message,
    StopRequest,
)
from shardbus.entities.entity_type import EntityType, StopReason, addressed
from shardbus.entities.failures import ON_STOP
from shardbus.entities.runner import EntityRunner
from shardbus.errors import EntityFailed
from shardbus.guarded_log import GuardedLog
from shardbus.tasks.eager import EagerTask
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.asks import CoarseClock
from shardbus.transport.drop_reports import Origin

log = GuardedLog("shardbus.entity")


class Stopper:
    """Stops the entities of one type. `patience` is in seconds; `gone(activation)` is called once
    an entity has stopped."""

    def __init__(
        self, kind: EntityType, patience: float, gone: Callable[[Activation], None]
    ) -> None:
        self._kind, self._gone = kind, gone
        self._patience = CoarseClock.ticks(patience)
        self._deadlines: dict[Activation, int] = {}
        """Entities that need time for their end, and the tick at which it is over."""
        self._message: Message | None = None
        if kind.stop_message is not None:
            self._message = Message(*kind.stop_message, None, Origin.OWN, 0)
        self._runner: EntityRunner

    def attach(self, runner: EntityRunner) -> None:
        """Set the runner of the entities; once, before anything stops."""
        self._runner = runner

    # ---- asking it to stop

    def end(self, activation: Activation, reason: StopReason) -> None:
        """Ask an entity to stop, for the node: by its stop message, if its type has one."""
        stop_request = activation.stop_request
        if activation.stopping is None and stop_request is not None:
            if reason not in AFTER_CURRENT and not stop_request.last:
                stop_request.reason = reason
        elif activation.stopping is None and self._message is not None:
            self._request(activation, StopRequest(self._message, reason))
        else:
            self.stop(activation, reason)

    def stop(self, activation: Activation, reason: StopReason) -> None:
        """Stop an entity: for a hand-off after its mailbox, otherwise after its current message."""
        if activation.state >= LifeState.STOPPING:
            return
        if activation.stopping is None or reason not in AFTER_CURRENT:
            activation.stopping = reason
        self._settle(activation)

    def leave(self, activation: Activation, reason: StopReason) -> None:
        """Stop an entity after its present work, at its own wish."""
        if activation.stopping is None:
            stop_request = activation.stop_request
            self.stop(activation, reason if stop_request is None else stop_request.reason)

    def passivate(self, activation: Activation, stop_message: object) -> None:
        """Give an entity, at its own wish, a stop message behind the messages that have arrived.

        Raises:
            ConfigError: no handler takes the message.
        """
        message = Message(*addressed(self._kind.invokers, stop_message), None, Origin.OWN, 0)
        stop_request = activation.stop_request
        if activation.stopping is None and (stop_request is None or not stop_request.last):
            reason = StopReason.PASSIVATION if stop_request is None else stop_request.reason
            self._request(activation, StopRequest(message, reason, last=True))

    def _request(self, activation: Activation, stop_request: StopRequest) -> None:
        activation.more().stop_request = stop_request
        if stop_request.reason in AFTER_CURRENT:
            self._set_deadline(activation)
        self._runner.mailbox_limits.mailbox_of(activation).append(stop_request.message)
        self._settle(activation)

    def _settle(self, activation: Activation) -> None:
        """Let an entity go on, if nothing else does: it is idle or rests."""
        waits = not activation.busy or activation.state is LifeState.RESTING
        if waits and self._runner.activation is not activation:
            self._runner.settle(activation)

    def receive_own(self, activation: Activation, message: Message) -> None:
        """Hand a message of its own timers to an entity. One that holds handles it, too."""
        stop_request = activation.stop_request
        if stop_request is None or not stop_request.holds:
            self._runner.receive(activation, message, counts=False)
            return
        self._runner.mailbox_limits.mailbox_of(activation).append(message)
        self._settle(activation)

    # ---- the end

    def finish(self, activation: Activation) -> None:
        """Run `on_stop` of an entity that handles no more messages, then let it leave memory."""
        entity, activation.entity = activation.entity, None
        self._runner.deferred.end(activation)
        if entity is None or not self._kind.stops:
            if entity is not None and self._runner.carrying is not None:
                self._runner.carrying.freeze(activation, entity)
            self._gone(activation)
            return
        activation.step(LifeStep.STOPS)
        running = self._runner.running_handlers

        def done(eager: EagerTask) -> None:
            if running.ended(eager):
                if eager.error is not None:
                    self._stop_failed(activation, eager.error)
                self._gone(activation)

        try:
            ended = running.begin(activation, "on_stop", self._on_stop(entity, activation), done)
        except BaseException as e:  # a cancellation, or a class outside Exception
            raise_interrupt(e)
            self._stop_failed(activation, e)
            ended = True
        if ended:
            self._gone(activation)
        else:
            self._set_deadline(activation)

    async def _on_stop(self, entity: Any, activation: Activation) -> None:
        await entity.on_stop(activation.stopping)
        reminding = self._runner.reminding
        if reminding is not None and reminding.is_unsaved(activation):
            await reminding.store(entity.context, None)
        if self._runner.carrying is not None:
            self._runner.carrying.freeze(activation, entity)

    def _stop_failed(self, activation: Activation, error: BaseException) -> None:
        """Count and log an `on_stop` that has raised; the entity's memory is not carried."""
        self._runner.note_failure(activation, ON_STOP, error)
        about = {"shard": activation.shard.shard, "fence": activation.shard.fence}
        log.error(
            "on_stop of %s %r failed",
            self._kind.name,
            activation.key,
            exc_info=error,
            extra=about,
        )

    def ended(self, activation: Activation) -> None:
        """Forget the deadline of an entity that has left memory."""
        self._deadlines.pop(activation, None)

    # ---- deadlines

    def _set_deadline(self, activation: Activation) -> None:
        self._deadlines.setdefault(activation, self._runner.tick + self._patience)

    def sweep(self, tick: int) -> None:
        """Cut off entities whose deadline has passed. Called about once a second."""
        for activation in [a for a, end in self._deadlines.items() if tick >= end]:
            self.cut_off(activation)

    def cut_off(self, activation: Activation) -> None:
        """End an entity that did not stop in time."""
        about = {"shard": activation.shard.shard, "fence": activation.shard.fence}
        log.error(
            "%s %r did not stop in time: cut off", self._kind.name, activation.key, extra=about
        )
        self._runner.counts.cut_off += 1
        if activation.stop_request is not None:
            activation.stopping = activation.stopping or activation.stop_request.reason
        self._fail_current(activation)
        self._runner.running_handlers.cut_off(activation)
        self._gone(activation)

    def _fail_current(self, activation: Activation) -> None:
        """Fail the asker of the message being handled, or count it as a failed tell, unless the
        message was put aside."""
        current = None if activation.task is None else activation.task.message
        if current is None or (activation.extras is not None and activation.extras.take_stashed()):
            return
        _, _, session, corr, _ = current
        if session is not None and session.lost is None:
            text = f"{self._kind.name} {activation.key!r} did not stop in time"
            session.outbox.fail(corr, EntityFailed("CancelledError", text))
        elif session is None and corr <= Origin.UNREPORTED:
            self._runner.counts.lose("failed", activation.key, *current[:4])
            self._runner.counts.undone += 1
