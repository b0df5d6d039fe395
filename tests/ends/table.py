"""The ends of a call, and the events that may come at the same time: one table for every shell of a
store.

A call that leaves the process ends in one of a few ways, and while it is under way a few things
happen. A shell (`stands`) says how it begins, its goal, and how it is closed. The table does
the rest, on a loop with virtual time:

    well       the store does it, and says so
    refused    the store has surely not done it
    in doubt   the store has done it, and the answer is lost
    late       it is done and answered after every deadline
    odd        a defect: the store raises an error that no store may raise

    meanwhile  nothing, the same again, a pause of the process, a close

After two calls with any ends the store is well. **The law:** a shell that was not closed has
reached its goal, once; a closed one has nothing left, and does nothing any more; no task has
failed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import product
from typing import Any, Protocol, cast

from shardbus.errors import StoreUnavailable
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.task_set import failed_tasks

CALL_S = 0.01
"""Seconds that a call takes."""
LATE_S = 40.0
"""Seconds after which a late answer comes: later than any deadline of a shell."""
QUIET_S = 90.0
"""Seconds after which everything is over."""
PAUSE_S = 15.0
"""Seconds for which the process is paused, or a machine sleeps."""


class End(Enum):
    """How a call ends."""

    WELL = "well"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"
    LATE = "late"
    ODD = "odd"


class Meanwhile(Enum):
    """The event that comes while the first call is under way."""

    NOTHING = "nothing"
    AGAIN = "again"
    PAUSE = "pause"
    CLOSE = "close"


class EndingStore:
    """A store in memory whose next calls end as `ends` says."""

    def __init__(self, ends: Iterable[End]) -> None:
        self.data = MemoryData()
        self.inner = MemoryStore(self.data, clock=asyncio.get_running_loop().time)
        self.ends = deque(ends)
        self.calls: list[str] = []
        self.called_at = 0.0

    def silent(self) -> bool:
        """True if no call has come for longer than a late one takes."""
        return asyncio.get_running_loop().time() - self.called_at > LATE_S + 5.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            end = self.ends.popleft() if self.ends else End.WELL
            self.calls.append(f"{name}: {end.value}")
            self.called_at = asyncio.get_running_loop().time()
            work = asyncio.ensure_future(self._end(end, lambda: method(*arguments, **named)))
            work.add_done_callback(lambda done: done.exception())  # whether it is awaited or not
            await asyncio.wait([work])  # a cancelled call does not undo the work
            return work.result()

        return call

    async def _end(self, end: End, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(LATE_S if end is End.LATE else CALL_S)
        if end is End.REFUSED:
            raise StoreUnavailable("nothing was done", definite=True)
        if end is End.ODD:
            raise ZeroDivisionError("a defect of the store")
        answer = await work()
        if end is End.IN_DOUBT:
            raise StoreUnavailable("the answer is lost")
        return answer


class Stand(Protocol):
    """One shell over a store. `events` has its actions, one line each."""

    events: list[str]

    def begin(self) -> None:
        """Begin the first call."""

    def again(self) -> None:
        """Request the same once more."""

    def close(self) -> None:
        """End the shell."""

    def missing(self) -> str:
        """Return the goals that it missed, or reached twice; empty if all is well."""

    def left(self) -> str:
        """Return the resources that a closed shell still has; empty if none."""


Rows = list[tuple[tuple[End, End], Meanwhile]]


def rows() -> Rows:
    """Return every row of the table."""
    return list(product(product(End, End), Meanwhile))


async def judge(
    make: Callable[[EndingStore], Stand], ends: tuple[End, End], then: Meanwhile
) -> str:
    """Run one row; return the broken laws, empty if all hold."""
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    store = EndingStore(ends)
    await store.inner.start()
    stand = make(store)
    with muted():
        stand.begin()
        await asyncio.sleep(CALL_S / 2)
        if then is Meanwhile.AGAIN:
            stand.again()
        elif then is Meanwhile.PAUSE:
            loop.paused_until = loop.timeline.now + PAUSE_S
        missing = ""
        if then is not Meanwhile.CLOSE:
            await asyncio.sleep(QUIET_S)
            missing = stand.missing()
        stand.close()
        done = list(stand.events)
        await asyncio.sleep(QUIET_S)
    more = "" if stand.events == done else f"after its end: {stand.events[len(done) :]}"
    failed = f"{failed_tasks(loop)} tasks have failed" if failed_tasks(loop) else ""
    wrongs = "; ".join(filter(None, (missing, stand.left(), more, failed)))
    return f"{wrongs} (calls: {', '.join(store.calls[:12])})" if wrongs else ""


@contextmanager
def muted() -> Iterator[None]:
    """Let nothing be logged: the table has hundreds of rows with errors."""
    logger = logging.getLogger("shardbus")
    before, logger.disabled = logger.disabled, True
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logger.disabled = before
