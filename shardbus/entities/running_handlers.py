"""Handlers that wait: their eager tasks, and their asks.

Most handlers end in their first step and are never here. A handler that waits has an eager task of
its own until it ends, and so has a start or an `on_stop` that waits. During the first step
of a message the eager task does not know its message yet; the runner does.

Source: B.122, B.137; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from itertools import count
from operator import length_hint
from typing import Any, NamedTuple, Protocol

from shardbus.entities.activation import Activation, Current, Message
from shardbus.entities.entity_type import Invoker
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.reentrancy import CallChain
from shardbus.errors import ReentrancyError
from shardbus.tasks.eager import OWNER, EagerRunner, EagerTask
from shardbus.tasks.internals import current_task
from shardbus.tasks.waiters import eager_task_waiting_for
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

RunHeader = tuple[
    Invoker,
    Session | None,
    Chain | CallChain,
    Sequence[bytes],
    int | Sequence[int],
    Iterator[bytes],
]
"""A run of messages: the method, the asker, the entities that wait (a direct ask has the run of the
handler that asks), the payloads, the correlation
ids (or the one of all), and the iterator that takes the payloads: it shows which message is being
handled, so that nothing has to be noted for each."""

FirstChain = tuple[Activation, RunHeader, int, CallChain]
"""The call chain of a message that has asked in its first step: its entity, its run and its place
there."""

NONE_LEFT: Iterator[bytes] = iter(())
"""The iterator of a run whose last message is being handled."""


def place_of(header: RunHeader) -> int:
    """Return the place in its run of the message that is being handled."""
    return len(header[3]) - length_hint(header[5]) - 1


def current_of(header: RunHeader) -> Current:
    """Return the message of a run that is being handled."""
    invoker, session, chain, payloads, corrs, _ = header
    at = place_of(header)
    corr = corrs if isinstance(corrs, int) else corrs[at]
    if isinstance(chain, CallChain):
        chain = chain.chain
    return invoker, payloads[at], session, corr, chain


class CurrentRun(Protocol):
    """The entity that the runner calls at this very moment, and the run of its message."""

    activation: Activation | None
    run_header: RunHeader | None


class RunningHandler(NamedTuple):
    """A running handler, for logs; `mark` distinguishes its runs."""

    entity_type: str
    entity_id: str
    method: str
    mark: object

    def __str__(self) -> str:
        return f"{self.method} of {self.entity_type} {self.entity_id!r}"


class RunningHandlers:
    """The eager tasks of one entity type that wait. It is the owner of these tasks."""

    def __init__(
        self,
        entity_type: str,
        loop: asyncio.AbstractEventLoop,
        current: CurrentRun,
        gate: SuspensionGate,
    ) -> None:
        self.eager = EagerRunner(loop, self, gate)
        self._type, self._loop, self._current = entity_type, loop, current
        self.tasks: dict[int, EagerTask] = {}
        """By `id`; the longest waiting comes first."""
        self.first: FirstChain | None = None
        """The call chain of a message that has asked in its first step."""
        self._numbers = count(random.getrandbits(62))

    # ---- tasks

    def begin(
        self,
        activation: Activation,
        doing: str,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[[EagerTask], None],
        chain: Chain = (),
    ) -> bool:
        """Begin a start or an `on_stop`, for which the entities of `chain` wait. Returns True if it
        has ended. Otherwise an eager task goes on with it, as `carry_on` describes. Raises every
        exception of its first step."""
        runner = self.eager
        entered = runner.enter()
        try:
            eager, context = runner.task, runner.base.copy()
            eager.activation, eager.doing, eager.chain = activation, doing, chain
            try:
                waits_for = runner.begin(coroutine, context)
            except BaseException as e:
                if runner.task is eager:
                    eager.activation, eager.doing, eager.chain, eager.call_chain = (
                        None,
                        "",
                        (),
                        None,
                    )
                if issubclass(type(e), StopIteration):
                    return True
                raise
            self.carry_on(activation, coroutine, waits_for, done, context)
        finally:
            runner.leave(entered)
        return False

    def carry_on(
        self,
        activation: Activation,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        done: Callable[[EagerTask], None],
        context: Context,
        message: Current | None = None,
    ) -> None:
        """Let the current eager task go on where the first step stopped, in the context of that
        step. `done` is called at its end, and must first check whether the task has `ended` by
        itself. `message`: the message of the step, if the caller has it at hand."""
        eager, current = self.eager.task, self._current
        if eager.activation is None:
            eager.activation, header = activation, current.run_header
            if message is not None:
                eager.message = message
            elif header is not None and current.activation is activation:
                eager.message = current_of(header)
            if self.first is not None:
                eager.call_chain = self._first_chain(activation)
                self.first = None
        activation.task = eager
        self.tasks[id(eager)] = eager
        eager.on_end = done
        self.eager.take_over(coroutine, waits_for, context)

    def ended(self, eager: EagerTask) -> bool:
        """Forget a task that is done. Returns True if it was not cut off before."""
        if self.tasks.pop(id(eager), None) is None:
            return False
        eager.activation.task = None
        return True

    def cut_off(self, activation: Activation) -> None:
        """Cancel the task of an entity, and ignore its outcome."""
        eager, activation.task = activation.task, None
        if eager is not None:
            del self.tasks[id(eager)]
            eager.cancel()

    def close(self) -> None:
        """Cancel every task."""
        for eager in list(self.tasks.values()):
            self.cut_off(eager.activation)

    # ---- for logs

    def running(self, eager: EagerTask) -> RunningHandler | None:
        """Return the handler under an eager task."""
        activation: Activation | None = eager.activation
        if activation is not None:
            method = eager.doing if eager.message is None else _shown(eager.message[0])
            return RunningHandler(self._type, activation.key, method, eager)
        activation, header = self._current.activation, self._current.run_header
        if activation is None or header is None:
            return None
        mark = (activation, header, place_of(header))
        return RunningHandler(self._type, activation.key, _shown(header[0]), mark)

    def entity(self, eager: EagerTask) -> tuple[str, Activation] | None:
        """Return the type and the activation whose code an eager task runs."""
        activation: Activation | None = eager.activation
        if activation is None and self._current.run_header is not None:
            activation = self._current.activation
        return None if activation is None else (self._type, activation)

    def in_first_step(self, eager: EagerTask) -> Activation | None:
        """Return the entity whose message an eager task has begun, in its first step. Any other
        whose code runs under a task of this owner is busy."""
        return self._current.activation if eager.activation is None else None

    # ---- call chains

    def call_chain_now(self) -> CallChain | None:
        """Return the run of a handler that waits for the code that calls this, if there is one."""
        task: Any = current_task(self._loop)
        eager = task
        if task.__class__ is not EagerTask:
            eager = eager_task_waiting_for(task) if task is not None else None
        if eager is None:
            return None
        chain: CallChain | None = eager.runner.owner.call_chain(eager)
        return chain

    def call_chain(self, eager: EagerTask) -> CallChain | None:
        """Return the run of a handler under an eager task, which is about to ask; None for a
        handler that cannot wait."""
        if eager.activation is not None:
            if eager.call_chain is None:
                chain = eager.chain if eager.message is None else eager.message[4]
                eager.call_chain = self._new(eager.activation, chain)
            asking: CallChain = eager.call_chain
            return asking
        activation, header = self._current.activation, self._current.run_header
        if activation is None or header is None or header[0].never_waits:
            return None
        first = self._first_chain(activation)
        if first is None:
            first = self._new(activation, header[2])
            self.first = (activation, header, place_of(header), first)
        return first

    def _first_chain(self, activation: Activation) -> CallChain | None:
        """Return the call chain of the message being handled, if it has asked in its first step."""
        if self.first is None:
            return None
        asker, header, place, chain = self.first
        same = asker is activation and header is self._current.run_header
        return chain if same and place == place_of(header) else None

    def _new(self, activation: Activation, chain: Chain | CallChain) -> CallChain:
        return CallChain((self._type, activation.key), next(self._numbers), chain)

    def closed_by(self, activation: Activation, message: Message) -> ReentrancyError | None:
        """Return the error for a message that its own entity waits for."""
        if activation.task is None or activation.task.call_chain is None:
            return None
        cycle = activation.task.call_chain.closed_by(message.chain)
        return None if cycle is None else ReentrancyError(cycle)


def entity_now() -> tuple[str, Activation] | None:
    """Return the type and the activation of the entity whose code calls this, in its handler or in
    a task that the handler waits for; None elsewhere, and in other threads."""
    try:
        task: Any = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
    if task.__class__ is not EagerTask:
        task = eager_task_waiting_for(task) if task is not None and OWNER.get() else None
    if task is None or task.owner is None:
        return None
    entity: tuple[str, Activation] | None = task.owner.entity(task)
    return entity


def _shown(invoker: Invoker) -> str:
    """Return the method's name as the application wrote it."""
    return invoker.name if invoker.decode_message is None else "receive"
