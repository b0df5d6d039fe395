"""Handlers that take too long, found by periodic checks, never by work per message.

    waits    once a second the sweep notes the tick for handlers that are new, and reports those
             that have waited for `slow_handler_after`: the handler, where its coroutine is
             suspended, and which of its asks have no answer
    blocks   while the loop does not turn, the cluster thread checks every 250 ms which handler
             runs in it; the same handler all through `app_block_warning` is reported with the
             thread's stack, and so is other code of the application that blocks it: a shard
             function, a class that decodes a message, a callback

Each such handler is counted once and reported by one warning. Of several of one type within 10 s
only the first is reported; the next warning gives the number of the others. A handler that holds
the interpreter's lock, as some compiled code does, stops the cluster thread, too, and is not found.

Source: B.137, N.20; docs/how-to/tune.md.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import msgspec

from shardbus.entities.running_handlers import RunningHandler, RunningHandlers
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.tasks import internals
from shardbus.tasks.eager import EagerTask
from shardbus.transport.asks import CoarseClock

log = GuardedLog("shardbus.entity")

QUIET_S = 10.0
"""Seconds between two warnings of one kind about one type."""
REPORTS_MAX = 20
"""Reports that are kept for operators to read."""
FRAMES_MAX = 6
ASKS_MAX = 3
WAITED, BLOCKED = "waited", "blocked"
WALKED_MAX = 500
"""Frames of one task that are looked at."""
_AWAITING = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"))
"""Of coroutines and generators: their frame, and the object they await. Python does not show which
asynchronous generator a coroutine is in, so a stack ends there."""
_OURS = (
    str(Path(__file__).parent),
    str(Path(internals.__file__).parent),
    str(Path(asyncio.__file__).parent),
)
"""Files of this package and of asyncio, left out of reports."""


class SlowReport(msgspec.Struct, frozen=True):
    """A report, at a time of the loop. `how` is `waited` or `blocked`."""

    at: float
    entity_type: str
    how: str
    text: str


class _BlockingHandler(msgspec.Struct):
    """The handler that runs while the loop does not turn; `since` in seconds of that stall."""

    running: RunningHandler
    since: float
    reported: bool = False


class SlowHandlers:
    """Finds and reports slow handlers. One per node, made in the application's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, blocked_after: float) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """Slow handlers by entity type and kind, `waited` or `blocked`. Both threads write it: copy
        it before iterating."""
        self._loop, self._blocked_after = loop, blocked_after
        self._thread = threading.get_ident()
        self._blocking: _BlockingHandler | None = None
        self._other_done = False
        """Other code is not reported in this stall: it was, or a handler has run in it."""
        self._stalled = 0.0
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._unreported: Counter[tuple[str, str]] = Counter()
        self._reports: deque[SlowReport] = deque(maxlen=REPORTS_MAX)

    def reports(self) -> tuple[SlowReport, ...]:
        """Return the last `REPORTS_MAX` reports, oldest first."""
        return tuple(self._reports.copy())  # a copy is one step: the other thread may append

    # ---- in the application's loop

    def check(self, running: RunningHandlers, limit: float, tick: int) -> None:
        """Report handlers of one type that wait for more than `limit` seconds, 0 for none. Called
        about once a second; `tick` is coarse time."""
        for eager in reversed(running.tasks.values()):
            if eager.seen_at:
                break
            eager.seen_at, eager.reported = max(tick, 1), False
        ticks = CoarseClock.ticks(limit)
        for eager in running.tasks.values():
            if not ticks or tick - eager.seen_at < ticks:
                break
            if not eager.reported:
                eager.reported = True
                ms = (tick - eager.seen_at) * CoarseClock.TICK_MS
                self._waited(eager, running.running(eager), ms)

    def _waited(self, eager: EagerTask, handler: RunningHandler | None, ms: int) -> None:
        if handler is None:
            return
        text = f"has waited {ms // 1000} s, at {' < '.join(suspended(eager))}"
        calls = eager.call_chain.unanswered() if eager.call_chain is not None else []
        if calls:
            names = ", ".join(f"{type} {id!r}" for type, id in calls[:ASKS_MAX])
            others = len(calls) - ASKS_MAX
            more = f" and {counted(others, 'other')}" if others > 0 else ""
            text += f"; no answer yet from {names}{more}"
        self._report(handler, WAITED, text)

    # ---- in the cluster thread

    def stalled(self, seconds: float) -> None:
        """Note for how many seconds the application's loop has not turned; 0: it turns."""
        before, self._stalled = self._stalled, seconds
        running = self._running() if seconds and self._blocked_after else None
        self._other_done = (seconds >= before > 0 and self._other_done) or running is not None
        blocking = self._blocking
        if running is None:
            self._blocking = None
            self._check_other(seconds)
        elif blocking is None or blocking.running != running:
            self._blocking = _BlockingHandler(running, before if seconds > before else 0.0)
        elif not blocking.reported and seconds - blocking.since >= self._blocked_after:
            blocking.reported = True
            stack = walk_stack(sys._current_frames().get(self._thread))
            text = f"blocks the loop since {seconds - blocking.since:.1f} s, at "
            self._report(running, BLOCKED, text + " < ".join(places(stack)))

    def _check_other(self, seconds: float) -> None:
        """Report code outside of handlers, once for each time that it blocks the loop."""
        if self._blocked_after and seconds >= self._blocked_after and not self._other_done:
            self._other_done = True
            stack = places(walk_stack(sys._current_frames().get(self._thread)))
            log.warning(
                "code outside of a handler blocks the loop since %.1f s, at %s",
                seconds,
                " < ".join(stack),
            )

    def _running(self) -> RunningHandler | None:
        """Return the handler that the application's loop is running."""
        task: Any = asyncio.current_task(self._loop)
        if not isinstance(task, EagerTask) or task.owner is None:
            return None
        running: RunningHandler | None = task.owner.running(task)
        return running

    # ---- reports

    def _report(self, handler: RunningHandler, what: str, text: str) -> None:
        entity_type, entity_id, method, _ = handler
        key, now = (entity_type, what), self._loop.time()
        self.counts[key] += 1
        if now < self._quiet_until.get(key, now):
            self._unreported[key] += 1
            return
        self._quiet_until[key] = now + QUIET_S
        others = self._unreported.pop(key, 0)
        self._reports.append(SlowReport(now, entity_type, what, f"{handler} {text}"))
        more = f" ({counted(others, 'other')} before)" if others else ""
        log.warning("%s of %s %r %s%s", method, entity_type, entity_id, text, more)


