"""An asyncio event loop of one simulated process, with its own clock and pauses, without sockets.

Ready callbacks run in turns, as in a real loop: a turn runs the callbacks that were ready when it
began. A turn takes `TURN_S`, so that two callbacks that wake each other also move time. While the
process is paused no callback runs; timers that were due fire afterwards. After `kill` none ever
runs.

The loop serves coroutines as a Timeline serves callbacks. The code of a node runs in it unchanged,
and a run has one history. A turn may run within a callback of another loop.

A function of `run_in_executor` runs in a thread, as in a real loop. Virtual time stands still until
it returns, so it cannot wait for anything of its loop.

Source: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from threading import Thread
from typing import Any, TypeVar
from weakref import WeakSet

from shardbus.simulation.timeline import ProcessClock, Timeline
from shardbus.tasks import internals
from shardbus.tasks.answers import WatchedAnswer

T = TypeVar("T")

TURN_S = 0.00002
ROUNDING_S = 1e-9
STANDS_S = 0.01
"""Seconds between two looks at a clock that stands still."""
CREATED = inspect.CORO_CREATED
THREAD_S = 60.0
"""Real seconds, at most, for a function that runs in a thread."""
CLOSES_MAX = 8
"""Times, at most, that a coroutine of an ended process is closed; its `finally` may await."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop on a timeline, with the monotonic clock of its process. `failed` receives the
    context of an exception that no code caught."""

    def __init__(
        self,
        timeline: Timeline,
        failed: Callable[[dict[str, Any]], None],
        clock: ProcessClock | None = None,
    ) -> None:
        self.timeline = timeline
        self.clock = clock or ProcessClock()
        self.dead = False
        self.paused_until = 0.0
        self.slow = 1.0
        """The factor by which a turn takes longer than `TURN_S`."""
        self._busy_until = 0.0
        self.after_turn: Callable[[], None] | None = None
        """Called after each turn."""
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # ---- the process

    def kill(self) -> None:
        """End the process at once: none of its code runs on, not even a `finally`."""
        self.dead = True
        self._ready.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            begun = task.get_coro()
            if inspect.iscoroutine(begun) and inspect.getcoroutinestate(begun) == CREATED:
                begun.close()

    def discard(self) -> None:
        """End the coroutines of a killed process. Until then they stand where they stood; their
        `finally` blocks run now."""
        tasks, self._tasks = list(self._tasks), {}
        for task in tasks:
            left = task.get_coro()
            for _ in range(CLOSES_MAX):
                with suppress(Exception):
                    if inspect.iscoroutine(left):
                        left.close()
                    break

    def resume(self) -> None:
        """Continue a paused process, as SIGCONT does."""
        if self.timeline.now < self.paused_until:
            self.paused_until = self.timeline.now
            self._turning = False
            if self._ready:
                self._turn_soon(0.0)

    def run_now(self) -> None:
        """Run one turn at once."""
        self._turn()

    def _turn(self) -> None:
        self._turning = False
        if self.dead:
            return
        if self.timeline.now < self.paused_until:
            self._turning = True
            self.timeline.later(self.paused_until - self.timeline.now, self._turn)
            return
        if self.slow > 1.0:
            self._busy_until = self.timeline.now + TURN_S * self.slow
        ready, outer = self._ready, internals.running_loop()
        task = None if outer is None else asyncio.current_task(outer)
        if outer is not None and task is not None:
            internals.leave_task(
                outer, task
            )  # from 3.14 on a thread has one current task, not each loop
        internals.set_running_loop(self)
        try:
            left = len(ready)
            while left and ready:  # a callback may kill the process
                left -= 1
                handle = ready.popleft()
                if not handle.cancelled():
                    internals.run_handle(handle)
        finally:
            internals.set_running_loop(outer)
            if outer is not None and task is not None:
                internals.enter_task(outer, task)
        if self.after_turn is not None:
            self.after_turn()
        if ready:
            self._turn_soon(TURN_S)

    def _turn_soon(self, delay: float) -> None:
        if not self._turning and not self.dead:
            self._turning = True
            self.timeline.later(max(delay, self._busy_until - self.timeline.now), self._turn)

    # ---- the methods that asyncio requires of a loop

    def time(self) -> float:
        """Return the time of this loop's clock."""
        return self.clock.monotonic(self.timeline.now)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._ready.append(handle)
            self._turn_soon(0.0)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        now = self.time()
        return self._begin_timer(now + delay, now, callback, args, context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._begin_timer(when, self.time(), callback, args, context)

    def _begin_timer(
        self,
        when: float,
        now: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        """Make and schedule a timer. It never fires early, though conversion between clocks may
        round, and the clock may have stood still meanwhile."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if self.dead:
            return timer

        def ring() -> None:
            if timer.cancelled() or self.dead:
                return
            if (now := self.time()) < when:
                self.timeline.later(max(STANDS_S, when - now), ring)
                return
            self._ready.append(timer)
            self._turn_soon(0.0)

        self.timeline.later(max(0.0, (when - now) / self.clock.rate) + ROUNDING_S, ring)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped at its time."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.adopt(task)
        return task

    def get_task_factory(self) -> None:
        """Return None: no factory makes tasks."""

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Register a task, so that `kill` and `discard` end it: an eager task is not created
        here."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a blocking function in a thread, and wait until it returns."""
        done: Future[T] = Future() if executor is None else executor.submit(function, *args)
        if executor is None:
            Thread(target=_call, args=(done, function, args), daemon=True).start()
        answer: asyncio.Future[T] = self.create_future()
        try:
            error = done.exception(THREAD_S)
        except TimeoutError:
            error = RuntimeError(
                f"{function!r:.80} has not returned within {THREAD_S:g} s from its thread:"
                " virtual time stands still meanwhile, so it cannot wait for its loop"
            )
        if error is None:
            self.call_soon(_settle, answer, done.result())
        else:
            self.call_soon(_settle, answer, None, error)
        return answer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that no code caught."""
        if not self.dead:
            self._failed(context)

    def get_debug(self) -> bool:
        return False

    @property
    def answers(self) -> WeakSet[WatchedAnswer] | None:
        """The answers of asks, for `tasks.answers`."""
        return self.timeline.answers

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return False


def _call(done: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the function; hand its result or its error to the future."""
    try:
        result = function(*args)
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    """Hand a result or an error over, unless the code that waited was cancelled."""
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
