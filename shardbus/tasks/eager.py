"""Eager tasks: run a handler's coroutine without a task of asyncio.

Most handlers return without waiting. A task costs more than such a handler, so the runner steps its
coroutine once, right where the message is handled. If it waits, the eager task goes on with it when
its awaited future is done, in the turn of the loop in which a task of asyncio would. An eager task
is a future of the loop with the methods of a task, and it is the current task while its code runs.

    first step ──ends, task not kept──> the eager task serves the next first step
        │  │
        │  └─ends, task kept or changed──> outcome; the next first step gets another task
        │ waits
        └──> waiting ──done, gate open──> step ──ends──> outcome, `on_end` is called at once
                ^                          │
                └──────────────────────────┘

**One handler, one task, one context.** Code inside sees no difference to a task of asyncio of its
own. `current_task()` is the same object in all steps of a handler, and no other handler gets it as
long as any code keeps it. After a first step its caller looks for traces in the task: a reference
to it, an attribute, or a change by a method, such as a callback, a name, a request to cancel, or a
place in a weak dict. A method that changes it refers to it in `changed`, so that the number of
references to the task shows all of these but attributes. The number is compared with the one before
the step in the same frame, since interpreters differ. A weak reference that stands in no set or
dict shows at the end of the run only (`leave`). A task with traces gets the outcome of its
handler, and its callbacks are called. A first step runs in a copy of the context in which the
eager runner was made, not in the one in which the message arrived; a copy that equals the original
after the step serves the next one. So no handler sees a variable that another one has set.

A task of asyncio costs more for a handler that waits once: it is registered in a weak set, and
takes a turn of the loop to begin and another one to call back at its end.

A coroutine that waited goes on only while the gate of the node is open: until then its result, an
error or a cancellation waits with it (`gate`).

`OWNER` is set in each of these contexts, and so in every task that the code creates. The callers
of later steps, and `on_end`, run in the context in which the eager runner was made.

An eager task that is being cancelled is among `asyncio.all_tasks`, so that a loop which ends waits
for its clean-up; before that it is not.

Source: `asyncio.Task` of Python 3.11 to 3.14, whose rules for futures and cancellation it follows;
Python's own eager tasks (3.12 and later); docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from types import FrameType
from typing import Any, Protocol

from shardbus.error_text import is_a
from shardbus.tasks.batch_answer import BatchAnswer
from shardbus.tasks.internals import enter_task, leave_task, register_task, swap_task
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.tasks.light_future import Callback, LightFuture

references = sys.getrefcount
"""Counts the references to an object."""

OWNER: ContextVar[Any] = ContextVar("shardbus_owner", default=None)
"""The owner of the eager runner under which the current code started; None elsewhere."""


class Gate(Protocol):
    """Lets coroutines that have waited go on."""

    ended: bool
    """Nothing waits any more: the process ends."""

    def close_if_due(self) -> bool: ...
    def opened(self) -> asyncio.Future[None]:
        """Return a future that is done once the gate is open."""
        ...


class OpenGate:
    """A gate that is always open."""

    ended = False

    def close_if_due(self) -> bool:
        return False

    def opened(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


class EagerTask(LightFuture):
    """A coroutine that is stepped on `runner`'s loop, without a task.

    The owner of the runner notes here the purpose of the task, once it is known: the activation and
    its message, or its other work (`doing`) and the `chain` of entities that wait for it; and its
    asks (`call_chain`). `EagerRunner.unused` makes one: the fields of tasks are in slots, which are
    quick; code that runs in a task may set attributes of its own."""

    __slots__ = (
        "__dict__", "__weakref__", "_cancel_text", "_cancels", "_must_cancel", "_name",
        "activation", "awaits", "call_chain", "chain", "changed", "context", "coroutine", "doing",
        "message", "on_end", "reported", "runner", "seen_at", "steps",
    )  # fmt: skip
    __weakref__: Any
    runner: EagerRunner
    coroutine: Any
    """The coroutine of the code that runs under it; None for a plain function, and after the end of
    a coroutine that has waited."""
    steps: Coroutine[Any, Any, Any] | None
    """The coroutine that `step` goes on with, once the first step has waited; None before, and
    after the end. It is `coroutine`, or awaits it."""
    context: Context
    changed: EagerTask | None
    """The task itself, once its code has changed it in its first step."""
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

    # ---- the interface of a task of asyncio

    def cancel(self, msg: Any = None) -> bool:
        """Request that CancelledError is raised in the coroutine, as `asyncio.Task.cancel`."""
        if self.settled:
            return False
        if not self._cancels:
            register_task(self)
        self._cancels += 1
        if self.awaits is None or not self.awaits.cancel(msg=msg):
            self._must_cancel, self._cancel_text, self.changed = True, msg, self
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

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        self.changed = self
        super().add_done_callback(fn, context=context)

    def __hash__(self) -> int:
        """Note that code has put the task into a set or a dict: a weak one shows in no number of
        references."""
        if not self.settled:
            self.changed = self
        return id(self)

    def requested(self, error: BaseException | None = None) -> BaseException | None:
        """Return the error that the coroutine gets next instead of `error`: CancelledError if the
        task was cancelled while it waited for no future."""
        if not self._must_cancel:
            return error
        self._must_cancel = False
        if error is not None and is_a(error, asyncio.CancelledError):
            return error
        text = self._cancel_text
        return asyncio.CancelledError() if text is None else asyncio.CancelledError(text)

    def get_coro(self) -> Any:
        return self.coroutine

    def get_context(self) -> Context:
        return self.context

    def get_name(self) -> str:
        return self._name or f"shardbus-handler-{id(self):x}"

    def set_name(self, value: object) -> None:
        self._name, self.changed = str(value), self

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        frame = getattr(self.coroutine, "cr_frame", None)
        return [] if frame is None else [frame]

    @property
    def _fut_waiter(self) -> Any:
        """For anyio, which reads it from a task of asyncio."""
        return self.awaits

    # ---- steps

    def wait_for(self, waits_for: Any) -> None:
        """Step again once the future that the coroutine has yielded is done."""
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
        runner, coroutine = self.runner, self.steps
        gate, loop = runner.gate, runner.loop
        self.awaits = None
        if gate.close_if_due() and not gate.ended:
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
            error = self.requested(error)
        enter_task(loop, self)
        try:
            if error is None:
                waits_for = self.context.run(coroutine.send, None)
            else:
                waits_for = self.context.run(coroutine.throw, error)
        except StopIteration as end:
            value, error = end.value, self.requested()
        except BaseException as e:
            error = e
        else:
            self.wait_for(waits_for)
            return
        finally:
            leave_task(loop, self)
        self.coroutine = self.steps = self.changed = None
        self.settle(None if error is not None else value, error)
        if error is not None:
            raise_interrupt(error)
        if self.on_end is not None:
            self.on_end(self)


def _error_of(future: Any) -> BaseException | None:
    """Return the error of a future that is done, the CancelledError of a cancelled one."""
    try:
        future.result()
    except BaseException as e:
        return e
    return None


SPARES_MAX = 16
"""Unused eager tasks that are kept."""

Entered = tuple["asyncio.Task[Any] | None", EagerTask | None]
"""The task that was current before, and the eager task whose first step it interrupts, if any."""


class FirstSteps:
    """The first steps on the stack, each inside the one before."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0


