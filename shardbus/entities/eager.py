"""Eager tasks: run a handler's coroutine without a task of asyncio.

Most async handlers return without waiting. A task costs more than such a handler, so the runner
steps its coroutine once, right where the message is handled. If it waits, the eager task goes on
with it when what it waits for is done, in that turn of the loop in which a task of asyncio would.
An eager task is a future of the loop with the methods of a task, and it is the current task while
its coroutine runs. So the code inside does not notice: `asyncio.timeout`, `TaskGroup` and libraries
that keep `current_task()` see one and the same object, in the first step and later.

    first step ──ends──> the eager task serves the next first step
        │ waits
        └──> waiting ──done, gate open──> step ──ends──> outcome, `on_end` is called at once
                ^                          │
                └──────────────────────────┘

A task of asyncio costs more for a handler that waits once: it is registered in a weak
set, and takes a turn of the loop to begin and another one to call back at its end.

A coroutine that waited goes on only while the gate of the node is open: until then its result, an
error or a cancellation waits with it (`gate`). In its first step a coroutine cannot be cancelled.

Context variables belong to a task, too. The first step runs in a copy of the context in which the
eager runner was made, not of the one in which the message arrived, and further steps run in that
copy. `OWNER` is set there, and so in every task that the code creates. What calls the steps, and
`on_end`, run in the context in which the eager runner was made.

An eager task that is being cancelled is among `asyncio.all_tasks`, so that a loop which ends waits
for its clean-up; before that it is not.

Source: `asyncio.Task` of Python 3.11 to 3.13, whose rules for futures and cancellation it follows;
Python's own eager tasks (3.12 and later).
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task, _register_task
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from types import FrameType
from typing import Any

from shardbus.entities.gate import SuspensionGate
from shardbus.light_future import LightFuture
from shardbus.store.batch_answer import BatchAnswer

OWNER: ContextVar[Any] = ContextVar("shardbus_owner", default=None)
"""The owner of the eager runner under which the current code started; None elsewhere."""


class EagerTask(LightFuture):
    """A coroutine that is stepped on `runner`'s loop, without a task.

    The owner of the runner notes here what the task is for, once it is known: the activation and
    its message, or what else it is `doing` and the `chain` of entities that wait for that; and what
    it asks. `EagerRunner.unused` makes one: what tasks need is in slots, which are quick; code that
    runs in a task may set attributes of its own."""

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_cancel_text",
        "_cancels",
        "_must_cancel",
        "activation",
        "awaits",
        "call_chain",
        "chain",
        "context",
        "coroutine",
        "doing",
        "message",
        "on_end",
        "reported",
        "runner",
        "seen_at",
    )
    runner: EagerRunner
    coroutine: Coroutine[Any, Any, Any] | None
    """What it runs, once the first step has waited; None before, and after the end."""
    context: Context
    awaits: Any
    """The future that it waits for; None while it runs, or waits for a turn of the loop or for the
    gate."""
    on_end: Callable[[EagerTask], object] | None
    """Called at the end, when the outcome is known, in the same turn of the loop."""
    activation: Any
    message: Any
    call_chain: Any
    _must_cancel: bool
    """Cancelled while it waited for no future: the next step raises."""
    _cancel_text: Any
    """Set with `_must_cancel`."""
    _cancels: int
    doing: str
    chain: tuple[Any, ...]
    """Set with `doing`."""
    seen_at: int
    """The tick at which the sweep first found it waiting; 0 before."""
    reported: bool
    """It was reported as slow. Set with `seen_at`."""

    @property
    def owner(self) -> Any:
        """The owner of the runner."""
        return self.runner.owner

    # ---- what a task of asyncio has

    def cancel(self, msg: Any = None) -> bool:
        """Request that CancelledError is raised in the coroutine, as `asyncio.Task.cancel`."""
        if self.coroutine is None:
            return False
        if not self._cancels:
            _register_task(self)  # type: ignore[arg-type]
        self._cancels += 1
        if self.awaits is None or not self.awaits.cancel(msg=msg):
            self._must_cancel, self._cancel_text = True, msg
        return True

    def cancelling(self) -> int:
        """Return the number of requests that were not taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take a request back; return how many are left."""
        if self._cancels > 0:
            self._cancels -= 1
            self._must_cancel = self._must_cancel and self._cancels > 0
        return self._cancels

    def get_coro(self) -> Coroutine[Any, Any, Any] | None:
        return self.coroutine

    def get_context(self) -> Context:
        return self.context

    def get_name(self) -> str:
        return f"shardbus-handler-{id(self):x}"

    def set_name(self, value: object) -> None:
        """Ignore a name."""

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        frame = getattr(self.coroutine, "cr_frame", None)
        return [] if frame is None else [frame]

    @property
    def _fut_waiter(self) -> Any:
        """For anyio, which reads it from a task of asyncio."""
        return self.awaits

    # ---- steps

    def wait_for(self, waits_for: Any) -> None:
        """Step again once what the coroutine has yielded is done."""
        runner = self.runner
        blocking = getattr(waits_for, "_asyncio_future_blocking", None)
        if blocking and waits_for.get_loop() is runner.loop and waits_for is not self:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self.step, context=runner.outside)
            self.awaits = waits_for
            if self._must_cancel and waits_for.cancel(msg=self._cancel_text):
                self._must_cancel = False
        elif waits_for is None:
            runner.loop.call_soon(self.step, None, context=runner.outside)
        else:
            refused = runner.loop.create_future()
            text = f"{self!r} got {waits_for!r:.200}, for which no task can wait"
            refused.set_exception(RuntimeError(text))
            runner.loop.call_soon(self.step, refused, context=runner.outside)

    def step(self, future: Any) -> None:
        """Run the coroutine until it waits again, or ends, after a future, or a turn of the loop.
        If the gate is shut, wait until it is open."""
        runner, coroutine = self.runner, self.coroutine
        gate, loop = runner.gate, runner.loop
        self.awaits = None
        if gate.is_shut() and not gate.ended:
            gate.opened().add_done_callback(lambda _: self.step(future), context=runner.outside)
            return
        assert coroutine is not None
        value: Any = None
        error: BaseException | None = None
        if future.__class__ is BatchAnswer:
            error = future.error
        elif future is not None:
            error = _error_of(future)
        if self._must_cancel:
            self._must_cancel = False
            if not isinstance(error, asyncio.CancelledError):
                text = self._cancel_text
                error = asyncio.CancelledError() if text is None else asyncio.CancelledError(text)
        _enter_task(loop, self)  # type: ignore[arg-type]
        try:
            if error is None:
                waits_for = self.context.run(coroutine.send, None)
            else:
                waits_for = self.context.run(coroutine.throw, error)
        except StopIteration as end:
            value, error = end.value, None
        except (KeyboardInterrupt, SystemExit) as e:
            self.coroutine = None
            self.settle(None, e)
            raise
        except BaseException as e:
            error = e
        else:
            self.wait_for(waits_for)
            return
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
        self.coroutine = None
        self.settle(value, error)
        if self.on_end is not None:
            self.on_end(self)


def _error_of(future: Any) -> BaseException | None:
    """Return the error of a future that is done, the CancelledError of a cancelled one."""
    try:
        future.result()
    except BaseException as e:
        return e
    return None


class EagerRunner:
    """Steps coroutines on one loop. An unused eager task serves the next first step.

    Between `enter` and `leave` the eager task is the current task, so that a run of first steps
    pays for that once: there, `begin` steps a coroutine.
    """

    __slots__ = (
        "_context",
        "_depth",
        "_outer",
        "adopt",
        "base",
        "gate",
        "loop",
        "outside",
        "owner",
        "task",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Any = None,
        gate: SuspensionGate | None = None,
    ) -> None:
        self.loop, self.owner, self.gate = loop, owner, gate or SuspensionGate()
        self.adopt: Callable[[EagerTask], object] | None = getattr(loop, "adopt", None)
        """A simulated loop must know the coroutines that stand in it when its process is killed."""
        self.outside = copy_context()
        """The context of callbacks."""
        self.base = copy_context()
        self.base.run(OWNER.set, owner)
        self.task = self.unused()
        """The eager task of the next first step."""
        self._depth = 0
        self._outer: asyncio.Task[Any] | None = None
        self._context: Context
        """The context of the first step that waits; `take_over` follows at once."""

    def unused(self) -> EagerTask:
        """Return an eager task for a first step. A constructor in Python would cost as much again
        as the task."""
        task = EagerTask()
        task.runner, task._loop = self, self.loop
        task.settled = task._must_cancel = False
        task.error = task._callbacks = task.coroutine = task.awaits = task.on_end = None
        task.activation = task.message = task.call_chain = None
        task.seen_at = task._cancels = 0
        task.doing = ""
        return task

    def enter(self) -> None:
        """Make the eager task current: first steps follow. Calls nest, and may come from inside a
        task."""
        self._depth += 1
        if self._depth == 1:
            outer = asyncio.current_task(self.loop)
            if outer is not None:
                self._outer = outer
                _leave_task(self.loop, outer)
            _enter_task(self.loop, self.task)  # type: ignore[arg-type]

    def leave(self) -> None:
        """End what `enter` began."""
        self._depth -= 1
        if self._depth == 0:
            _leave_task(self.loop, self.task)  # type: ignore[arg-type]
            if self._outer is not None:
                outer, self._outer = self._outer, None
                _enter_task(self.loop, outer)

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

    def take_over(
        self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, context: Context | None = None
    ) -> EagerTask:
        """Return the eager task that goes on with a coroutine whose first step returned
        `waits_for`. `context`: in which that ran, if not by `begin`."""
        loop, eager = self.loop, self.task
        self.task = following = self.unused()
        if self._depth:
            _leave_task(loop, eager)  # type: ignore[arg-type]
            _enter_task(loop, following)  # type: ignore[arg-type]
        eager.coroutine = coroutine
        eager.context = self._context if context is None else context
        if self.adopt is not None:
            self.adopt(eager)
        if waits_for.__class__ is BatchAnswer and waits_for.waiter is None:
            # As `wait_for` would: most handlers that wait do so for a save.
            waits_for.waiter, waits_for.waiter_context = eager.step, self.outside
            eager.awaits = waits_for
        else:
            eager.wait_for(waits_for)
        return eager
