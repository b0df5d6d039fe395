"""The failures of one entity type's handlers and starts, for operators.

    a handler raises ───────────────────────> its method
    its answer cannot be encoded ───────────> its method
    the constructor, a load, `on_start` ────> `ON_START`
    `on_stop` raises ───────────────────────> `ON_STOP`

Each is counted where the exception is at hand already, so a message that is handled costs nothing.

Exceptions are kept as text (`error_text`): one that is kept as an object keeps its frames, and with
them the entity. A traceback takes longer to write than a failure to handle, so a method has one
written at most every `STACK_EVERY_S`.

**Bounds.** `METHODS_MAX` methods, of which those that failed last stay; `KEPT` exceptions of each;
`STARTS_MAX` entities that did not start. Texts are cut.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from shardbus.error_text import described, text_of, traceback_of, type_name

ON_START, ON_STOP = "on_start", "on_stop"
"""In place of a method. `on_start` stands for all of a start."""
METHODS_MAX = 100
KEPT = 3
"""Exceptions of one method."""
STARTS_MAX = 10
STACK_EVERY_S = 1.0
"""Seconds between two tracebacks of one method."""
STACK_MAX = 2000
"""Characters of a traceback: its end, which has the frames of the application."""
ERROR_MAX = 500
"""Characters of an exception's text."""


class Failure(NamedTuple):
    """A failure, at a time of the loop. `stack` is empty if another one was written shortly
    before."""

    at: float
    entity_id: str
    error: str
    text: str
    stack: str


class MethodFailures:
    """The failures of one method: how many, and the last ones, oldest first."""

    __slots__ = ("count", "last", "written_at")

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[Failure] = deque(maxlen=KEPT)
        self.written_at: float | None = None

    def add(self, now: float, entity_id: str, error: BaseException, what: str) -> None:
        """Count a failure and keep it."""
        self.count += 1
        stack = ""
        if self.written_at is None or now - self.written_at >= STACK_EVERY_S:
            self.written_at, stack = now, traceback_of(error)[-STACK_MAX:]
        text = what + text_of(error, ERROR_MAX)
        self.last.append(Failure(now, entity_id, type_name(error), text, stack))


class FailedStart(NamedTuple):
    """An entity's last start that failed, at a time of the loop. `times`: in a row. `unreadable`:
    no version of its class can read its stored state."""

    at: float
    times: int
    error: str
    unreadable: bool


class HandlerFailures:
    """The failures of one type: `methods` in the order in which they last failed, `starts` by
    entity."""

    __slots__ = ("methods", "starts")

    def __init__(self) -> None:
        self.methods: dict[str, MethodFailures] = {}
        self.starts: dict[str, FailedStart] = {}

    def add(
        self, now: float, method: str, entity_id: str, error: BaseException, what: str = ""
    ) -> None:
        """Count a failure of a method, and keep it in place of the oldest one. `what` precedes the
        text of the exception."""
        failures = self.methods.pop(method, None) or MethodFailures()
        failures.add(now, entity_id, error, what)
        self.methods[method] = failures
        if len(self.methods) > METHODS_MAX:
            del self.methods[next(iter(self.methods))]

    def not_started(
        self, now: float, entity_id: str, error: BaseException, *, unreadable: bool
    ) -> None:
        """Remember why an entity did not start, in place of the entity that failed first."""
        before = self.starts.pop(entity_id, None)
        times = 1 if before is None else before.times + 1
        why = text_of(error) if unreadable else described(error, ERROR_MAX)
        self.starts[entity_id] = FailedStart(now, times, why, unreadable)
        if len(self.starts) > STARTS_MAX:
            del self.starts[next(iter(self.starts))]

    def started(self, entity_id: str) -> None:
        """Forget the failures of an entity that has started."""
        self.starts.pop(entity_id, None)

    @property
    def unreadable(self) -> dict[str, str]:
        """Why the stored state of an entity cannot be read, by entity."""
        return {key: start.error for key, start in self.starts.items() if start.unreadable}
