"""Virtual time for a test: it passes while the test waits for something of the cluster.

The test runs in an event loop of its own, with real time, or in none. The cluster's loops are on a
timeline. `wait` lets a test wait for a future of the timeline: a pump in the test's loop runs the
actions of the timeline until the future is done. It then stops until the test's loop is idle, so
that the test continues at the very moment at which its future was done.

    test's loop     await ──────────────────────> continues ── await ─────>
    pump                   step step step (done)                    step step
    timeline               10.000     10.004      stands still      10.004

Code that runs in `loop`, a virtual loop for the test's own coroutines, needs no pump.

Not here: the events that a test waits for (`cluster`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, TypeVar

from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.tasks.internals import enter_task, leave_task, running_loop, set_running_loop

T = TypeVar("T")

log = logging.getLogger("shardbus.testing")

WAIT_MAX_S = 3600.0
"""Virtual seconds, at most, for which a test waits for one thing."""
RUN_MAX_S = 86_400.0
"""Virtual seconds, at most, for a coroutine that a test runs to its end."""
BURST = 500
"""Actions of the timeline that run before the test's loop has a turn."""
TURNS_MAX = 100
"""Turns, at most, that the pump leaves to a test's loop which is not idle."""
READY = "_ready"
"""The attribute of asyncio's loops that has the callbacks which are ready to run."""
TURNS_BLIND = 10
"""Turns that it leaves to a loop that does not show whether it is idle."""


class VirtualTime:
    """The time of a timeline, as seen by a test."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.loop = VirtualLoop(timeline, log_failure)  # type: ignore[abstract]
        """Runs the test's own coroutines in virtual time, and the clients of the test."""
        self._waiting: dict[asyncio.Future[None], float] = {}
        """The waiting futures of the test's loop, each with the virtual time at which it gives
        up."""
        self._pumps = self._steps = self._fired = False

    @contextmanager
    def entered(self, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
        """Make a virtual loop the running one, for a call that uses it: by default `loop`."""
        outer, inner = running_loop(), loop or self.loop
        if outer is inner:
            yield
            return
        with _left(outer):
            set_running_loop(inner)
            try:
                yield
            finally:
                set_running_loop(None)

    # ---- waiting

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine in virtual time until it ends; return its result.

        Raises:
            RuntimeError: this is called from within virtual time.
            TimeoutError: it has not ended within `RUN_MAX_S`.
        """
        future = self.begin(work)
        self._check_outside()
        end = self.timeline.now + RUN_MAX_S
        with self._moving():
            while not future.done():
                if self.timeline.now > end:
                    raise _too_long(RUN_MAX_S)
                self._step()
        return future.result()

    def begin(
        self, work: Awaitable[T], loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Future[T]:
        """Begin to run it in a virtual loop; return its future there."""
        if isinstance(work, Pending):
            work.awaited = True
            return work.future
        with self.entered(loop):
            return asyncio.ensure_future(work)

    async def wait(self, future: asyncio.Future[T], longest: float = WAIT_MAX_S) -> T:
        """Wait for a future of a virtual loop, in any loop.

        Raises:
            TimeoutError: it is not done within `longest` virtual seconds.
        """
        running, loop = asyncio.get_running_loop(), future.get_loop()
        if running is loop:
            return await future
        if future.done():
            return future.result()
        waiter: asyncio.Future[None] = running.create_future()

        def wake(_: object) -> None:
            self._fired = True
            if not waiter.done():
                waiter.set_result(None)

        with self.entered(loop):
            future.add_done_callback(wake)
        if not isinstance(running, VirtualLoop):
            self._waiting[waiter] = self.timeline.now + longest
            self._pump_in(running)
        try:
            await waiter
        except asyncio.CancelledError:
            with self.entered(loop):
                future.cancel()
            raise
        finally:
            self._waiting.pop(waiter, None)
        return future.result()

    async def advance(self, seconds: float) -> None:
        """Wait until that much virtual time has passed."""
        with self.entered():
            reached: asyncio.Future[None] = self.loop.create_future()

        def reach() -> None:
            if not reached.done():
                reached.set_result(None)

        self.timeline.later(seconds, reach)
        await self.wait(reached, inf)

    # ---- the pump

    def _pump_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._pumps:
            self._pumps = True
            loop.call_soon(self._pump, loop, 0)

    def _pump(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """Run actions until something that the test waits for is done."""
        if not self._waiting:
            self._pumps = False
            return
        if self._fired and _has_work(loop, turns):
            loop.call_soon(self._pump, loop, turns + 1)
            return
        self._fired = False
        try:
            with self._moving():
                for _ in range(BURST):
                    self._step()
                    if self._fired:
                        break
        except Exception as error:
            self._give_up(error, inf)
        self._give_up(_too_long(WAIT_MAX_S), self.timeline.now)
        loop.call_soon(self._pump, loop, 0)

    def _step(self) -> None:
        if self.timeline.empty:
            raise RuntimeError("the test waits for what cannot happen: nothing is scheduled")
        self.timeline.step()

    def _give_up(self, error: Exception, limit: float) -> None:
        """Fail all waits that should have ended before `limit`."""
        for waiter, until in list(self._waiting.items()):
            if until <= limit and not waiter.done():
                waiter.set_exception(error)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Let actions of the timeline run, outside of the test's loop and task."""
        self._check_outside()
        self._steps = True
        try:
            with _left(running_loop()):
                yield
        finally:
            self._steps = False

    def _check_outside(self) -> None:
        if self._steps:
            raise RuntimeError("this runs in virtual time already: await it instead")

    def close(self) -> None:
        """End all that still runs in virtual time."""
        self.loop.kill()
        self.loop.discard()
        self._give_up(RuntimeError("the test cluster has ended"), inf)


class Pending(Generic[T]):
    """Something under way in virtual time. Await it in any loop."""

    def __init__(self, time: VirtualTime, future: asyncio.Future[T]) -> None:
        self._time, self.future = time, future
        self.awaited = False

    def __await__(self) -> Generator[Any, None, T]:
        self.awaited = True
        return self._time.wait(self.future).__await__()

    def done(self) -> bool:
        """True if it has ended."""
        return self.future.done()

    @property
    def error(self) -> BaseException | None:
        """The error by which it has ended."""
        ended = self.future.done() and not self.future.cancelled()
        return self.future.exception() if ended else None

    def cancel(self) -> bool:
        """Cancel it."""
        with self._time.entered(self.future.get_loop()):
            return self.future.cancel()


@contextmanager
def _left(outer: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Leave the running loop and its current task for a while. Asynchronous generators that begin
    meanwhile are not of that loop."""
    task = asyncio.current_task(outer) if outer is not None else None
    hooks = sys.get_asyncgen_hooks()
    if outer is not None and task is not None:
        leave_task(outer, task)
    set_running_loop(None)
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        set_running_loop(outer)
        if outer is not None and task is not None:
            enter_task(outer, task)


def _has_work(loop: asyncio.AbstractEventLoop, turns: int) -> bool:
    """True if callbacks of the loop are ready to run, behind the asking one."""
    ready = getattr(loop, READY, None)
    if ready is None:
        return turns < TURNS_BLIND
    return bool(ready) and turns < TURNS_MAX


def _too_long(seconds: float) -> TimeoutError:
    return TimeoutError(f"this has not happened within {seconds:g} s of virtual time")


def log_failure(context: dict[str, Any]) -> None:
    """Log an exception that no code of a virtual loop caught, as asyncio does."""
    error = context.get("exception")
    log.error("%s", context.get("message"), exc_info=error if error is not None else False)
