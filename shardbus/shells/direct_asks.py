"""The direct way of asks from this node to entities of one type on it.

`transport.direct_ask` has an ask at hand that its caller now awaits. Here it is decided whether the
entity handles it there and then (`goes_directly`), and if so, done. Whatever is in question takes
the batch, as every message does that comes from elsewhere:

    condition                       otherwise
    the loopback is clear           earlier messages arrive first
    the turn has room               the loop must go on, and the stack must end
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

from shardbus.entities.activation import NEVER, Activation, Message
from shardbus.entities.entity_type import Invoker
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.runner import EntityRunner
from shardbus.guarded_log import GuardedLog
from shardbus.shells.load_sampling import LoadSampling
from shardbus.tasks.eager import EagerTask
from shardbus.tasks.internals import current_task
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.direct_ask import DEPTH_MAX, TURN_S, DirectAsk, LocalOutbox
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.session import Session

log = GuardedLog("shardbus.sharding")


def goes_directly(
    clear: bool,
    room: bool,
    confirmed: bool,
    time_left: bool,
    stack_known: bool,
    leases: bool,
    busy: bool,
    waits: bool,
) -> bool:
    """Decide whether an ask that its caller awaits is handed to its active entity there and then.
    The module's docstring lists the conditions. `busy`, `waits`: the entity handles a message, and
    this handler waits."""
    if not (clear and room and confirmed and time_left and stack_known) or leases:
        return False
    return waits or not busy


class DirectAsks:
    """The direct way of one entity type."""

    __slots__ = (
        "_asks", "_counts", "_find", "_gate", "_gate_clock", "_inbox", "_invokers", "_leases",
        "_loop", "_marks", "_name", "_outbox", "_runner", "_sampling", "_sent", "_session",
        "_state", "eager",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        session: Session,
        outbox: LocalOutbox,
        runner: EntityRunner,
        find: Callable[[str], Activation | None],
        invokers: Mapping[str, Invoker],
        sampling: LoadSampling,
        sent: SentMessages,
        *,
        leases: bool,
    ) -> None:
        self._name, self._session, self._outbox = name, session, outbox
        self._asks, self._runner, self.eager = outbox.asks, runner, runner.eager
        self._find, self._invokers, self._sampling = find, invokers, sampling
        self._sent, self._leases, self._marks = sent, leases, sampling.marks
        self._counts, self._loop = runner.counts, runner.loop
        self._gate: SuspensionGate = runner.gate
        self._gate_clock, self._inbox = self._gate.clock, outbox.direct.inbox
        self._state = outbox.direct
        self._state.ways[name] = self

    def take(self, ask: DirectAsk) -> None:
        """Handle the ask at hand, whose caller awaits it, or put it into the batch."""
        state, gate, caller = self._state, self._gate, None
        task: Any = current_task(self._loop)
        stack_known = True
        if task.__class__ is EagerTask:
            caller = task.runner.owner.in_first_step(task)
            if caller is not None:
                if caller.busy:
                    caller = None
                else:
                    caller.busy = True
        else:
            for way in state.ways.values():
                if way.eager.depth:
                    stack_known = False
        try:
            now = self._gate_clock()
            if not state.turn_ends:
                state.turn_ends = now + TURN_S
            elif now > state.turn_ends:
                state.turn_left = 0
            activation, invoker = self._find(ask.entity_id), self._invokers.get(ask.key[1])
            if (
                activation is None
                or invoker is None
                or not goes_directly(
                    self._outbox.held is None
                    and self._outbox.lost is None
                    and self._inbox.is_clear,
                    state.turn_left > 0 and state.depth < DEPTH_MAX,
                    now < gate.valid_until and not gate.closed,
                    ask.timeout_ms > 0,
                    stack_known,
                    self._leases,
                    activation.busy,
                    activation.task is not None,
                )
            ):
                self._outbox.put_at_hand()
                return
            state.at_hand = None
            state.turn_left -= 1
            state.depth += 1
            try:
                self._hand_over(ask, activation, invoker)
            except BaseException as e:
                self._failed(e)
            finally:
                state.depth -= 1
        finally:
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
        corr = asks.corr = asks.corr + 1
        if activation.busy:
            deadline = asks.deadline(ask.timeout_ms)
            asks.entries[corr] = (ask, ask.decode, deadline)
            activation.used = self._runner.tick
            message = Message(invoker, ask.payload, self._session, corr, deadline, ask.chain)
            self._runner.queue(activation, message)
            return
        # Most handlers answer at once: a deadline costs as much as the answer.
        asks.entries[corr] = (ask, ask.decode, NEVER)
        self._runner.receive_directly(
            activation, invoker, ask.payload, self._session, corr, ask.chain
        )
        if corr in asks.entries:
            asks.entries[corr] = (ask, ask.decode, asks.deadline(ask.timeout_ms))

    def _failed(self, error: BaseException) -> None:
        """Report an error that is of no handler. An interrupt is raised in a callback of the loop,
        and not in the await of an ask."""
        try:
            raise_interrupt(error)
        except BaseException:
            self._loop.call_soon(_raise, error)
        else:
            log.error("failed on an ask of %s", self._name, exc_info=error)


def _raise(error: BaseException) -> None:
    raise error