def suspended(eager: EagerTask) -> list[str]:
    """Return where the code of a task waits, innermost first."""
    return places(reversed(suspended_frames(eager)))


def suspended_frames(eager: EagerTask) -> list[tuple[FrameType, int]]:
    """Return the frames of the code of a task that waits, each with its line, innermost last."""
    return frames_of(eager.coroutine)


def frames_of(coroutine: Any) -> list[tuple[FrameType, int]]:
    """Return the frames of a coroutine and of the objects it awaits, each with its line, innermost
    last; at most `WALKED_MAX`."""
    frames: list[tuple[FrameType, int]] = []
    with suppress(Exception):  # a coroutine may await an object of any class
        while coroutine is not None and len(frames) < WALKED_MAX:
            kind = next((kind for kind in _AWAITING if hasattr(coroutine, kind[0])), None)
            if kind is None:
                break
            frame, awaited = (getattr(coroutine, name) for name in kind)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
            coroutine = awaited
    return frames


def places(stack: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Return frames as text, without frames of this package and of asyncio."""
    codes = [(frame.f_code, line) for frame, line in stack]
    places = [
        f"{code.co_filename}:{line} in {code.co_name}"
        for code, line in codes
        if not code.co_filename.startswith(_OURS)
    ]
    return places[:FRAMES_MAX] or ["an unknown place"]
