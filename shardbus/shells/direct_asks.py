"""The direct way of asks from this node to entities of one type on it.

`transport.direct_ask` has an ask at hand that its caller now awaits. Here it is decided whether the
entity handles it there and then (`take`), and if so, done. Whatever is in question takes the batch,
as every message does that comes from elsewhere:

    condition                       otherwise
    the loopback is clear           earlier messages arrive first
    the stack has room              it must end
    the node is confirmed           the message waits at the gate
    the type uses no leases         they are checked as a run arrives
    a handler takes the method      it is refused where runs arrive
    time is left                    it has expired
    the stack is known              a task that began inside a handler's step awaits it
    the entity is active            its shard moves, its entity starts, or it lives elsewhere
    the entity can take it          its first step is on the stack, or it is about to go on

An active entity is in memory, in a shard that admits every message. An idle one handles the message
at once, in a context and under a task of its own, as it would from a run. One whose handler waits
has it in its mailbox. An entity whose first step is on the stack below is neither: its messages
come by the batch, when that step has ended. To know these, the caller counts as busy while its ask
is handled here. So an entity still handles one message at a time, and a cycle of asks is found in
the same place as ever: where a message meets an entity that waits.

The message counts as sent, as accepted and as begun, and is sampled, like any other.

Source: docs/architecture.md; S2.47-S2.49; B.108, B.122.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardbus.entities.activation import Activation, Message
from shardbus.entities.entity_type import Invoker
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.runner import EntityRunner
from shardbus.entities.runs import RunHandler
from shardbus.guarded_log import GuardedLog
from shardbus.shells.load_sampling import LoadSampling
from shardbus.tasks.eager import EagerTask
from shardbus.tasks.internals import current_task
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.direct_ask import DEPTH_MAX, TURN_S, DirectAsk, LocalOutbox
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.session import Session

log = GuardedLog("shardbus.sharding")


class DirectAsks:
    """The direct way of one entity type."""

    __slots__ = (
        "_asks", "_clock", "_counts", "_find", "_gate", "_handle", "_inbox", "_invokers", "_leases",
        "_loop", "_marks", "_name", "_outbox", "_runner", "_sampling", "_sent", "_session",
        "_state",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        session: Session,
        outbox: LocalOutbox,
        runner: EntityRunner,
        runs: RunHandler,
        find: Callable[[str], Activation | None],
        invokers: Mapping[str, Invoker],
        sampling: LoadSampling,
        sent: SentMessages,
        *,
        leases: bool,
    ) -> None:
        self._name, self._session, self._outbox = name, session, outbox
        self._state, self._runner, self._handle = outbox.direct, runner, runs.handle_ask
        self._find, self._invokers, self._sampling = find, invokers, sampling
        self._sent, self._leases, self._marks = sent, leases, sampling.marks
        self._counts, self._loop = runner.counts, runner.loop
        self._gate: SuspensionGate = runner.gate
        self._clock = self._gate.clock
        self._asks, self._inbox = outbox.direct.asks, outbox.direct.inbox
        runner.eager.stack = self._state.stack
        self._state.ways[name] = self

    def take(self, ask: DirectAsk) -> None:
        """Handle the ask at hand, whose caller awaits it, or put it into the batch."""
        state, outbox, gate = self._state, self._outbox, self._gate
        now = self._clock()
        if not state.turn_ends:
            state.turn_ends = now + TURN_S
        elif now > state.turn_ends and state.turn_left > 0:
            state.turn_left = 0
        activation, invoker = self._find(ask.entity_id), self._invokers.get(ask.key[1])
        task: Any = current_task(self._loop)
        caller: Activation | None = None
        if task.__class__ is EagerTask:
            if task.activation is None:
                caller = task.runner.owner.in_first_step(task)
                if caller is activation:
                    activation = None
        elif state.stack.depth:
            activation = None
        if (
            activation is None
            or invoker is None
            or (activation.busy and activation.task is None)
            or ask.timeout_ms <= 0
            or now >= gate.valid_until
            or gate.closed
            or state.depth >= DEPTH_MAX
            or outbox.held is not None
            or outbox.lost is not None
            or self._leases
            or not self._inbox.is_clear
        ):
            outbox.put_at_hand()
            return
        if caller is not None:
            if caller.busy:
                caller = None
            else:
                caller.busy = True
        state.at_hand = None
        state.turn_left -= 1
        state.depth += 1
        try:
            self._hand_over(ask, activation, invoker)
        except BaseException as e:
            self._failed(ask, e)
        finally:
            state.depth -= 1
            if caller is not None and caller.task is None:
                caller.busy = False

    def _hand_over(self, ask: DirectAsk, activation: Activation, invoker: Invoker) -> None:
        """Count the ask, and give it to its entity."""
        counts, asks, sent, name = self._counts, self._asks, self._sent, self._name
        sent.counts[name] = sent.counts.get(name, 0) + 1
        asked = sent.asks = sent.asks + 1
        if asked >= sent.marks.mark:
            sent.sample_alone(name, ask, self._loop.time)
        accepted = counts.accepted = counts.accepted + 1
        if accepted >= self._marks.mark:
            _, timed = self._sampling.sample(accepted, (ask.entity_id,), invoker)
            invoker = timed or invoker
        corr = ask.corr = asks.corr = asks.corr + 1
        if not activation.busy:
            self._handle(activation, invoker, self._session, ask)
            return
        ask.wait()
        deadline = asks.entries[corr][2]
        activation.used = self._runner.tick
        message = Message(invoker, ask.payload, self._session, corr, deadline, ask.chain)
        self._runner.queue(activation, message)

    def _failed(self, ask: DirectAsk, error: BaseException) -> None:
        """Report an error that is of no handler. An interrupt is raised in a callback of the loop,
        and not in the await of an ask."""
        if not ask.done():
            ask.wait()
        try:
            raise_interrupt(error)
        except BaseException:
            self._loop.call_soon(_raise, error)
        else:
            log.error("failed on an ask of %s", self._name, exc_info=error)


def _raise(error: BaseException) -> None:
    raise error
