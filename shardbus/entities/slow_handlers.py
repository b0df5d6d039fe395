"""Handlers that take too long, found by looking, never by work per message.

    waits    once a second the sweep marks the turns that are new, and names those that it marked
             `slow_handler_after` ago: the handler, where its coroutine is suspended, and which of
             its asks have no answer
    blocks   while the loop does not turn, the cluster thread looks who runs in it, every 250 ms;
             the same handler all through `app_block_warning` is named, with the thread's stack

Each such handler is counted once, and told by one warning; of several of one type within a few
seconds only the first is told, and the next warning says how many were not. A handler that holds
the interpreter's lock, as some compiled code does, stops the cluster thread, too, and is not seen.

Source: B.137, N.20; docs/how-to/tune.md.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

from shardbus.entities.eager import EagerTask, coroutine_of
from shardbus.entities.running_handlers import RunningHandler, RunningHandlers
from shardbus.transport.asks import CoarseClock

log = logging.getLogger("shardbus.entity")

QUIET_S = 10.0
"""Between two warnings of one kind about one type."""
FRAMES_MAX = 6
ASKS_MAX = 3
WAITED, BLOCKED = "waited", "blocked"
_OURS = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
"""Files that say nothing about the application."""


@dataclass(slots=True)
class _Held:
    """Who runs while the loop does not turn, since when, and whether that has been told."""

    running: RunningHandler
    since: float
    told: bool = False


class SlowHandlers:
    """See the module. One per node, made in the application's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, blocked_after: float) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """Slow handlers by entity type and what they did, `waited` or `blocked`. Both threads
        count: copy it before you go through it."""
        self._loop, self._blocked_after = loop, blocked_after
        self._thread = threading.get_ident()
        self._held: _Held | None = None
        self._stalled = 0.0
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._untold: Counter[tuple[str, str]] = Counter()

    # ---- in the application's loop

    def look(self, waiting: RunningHandlers, limit: float, tick: int) -> None:
        """Find handlers of one type that wait for more than `limit` seconds, 0 for none. About once
        a second; `tick` is coarse time."""
        for turn in reversed(waiting.turns.values()):
            if turn.since:
                break
            turn.since = max(tick, 1)
        ticks = int(limit * 1000) // CoarseClock.TICK_MS
        for turn in waiting.turns.values():
            if not ticks or tick - turn.since < ticks:
                break
            if not turn.told:
                turn.told = True
                self._waited(turn, waiting.running(turn), (tick - turn.since) * CoarseClock.TICK_MS)

    def _waited(self, turn: EagerTask, who: RunningHandler | None, ms: int) -> None:
        if who is None:
            return
        text = f"{who} has waited {ms // 1000} s, at {' < '.join(suspended(turn))}"
        asked = turn.asking.unanswered() if turn.asking is not None else []
        if asked:
            names = ", ".join(f"{type} {id!r}" for type, id in asked[:ASKS_MAX])
            more = f" and {len(asked) - ASKS_MAX} others" if len(asked) > ASKS_MAX else ""
            text += f"; no answer yet from {names}{more}"
        self._tell(who.entity_type, WAITED, text)

    # ---- in the cluster thread

    def stalled(self, seconds: float) -> None:
        """For so long the application's loop has not turned; 0: it turns."""
        before, self._stalled = self._stalled, seconds
        running = self._running() if seconds and self._blocked_after else None
        held = self._held
        if running is None:
            self._held = None
        elif held is None or held.running != running:
            self._held = _Held(running, before if seconds > before else 0.0)
        elif not held.told and seconds - held.since >= self._blocked_after:
            held.told = True
            stack = walk_stack(sys._current_frames().get(self._thread))
            text = f"{running} blocks the loop since {seconds - held.since:.1f} s, at "
            self._tell(running.entity_type, BLOCKED, text + " < ".join(places(stack)))

    def _running(self) -> RunningHandler | None:
        """The handler in which the application's loop is now."""
        task: Any = asyncio.current_task(self._loop)
        if not isinstance(task, EagerTask) or task.owner is None:
            return None
        running: RunningHandler | None = task.owner.running(task)
        return running

    # ---- telling

    def _tell(self, entity_type: str, what: str, text: str) -> None:
        key, now = (entity_type, what), self._loop.time()
        self.counts[key] += 1
        if now < self._quiet_until.get(key, now):
            self._untold[key] += 1
            return
        self._quiet_until[key] = now + QUIET_S
        others = self._untold.pop(key, 0)
        log.warning("%s%s", text, f" ({others} others before)" if others else "")


def suspended(turn: EagerTask) -> list[str]:
    """Where the code of a turn waits, innermost first."""
    frames: list[tuple[FrameType, int]] = []
    inner: Any = coroutine_of(turn)
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return places(reversed(frames))


def places(stack: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Frames in words, as far as they are the application's or a library's."""
    codes = [(frame.f_code, line) for frame, line in stack]
    places = [
        f"{code.co_filename}:{line} in {code.co_name}"
        for code, line in codes
        if not code.co_filename.startswith(_OURS)
    ]
    return places[:FRAMES_MAX] or ["an unknown place"]
