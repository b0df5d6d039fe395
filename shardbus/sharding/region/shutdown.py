"""How a region shuts down: everything it hosts moves away first.

    begin ──> asks the coordinator, every `retry` seconds ──confirmed, hosts nothing──> done
                 └──no coordinator for `patience` seconds──> alone: stops its shards itself ──> done

A region that has never seen a coordinator does not wait: it stops its shards at once.

Source: S2.50, S2.51.
"""

from __future__ import annotations

from enum import Enum


class ShutdownStep(Enum):
    """What the region must do now."""

    WAIT = "wait"
    ASK = "ask"
    """Ask the coordinator to move everything away."""
    STOP = "stop"
    """No coordinator helps: stop what is hosted."""
    DONE = "done"


class RegionShutdown:
    """The shutdown of one region.

    Args:
        patience: seconds to wait for a coordinator.
        retry: seconds between two requests to it.
    """

    __slots__ = ("_ask_at", "_confirmed", "_give_up_at", "_patience", "_retry", "alone", "done")

    def __init__(self, patience: float, retry: float) -> None:
        self.alone = False
        """The region hosts nothing any more, whatever a coordinator sends."""
        self.done = False
        self._patience, self._retry = patience, retry
        self._ask_at: float | None = None
        self._give_up_at: float | None = None
        self._confirmed = False

    def deadlines(self) -> tuple[float | None, float | None]:
        """Return when the next steps are due."""
        return self._ask_at, self._give_up_at

    def begin(self, now: float) -> None:
        """Start the shutdown, once."""
        if self._ask_at is None and not self.done:
            self._ask_at = now

    def on_coordinator(self, *, here: bool, ever: bool, now: float) -> None:
        """Set the deadline for help: there is a coordinator (`here`), or once was one (`ever`)."""
        if self._ask_at is None or here:
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + (self._patience if ever else 0.0)

    def confirm(self) -> None:
        """Record that the coordinator has moved everything away and allocates nothing here."""
        self._confirmed = self._ask_at is not None

    def step(self, now: float, *, hosts: bool, proxy: bool) -> ShutdownStep:
        """Return what to do now. After STOP, call it again."""
        if self._ask_at is None or self.done:
            return ShutdownStep.WAIT
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self.alone = True
            if hosts:
                return ShutdownStep.STOP
        if not hosts and (self._confirmed or self.alone or proxy):
            self.done = True
            self._ask_at = self._give_up_at = None
            return ShutdownStep.DONE
        if now >= self._ask_at:
            self._ask_at = now + self._retry
            return ShutdownStep.ASK
        return ShutdownStep.WAIT
