"""Eager tasks: run a handler's coroutine without a task until it really waits.

Most async handlers return without waiting. A task costs more than such a handler, so the runner
steps its coroutine once, right where the message is handled; a task carries it on only if it
yields. The code inside does not notice: `asyncio.timeout`, `TaskGroup` and libraries that keep
`current_task()` see one and the same object, the eager task, before and after a real task takes
over. The eager task passes every call on to the real one once there is one.

A coroutine that waited goes on only while the gate of the node is open: until then its result, an
error or a cancellation waits with it (`gate`).

Context variables belong to a task, too. The first step runs in a copy of the context in which the
eager runner was made, not of the one in which the message arrived, and the real task goes on in
that copy. `OWNER` is set there, and so in every task that the code creates.

Source: Python's own eager tasks (3.12 and later) do the same; this works on 3.11 and costs less.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any

from shardbus.entities.gate import SuspensionGate

OWNER: ContextVar[Any] = ContextVar("shardbus_owner", default=None)
"""The owner of the eager runner under which the current code started; None elsewhere."""
BEGUN = object()
"""Stands in `EagerTask.awaits` once the real task runs."""


class EagerTask:
    """Stands for the task that a first step may turn out to need.

    The owner of the runner notes here what the task is for, once it is known: the activation and
    its message, or what else it is `doing` and the `chain` of entities that wait for that; and what
    it asks."""

    task: asyncio.Task[Any] | None = None
    """The real task, once the first step has waited."""
    awaits: Any = None
    """What the first step waits for, until the real task waits for it (BEGUN)."""
    activation: Any = None
    message: Any = None
    doing = ""
    chain: tuple[Any, ...] = ()
    call_chain: Any = None
    seen_at = 0
    """The tick at which the sweep first found it waiting."""
    reported = False
    """It was reported as slow."""

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
    """Steps coroutines on one loop. An unused eager task serves the next first step.

    Between `enter` and `leave` the eager task is the current task, so that a run of first steps
    pays for that once: there, `begin` steps a coroutine.
    """

    __slots__ = ("_context", "_depth", "_gate", "_loop", "_outer", "_owner", "base", "task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Any = None,
        gate: SuspensionGate | None = None,
    ) -> None:
        self._loop, self._owner, self._gate = loop, owner, gate or SuspensionGate()
        self.base = copy_context()
        self.base.run(OWNER.set, owner)
        self.task = EagerTask(owner)
        """The eager task of the next first step."""
        self._depth = 0
        self._outer: asyncio.Task[Any] | None = None
        self._context: Context
        """The context of the first step that waits; `take_over` follows at once."""

    def enter(self) -> None:
        """Make the eager task current: first steps follow. Calls nest, and may come from inside a
        task."""
        self._depth += 1
        if self._depth == 1:
            outer = self._outer = asyncio.current_task(self._loop)
            if outer is not None:
                _leave_task(self._loop, outer)
            _enter_task(self._loop, self.task)  # type: ignore[arg-type]

    def leave(self) -> None:
        """End what `enter` began."""
        self._depth -= 1
        if self._depth == 0:
            _leave_task(self._loop, self.task)  # type: ignore[arg-type]
            if self._outer is not None:
                _enter_task(self._loop, self._outer)

    def fresh(self) -> Context:
        """Return a context for a coroutine that is to `begin`. It equals `base` until the coroutine
        sets a variable in it."""
        return self.base.copy()

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Run a coroutine until it waits or ends. Valid between `enter` and `leave`.

        Returns what it waits for. Raises StopIteration with the result if it ends, and every
        exception of the coroutine.
        """
        waits_for = context.run(coroutine.send, None)
        self._context = context
        return waits_for

    def step(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine until it waits or ends, as `begin` does, anywhere."""
        self.enter()
        try:
            return self.begin(coroutine, self.fresh())
        finally:
            self.leave()

    def take_over(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> asyncio.Task[Any]:
        """Return the task that carries on a coroutine whose first step returned `waits_for`."""
        eager, self.task = self.task, EagerTask(self._owner)
        if self._depth:
            _leave_task(self._loop, eager)  # type: ignore[arg-type]
            _enter_task(self._loop, self.task)  # type: ignore[arg-type]
        eager.awaits = waits_for
        carried = self._carry_on(coroutine, waits_for, eager)
        eager.task = self._loop.create_task(carried, context=self._context)
        return eager.task

    async def _carry_on(
        self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, eager: EagerTask
    ) -> Any:
        return await _resume(self._loop, coroutine, waits_for, eager, self._gate)


def coroutine_of(eager: EagerTask) -> Coroutine[Any, Any, Any] | None:
    """Return the coroutine that the real task carries on; None once it is done."""
    carrier: Any = eager.task.get_coro() if eager.task is not None else None
    frame = carrier.cr_frame if carrier is not None else None
    return None if frame is None else frame.f_locals.get("coroutine")


@types.coroutine
def _resume(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    waits_for: Any,
    eager: EagerTask,
    gate: SuspensionGate,
) -> Generator[Any, Any, Any]:
    task: Any = eager.task
    eager.awaits = BEGUN
    while True:
        error: BaseException | None = None
        value = None
        try:
            value = yield waits_for
        except GeneratorExit:  # the loop has ended, and every current task with it
            coroutine.close()
            raise
        except BaseException as e:
            error = e
        while gate.is_shut() and not gate.ended:
            try:
                yield from gate.opened().__await__()
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as e:
                error = e
        _leave_task(loop, task)
        _enter_task(loop, eager)  # type: ignore[arg-type]
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            _leave_task(loop, eager)  # type: ignore[arg-type]
            _enter_task(loop, task)
