"""The direct way of messages from this node to entities of one type on it.

`transport.direct_message` has a message at hand that its sender now awaits. Here it is decided
whether the entity handles it there and then (`take`), and if so, done. Whatever is in question
takes the batch, as every message does that comes from elsewhere:

    condition                       otherwise
    the loopback is clear           earlier messages arrive first
    the stack has room              it must end
    the node is confirmed           the message waits at the gate
    the type uses no leases         they are checked as a run arrives
    a handler takes the method      it is refused where runs arrive
    time is left                    the ask has expired
    the stack is known              a task that began inside a handler's step awaits it
    the entity is active            its shard moves, its entity starts, or it lives elsewhere
    the entity can take it          its first step is on the stack, or it is about to go on
    the entity is idle, for a tell  bounds of mailboxes hold back senders of tells by the batch

An active entity is in memory, in a shard that admits every message. An idle one handles the message
at once, in a context and under a task of its own, as it would from a run. One whose handler waits
has an ask in its mailbox. An entity whose first step is on the stack below is neither: its messages
come by the batch, when that step has ended. To know these, the sender counts as busy while its
message is handled here. So an entity still handles one message at a time, and a cycle of asks is
found in the same place as ever: where a message meets an entity that waits.

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
from shardbus.transport.direct_message import (
    DEPTH_MAX,
    TURN_S,
    DirectAsk,
    DirectMessage,
    DirectTell,
    LocalOutbox,
)
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.session import Session

log = GuardedLog("shardbus.sharding")


class DirectMessages:
    """The direct way to the entities of one type."""

    __slots__ = (
        "_asks", "_clock", "_counts", "_find", "_gate", "_handle", "_inbox", "_invokers",
        "_leases", "_loop", "_marks", "_name", "_outbox", "_runner", "_sampling", "_sent",
        "_session", "_state",
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
        self._state, self._runner, self._handle = outbox.direct, runner, runs.handle_one
        self._find, self._invokers, self._sampling = find, invokers, sampling
        self._sent, self._leases, self._marks = sent, leases, sampling.marks
        self._counts, self._loop = runner.counts, runner.loop
        self._gate: SuspensionGate = runner.gate
        self._clock = self._gate.clock
        self._asks, self._inbox = outbox.direct.asks, outbox.direct.inbox
        runner.eager.stack = self._state.stack
        self._state.ways[name] = self

    def take(self, message: DirectMessage) -> None:
        """Handle the message at hand, whose sender awaits it, or put it into the batch."""
        state, outbox, gate = self._state, self._outbox, self._gate
        now = self._clock()
        if not state.turn_ends:
            state.turn_ends = now + TURN_S
        elif now > state.turn_ends and state.turn_left > 0:
            state.turn_left = 0
        tells = isinstance(message, DirectTell)
        activation, invoker = self._find(message.entity_id), self._invokers.get(message.key[1])
        task: Any = current_task(self._loop)
        sender: Activation | None = None
        if task.__class__ is EagerTask:
            if task.activation is None:
                sender = task.runner.owner.in_first_step(task)
                if sender is activation:
                    activation = None
        elif state.stack.depth:
            activation = None
        if (
            activation is None
            or invoker is None
            or (activation.busy and (tells or activation.task is None))
            or message.timeout_ms <= 0
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
        if sender is not None:
            if sender.busy:
                sender = None
            else:
                sender.busy = True
        state.at_hand = None
        state.depth += 1
        try:
            if isinstance(message, DirectTell):
                state.tells_left -= 1
                outbox.took_tell()
                self._hand_over_tell(message, activation, invoker)
            else:
                state.turn_left -= 1
                self._hand_over_ask(message, activation, invoker)
        except BaseException as e:
            self._failed(message, e)
        finally:
            state.depth -= 1
            if sender is not None and sender.task is None:
                sender.busy = False

    def _hand_over_ask(self, ask: DirectAsk, activation: Activation, invoker: Invoker) -> None:
        """Count the ask, and give it to its entity."""
        asks, sent = self._asks, self._sent
        count = sent.asks = sent.asks + 1
        if count >= sent.marks.mark:
            sent.sample_alone(self._name, ask, self._loop.time)
        invoker = self._counted(ask, invoker)
        corr = ask.corr = asks.corr = asks.corr + 1
        if not activation.busy:
            self._handle(activation, invoker, self._session, ask)
            return
        ask.wait()
        deadline = asks.entries[corr][2]
        activation.used = self._runner.tick
        message = Message(invoker, ask.payload, self._session, corr, deadline, ask.chain)
        self._runner.queue(activation, message)

    def _hand_over_tell(self, tell: DirectTell, activation: Activation, invoker: Invoker) -> None:
        """Count the tell, and let its idle entity handle it."""
        tell.corr = self._session.mark
        self._handle(activation, self._counted(tell, invoker), None, tell)

    def _counted(self, message: DirectMessage, invoker: Invoker) -> Invoker:
        """Count a message as sent and as accepted. Returns the invoker for it: of a sample, one
        that is timed."""
        sent, counts, name = self._sent.counts, self._counts, self._name
        sent[name] = sent.get(name, 0) + 1
        accepted = counts.accepted = counts.accepted + 1
        if accepted < self._marks.mark:
            return invoker
        _, timed = self._sampling.sample(accepted, (message.entity_id,), invoker)
        return timed or invoker

    def _failed(self, message: DirectMessage, error: BaseException) -> None:
        """Report an error that is of no handler. An interrupt is raised in a callback of the loop,
        and not in the await of a message."""
        if isinstance(message, DirectAsk) and not message.done():
            message.wait()
        try:
            raise_interrupt(error)
        except BaseException:
            self._loop.call_soon(_raise, error)
        else:
            log.error("failed on a message of %s", self._name, exc_info=error)


def _raise(error: BaseException) -> None:
    raise error
