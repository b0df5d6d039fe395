"""Handlers that wait: their turns, and what they have asked.

Most handlers are done in their first step and never come here. One that waits has a turn with a
task until it is done, and so has a start or an end that waits. In the first step of a message the
turn does not say yet whose it is; the execution does.

Source: B.122, B.137; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, NamedTuple, Protocol

from shardbus.entities.context import Context, Message
from shardbus.entities.eager import EagerRunner, EagerTask
from shardbus.entities.entity_type import Invoker
from shardbus.entities.reentrancy import CallChain, turn_that_waits
from shardbus.errors import ReentrancyError
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

Way = tuple[Invoker, Session | None, Chain]
"""What the messages of a run share: the method, who asked, and the entities that wait."""


class CurrentMessage(Protocol):
    """What is being handled at this very moment."""

    activation: Context | None
    way: Way | None
    payload: bytes
    corr: int


class RunningHandler(NamedTuple):
    """A handler at work, for people; `mark` tells this run of it from others."""

    entity_type: str
    entity_id: str
    method: str
    mark: object

    def __str__(self) -> str:
        return f"{self.method} of {self.entity_type} {self.entity_id!r}"


class RunningHandlers:
    """The turns of one entity type. It owns them: `asking` is asked for what they have asked."""

    def __init__(
        self, entity_type: str, loop: asyncio.AbstractEventLoop, now: CurrentMessage
    ) -> None:
        self.driver = EagerRunner(loop, self)
        self._type, self._loop, self._now = entity_type, loop, now
        self.turns: dict[int, EagerTask] = {}
        """By the `id` of its task; who waits longest comes first."""
        self._first: tuple[Context, Way, int, CallChain] | None = None
        """What the message being handled has asked in its first step."""
        self._numbers = count(random.getrandbits(62))

    # ---- turns

    def step(
        self,
        activation: Context,
        doing: str,
        coroutine: Coroutine[Any, Any, Any],
        chain: Chain = (),
    ) -> Any:
        """The first step of what is no message: a start or an end, for which `chain` waits. Returns
        what it waits for, or raises StopIteration."""
        turn = self.driver.turn
        turn.activation, turn.doing, turn.chain = activation, doing, chain
        try:
            return self.driver.step(coroutine)
        except BaseException:
            turn.activation, turn.doing, turn.chain, turn.asking = None, "", (), None
            raise

    def carry_on(
        self,
        activation: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        done: Callable[[asyncio.Task[Any]], None],
    ) -> EagerTask:
        """Let a task go on where the first step stopped. `done` is called in the end, and first of
        all asks whether the turn has `ended` by itself."""
        turn = self.driver.turn
        if turn.activation is None:
            turn.activation, turn.message = activation, activation.handling
            if self._first is not None:
                turn.asking = self._asked_first(activation)
                self._first = None
        task = self.driver.take_over(coroutine, waits_for)
        activation.turn = self.turns[id(task)] = turn
        task.add_done_callback(done)
        return turn

    def ended(self, turn: EagerTask) -> bool:
        """The turn's task is done; whether that is news: it was not cut off before."""
        if self.turns.pop(id(turn.task), None) is None:
            return False
        turn.activation.turn = None
        return True

    def cut_off(self, activation: Context) -> None:
        """It shall not go on."""
        turn, activation.turn = activation.turn, None
        if turn is not None:
            del self.turns[id(turn.task)]
            turn.cancel()

    def close(self) -> None:
        """Nothing shall go on."""
        for turn in list(self.turns.values()):
            self.cut_off(turn.activation)

    # ---- for people

    def running(self, turn: EagerTask) -> RunningHandler | None:
        """The handler under this turn."""
        activation: Context | None = turn.activation
        if activation is not None:
            method = turn.doing if turn.message is None else _named(turn.message[0])
            return RunningHandler(self._type, activation.entity_id, method, turn)
        activation, way = self._now.activation, self._now.way
        if activation is None or way is None:
            return None
        mark = (activation, way, self._now.payload, self._now.corr)
        return RunningHandler(self._type, activation.entity_id, _named(way[0]), mark)

    # ---- what was asked

    def asking_now(self) -> CallChain | None:
        """The run of a handler that waits for the code that calls this, if there is one."""
        task: Any = asyncio.current_task(self._loop)
        turn = task
        if task.__class__ is not EagerTask:
            turn = turn_that_waits(task, self.turns) if task is not None else None
        asking: CallChain | None = turn.owner.asking(turn) if turn is not None else None
        return asking

    def asking(self, turn: EagerTask) -> CallChain | None:
        """The run of a handler under this turn, for what it is about to ask; None for a handler
        that cannot wait."""
        if turn.activation is not None:
            if turn.asking is None:
                chain = turn.chain if turn.message is None else turn.message[4]
                turn.asking = self._new(turn.activation, chain)
            asking: CallChain = turn.asking
            return asking
        activation, way = self._now.activation, self._now.way
        if activation is None or way is None or not way[0].is_async:
            return None
        first = self._asked_first(activation)
        if first is None:
            first = self._new(activation, way[2])
            self._first = (activation, way, self._now.corr, first)
        return first

    def _asked_first(self, activation: Context) -> CallChain | None:
        """What was asked in the first step of the message being handled, not of one before it."""
        if self._first is None:
            return None
        asker, way, corr, asking = self._first
        same = asker is activation and way is self._now.way and corr == self._now.corr
        return asking if same else None

    def _new(self, activation: Context, chain: Chain) -> CallChain:
        return CallChain((self._type, activation.entity_id), next(self._numbers), chain)

    def closed_by(self, activation: Context, message: Message) -> ReentrancyError | None:
        """The error for a message that its own entity waits for."""
        if activation.turn is None or activation.turn.asking is None:
            return None
        cycle = activation.turn.asking.closed_by(message.chain)
        return None if cycle is None else ReentrancyError(cycle)


def _named(invoker: Invoker) -> str:
    """The method as people know it."""
    return invoker.name if invoker.one is None else "receive"