class EagerRunner:
    """Steps coroutines on one loop.

    Between `enter` and `leave` an eager task is the current task, so that a run of first steps pays
    for that once. There the caller runs first steps, each in a context that equals `base`. After
    each it calls `replace`, or compares `references(task)` with the number before the step, and
    looks at `task.__dict__`: if both show no trace of the step, the task serves the next one. The
    comparison stands in the loops of the runner because a call would double its time.
    """

    __slots__ = (
        "_spares", "adopt", "base", "depth", "gate", "loop", "outside", "owner", "stack", "task",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Any = None,
        gate: Gate | None = None,
    ) -> None:
        self.loop, self.owner, self.gate = loop, owner, gate or OpenGate()
        self.adopt: Callable[[EagerTask], object] | None = getattr(loop, "adopt", None)
        """A simulated loop must have the coroutines that stand in it when its process is killed."""
        self.outside = copy_context()
        """The context of callbacks."""
        self.base = copy_context()
        self.base.run(OWNER.set, owner)
        self.task = self.unused()
        """The eager task of the next first step."""
        self._spares: list[EagerTask] = []
        """Unused eager tasks, for first steps inside others."""
        self.depth = 0
        """Above 0 between `enter` and `leave`."""
        self.stack = FirstSteps()
        """Those of all runners that share this object."""

    def unused(self) -> EagerTask:
        """Return an eager task for a first step. A constructor in Python would cost as much again
        as the task."""
        task = EagerTask()
        task.runner, task._loop, task.context = self, self.loop, self.base
        task.settled = task._must_cancel = False
        task.error = task._callbacks = task.coroutine = task.awaits = task.on_end = None
        task.activation = task.message = task.call_chain = task.changed = task.steps = None
        task.seen_at = task._cancels = 0
        task.doing = task._name = ""
        return task

    def _following(self) -> EagerTask:
        """Return a spare eager task, or a new one."""
        return self._spares.pop() if self._spares else self.unused()

    def has_traces(self, before: int, context: Context) -> bool:
        """True if code has left traces in the current task, to which there were `before` references
        when its caller had those that it has now, or in its context."""
        try:
            # As an attribute: from 3.14 on some loads of a local are no reference.
            return references(self.task) != before or bool(
                self.task.__dict__ or context != self.base
            )
        except BaseException:  # of the `__eq__` of a variable's value
            return True

    def enter(self) -> Entered:
        """Make an eager task current: first steps follow. Calls nest, and may come from inside a
        task. Returns the argument of `leave`."""
        interrupted = None
        if self.depth:
            interrupted, self.task = self.task, self._following()
        self.depth += 1
        self.stack.depth += 1
        return swap_task(self.loop, self.task), interrupted

    def leave(self, entered: Entered) -> None:
        """Undo `enter`."""
        outer, interrupted = entered
        self.depth -= 1
        self.stack.depth -= 1
        swap_task(self.loop, outer)
        if self.task.__weakref__ is not None:
            self.task.settle(None, None)
            self.task = self.unused()
        if interrupted is not None:
            if len(self._spares) < SPARES_MAX:
                self._spares.append(self.task)
            self.task = interrupted

    def replace(
        self, value: Any = None, error: BaseException | None = None
    ) -> BaseException | None:
        """End a first step under the current task: make another one current, and give this one the
        outcome of the step, in case that code has kept it. Returns the error, which is
        CancelledError if the task was cancelled. Valid between `enter` and `leave`."""
        task = self.task
        self.task = following = self._following()
        following.context = task.context
        swap_task(self.loop, following)
        if error is None:  # an exception may have a `__bool__` that raises
            error = task.requested()
        task.coroutine = task.changed = None
        task.settle(None if error is not None else value, error)
        return error

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a plain function, which is called as a first step of its own."""
        entered, value, error = self.enter(), None, None
        try:
            self.task.context = context = self.base.copy()
            self.task.coroutine = None
            try:
                value = context.run(function, *args)
            except BaseException as e:
                error = e
            error = self.replace(value, error)
        finally:
            self.leave(entered)
        if error is not None:
            raise error
        return value

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Run a coroutine until it waits or ends. Valid between `enter` and `leave`.

        Returns the future that it waits for; `take_over` must follow. Raises StopIteration with the
        result if it ends, and every exception of the coroutine.
        """
        self.task.context, self.task.coroutine = context, coroutine
        try:
            return context.run(coroutine.send, None)
        except StopIteration as end:
            error = self.replace(end.value)
            if error is None:
                raise
            raise error from None
        except BaseException as e:
            self.replace(error=e)
            raise

    def take_over(
        self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, context: Context
    ) -> EagerTask:
        """Return the current eager task, which goes on with a coroutine whose first step in this
        context returned `waits_for`. Another one is current now. Valid between `enter` and
        `leave`."""
        loop, eager = self.loop, self.task
        self.task = following = self._following()
        swap_task(loop, following)
        eager.steps, eager.context = coroutine, context
        if self.adopt is not None:
            self.adopt(eager)
        batched = waits_for.__class__ is BatchAnswer and waits_for.waiter is None
        if batched and not eager._must_cancel:
            # As `wait_for` would: most handlers that wait do so for a save.
            waits_for.waiter, waits_for.waiter_context = eager.step, self.outside
            eager.awaits = waits_for
        else:
            eager.wait_for(waits_for)
        return eager
