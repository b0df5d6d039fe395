"""How a region ends: everything it hosts moves away first.

    begin ──> asks the coordinator, again and again ──confirmed, nothing left──> done
                 └──no coordinator for `patience`──> alone: it stops its shards itself ──> done

Without a coordinator patience has an end; if there never was one, it has no beginning.

Source: S2.50, S2.51; C.8.
"""

from __future__ import annotations

from enum import Enum


class DrainStep(Enum):
    """What is to be done now."""

    WAIT = "wait"
    ASK = "ask"
    """Ask the coordinator to move everything away."""
    STOP = "stop"
    """Nobody helps: stop what is hosted."""
    DONE = "done"


class Draining:
    """The end of one region. `retry`: seconds between two questions."""

    __slots__ = ("_asked_at", "_confirmed", "_give_up_at", "_patience", "_retry", "alone", "done")

    def __init__(self, patience: float, retry: float) -> None:
        self.alone = False
        """It hosts nothing any more, whatever a coordinator says."""
        self.done = False
        self._patience, self._retry = patience, retry
        self._asked_at: float | None = None
        self._give_up_at: float | None = None
        self._confirmed = False

    def deadlines(self) -> tuple[float | None, float | None]:
        """When the next step is due."""
        return self._asked_at, self._give_up_at

    def begin(self, now: float) -> None:
        """It shall end."""
        if self._asked_at is None and not self.done:
            self._asked_at = now

    def look_for_help(self, *, here: bool, ever: bool, now: float) -> None:
        """There is a coordinator (`here`), or at least there once was one (`ever`)."""
        if self._asked_at is None or here:
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + (self._patience if ever else 0.0)

    def confirm(self) -> None:
        """The coordinator says that nothing is left, and nothing will come."""
        self._confirmed = self._asked_at is not None

    def step(self, now: float, *, hosts: bool, proxy: bool) -> DrainStep:
        """What to do now. STOP is followed by another step."""
        if self._asked_at is None or self.done:
            return DrainStep.WAIT
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self.alone = True
            if hosts:
                return DrainStep.STOP
        if not hosts and (self._confirmed or self.alone or proxy):
            self.done = True
            self._asked_at = self._give_up_at = None
            return DrainStep.DONE
        if now >= self._asked_at:
            self._asked_at = now + self._retry
            return DrainStep.ASK
        return DrainStep.WAIT
