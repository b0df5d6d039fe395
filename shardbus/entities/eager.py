"""Driving a handler's coroutine without a task until it really waits.

Most async handlers return without waiting for anything. A task costs more than such a handler, so
its coroutine is stepped once right where the message is handled; only if it yields does a task take
it over from there. The code inside must not notice: `asyncio.timeout`, `TaskGroup` and libraries
that remember `current_task()` see one and the same object, the turn, before and after the takeover.
It passes everything on to the task once there is one. Context variables are a task's own too: the
first step runs in a copy of the context in which the driver was made, not of that in which the
message happened to arrive, and the task goes on in that copy. `OWNER` is set there, for the tasks
that the code makes in its turn.

Source: Python's own eager tasks (3.12 and later) do the same; this works on 3.11 and costs less.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any

OWNER: ContextVar[Any] = ContextVar("shardbus_owner", default=None)
"""Whose driver runs, or began, the code that looks; None elsewhere."""
BEGUN = object()


class EagerTask:
    """Stands for the task that a first step may turn out to need.

    The owner of the driver notes here what it is for, once that is sure: the entity (`cell`) and
    its message, or what else it is `doing` and the `chain` of who waits for that; and what is being
    asked."""

    task: asyncio.Task[Any] | None = None
    awaits: Any = None
    """What the first step waited for, until the task waits for it (BEGUN)."""
    activation: Any = None
    message: Any = None
    doing = ""
    chain: tuple[Any, ...] = ()
    asking: Any = None
    since = 0
    """The tick at which somebody first saw it wait."""
    told = False
    """Its waiting has been told."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __getattr__(self, name: str) -> Any:
        if self.task is None:
            raise AttributeError(f"{name}: the handler has not waited for anything yet")
        return getattr(self.task, name)

    def cancel(self, msg: Any = None) -> bool:
        return self.task is not None and self.task.cancel(msg)

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        return 0 if self.task is None else self.task.uncancel()

    def done(self) -> bool:
        return self.task is not None and self.task.done()


class EagerRunner:
    """Steps coroutines on one loop. The unused turn is kept for the next first step.

    Between `enter` and `leave` the turn is the current task, so that many first steps pay for it
    once: there a coroutine is stepped by `begin`.
    """

    __slots__ = ("_context", "_depth", "_loop", "_outer", "_owner", "base", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Any = None) -> None:
        self._loop, self._owner = loop, owner
        self.base = copy_context()
        self.base.run(OWNER.set, owner)
        self.turn = EagerTask(owner)
        """The current task of the next first step."""
        self._depth = 0
        self._outer: asyncio.Task[Any] | None = None
        self._context: Context
        """Of the first step that waits; `take_over` follows at once."""

    def enter(self) -> None:
        """First steps follow. May be nested, and may happen inside of a task."""
        self._depth += 1
        if self._depth == 1:
            outer = self._outer = asyncio.current_task(self._loop)
            if outer is not None:
                _leave_task(self._loop, outer)
            _enter_task(self._loop, self.turn)  # type: ignore[arg-type]

    def leave(self) -> None:
        """They are done."""
        self._depth -= 1
        if self._depth == 0:
            _leave_task(self._loop, self.turn)  # type: ignore[arg-type]
            if self._outer is not None:
                _enter_task(self._loop, self._outer)

    def fresh(self) -> Context:
        """A context for a coroutine that is to `begin`. It equals `base` for as long as nobody has
        set anything in it."""
        return self.base.copy()

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Between `enter` and `leave`: run until it waits or ends.

        Returns what it waits for. Raises StopIteration with the result when it ends, or whatever it
        raises.
        """
        waits_for = context.run(coroutine.send, None)
        self._context = context
        return waits_for

    def step(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """`begin`, anywhere."""
        self.enter()
        try:
            return self.begin(coroutine, self.fresh())
        finally:
            self.leave()

    def take_over(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> asyncio.Task[Any]:
        """The task that carries on a coroutine whose first step returned `waits_for`."""
        turn, self.turn = self.turn, EagerTask(self._owner)
        if self._depth:
            _leave_task(self._loop, turn)  # type: ignore[arg-type]
            _enter_task(self._loop, self.turn)  # type: ignore[arg-type]
        turn.awaits = waits_for
        carried = self._carry_on(coroutine, waits_for, turn)
        turn.task = self._loop.create_task(carried, context=self._context)
        return turn.task

    async def _carry_on(
        self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, turn: EagerTask
    ) -> Any:
        return await _resume(self._loop, coroutine, waits_for, turn)


def coroutine_of(turn: EagerTask) -> Coroutine[Any, Any, Any] | None:
    """The coroutine that a turn's task carries on; None once that is done."""
    carrier: Any = turn.task.get_coro() if turn.task is not None else None
    frame = carrier.cr_frame if carrier is not None else None
    return None if frame is None else frame.f_locals.get("coroutine")


@types.coroutine
def _resume(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    waits_for: Any,
    turn: EagerTask,
) -> Generator[Any, Any, Any]:
    task: Any = turn.task
    turn.awaits = BEGUN
    while True:
        error: BaseException | None = None
        value = None
        try:
            value = yield waits_for
        except GeneratorExit:  # the loop is gone, and with it every current task
            coroutine.close()
            raise
        except BaseException as e:
            error = e
        _leave_task(loop, task)
        _enter_task(loop, turn)  # type: ignore[arg-type]
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            _leave_task(loop, turn)  # type: ignore[arg-type]
            _enter_task(loop, task)
