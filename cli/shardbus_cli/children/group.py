"""The events and effects of a group of child processes, and the protocol of its machine. Pure.

A child keeps its `number`. Each process of it is a **run**. A run sends reports, one JSON object in
a line, which become events:

    loaded    the application is loaded          (`dev` only)
    serves    the node listens                   `leave_within`: its seconds to leave
    ready     the node is Up, with its regions registered
    closed    the node takes no more shards, and the whole cluster has seen it
    leaves    the node has begun to leave, or its membership has ended
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

OK, FAILED = 0, 1
FIRST_PAUSE_S = 0.5
RAN_WELL_S = 60.0

Report = Mapping[str, Any]


class Word(Enum):
    """A command to a child. `LOAD`, `RUN` and `END` are of `dev`, the others of a unit."""

    LOAD = "load"
    RUN = "run"
    END = "end"
    CLOSE = "close"
    LEAVE = "leave"
    STOP = "stop"


# Events


class StartAll(msgspec.Struct, frozen=True):
    """Start the children."""


class ChildLoaded(msgspec.Struct, frozen=True):
    """A run has loaded the application."""

    run: int


class ChildServes(msgspec.Struct, frozen=True):
    """A run listens. `leave_within`: seconds within which it leaves or ends itself."""

    run: int
    leave_within: float


class ChildReady(msgspec.Struct, frozen=True):
    """A run is Up, with its regions registered."""

    run: int


class ChildClosed(msgspec.Struct, frozen=True):
    """A run takes no more shards, and the whole cluster has seen it."""

    run: int


class ChildLeaves(msgspec.Struct, frozen=True):
    """A run has begun to leave, or its membership has ended."""

    run: int


class ChildExited(msgspec.Struct, frozen=True):
    """The process of a run has ended; a negative `code` is a signal."""

    run: int
    code: int


class SourceChanged(msgspec.Struct, frozen=True):
    """Source files have changed."""


class Interrupt(msgspec.Struct, frozen=True):
    """End the children; a second one ends them at once."""


ChildEvent = (
    StartAll
    | ChildLoaded
    | ChildServes
    | ChildReady
    | ChildClosed
    | ChildLeaves
    | ChildExited
    | SourceChanged
    | Interrupt
)

REPORTS: Mapping[str, Callable[[int], ChildEvent]] = {
    "loaded": ChildLoaded,
    "ready": ChildReady,
    "closed": ChildClosed,
    "leaves": ChildLeaves,
}


def event_of(run: int, report: Report) -> ChildEvent:
    """Return the event that a run reports."""
    if report["is"] == "serves":
        return ChildServes(run, float(report["leave_within"]))
    return REPORTS[report["is"]](run)


# Effects


class SpawnChild(msgspec.Struct, frozen=True):
    """Start a process of child `number`, which joins by `peers` (numbers of children)."""

    run: int
    number: int
    peers: tuple[int, ...] = ()


class CommandChild(msgspec.Struct, frozen=True):
    """Send a word to a run."""

    run: int
    word: Word


class KillChild(msgspec.Struct, frozen=True):
    """Kill the process of a run."""

    run: int


class AllReady(msgspec.Struct, frozen=True):
    """Report that all children are ready. `generation` is 1 at the first start."""

    generation: int = 1


class RestartLater(msgspec.Struct, frozen=True):
    """Report that a child ended and is restarted after `seconds`."""

    number: int
    code: int
    seconds: float


class ChildBack(msgspec.Struct, frozen=True):
    """Report that a child that had ended is ready again."""

    number: int


class ChildLeft(msgspec.Struct, frozen=True):
    """Report that a child left by order and stays away."""

    number: int


class NotLoaded(msgspec.Struct, frozen=True):
    """Report that a generation failed, and that the program waits for a change. `kept`: the
    children of the earlier one still serve."""

    kept: bool


class NotStarted(msgspec.Struct, frozen=True):
    """Report that the system cannot start a process. Made by the supervisor."""

    number: int
    failed: OSError


class Ending(msgspec.Struct, frozen=True):
    """Report that the children end because a signal has come."""


class EndAll(msgspec.Struct, frozen=True):
    """End the program with this exit code: no process is left."""

    code: int


ChildEffect = (
    SpawnChild
    | CommandChild
    | KillChild
    | AllReady
    | RestartLater
    | ChildBack
    | ChildLeft
    | NotLoaded
    | NotStarted
    | Ending
    | EndAll
)


class ChildGroup(Protocol):
    """The machine that decides about a group of children. `now` is in seconds."""

    @property
    def ending(self) -> list[int]:
        """The numbers of the children that have got the command to end and still run."""
        ...

    @property
    def ends_by(self) -> float:
        """The time at which the children of a group that ends are killed."""
        ...

    def handle(self, event: ChildEvent, now: float) -> list[ChildEffect]:
        """Handle an event and return its effects."""
        ...

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, None if there is none."""
        ...

    def tick(self, now: float) -> list[ChildEffect]:
        """Act on the deadlines that have passed."""
        ...


class RestartPause(msgspec.Struct):
    """The pause before a restart: it doubles with each end up to `longest` seconds, and is short
    again for a child that was ready for `RAN_WELL_S`."""

    longest: float
    ends: int = 0

    def next(self, ready_s: float) -> float:
        """Return the pause in seconds after a run that was ready for `ready_s`."""
        if ready_s >= RAN_WELL_S:
            self.ends = 0
        pause = min(FIRST_PAUSE_S * 2.0**self.ends, self.longest)
        self.ends += pause < self.longest
        return pause
