"""How a region shuts down: everything it hosts moves away first.

    begin ──> asks the coordinator, every `retry` seconds ──confirmed, hosts nothing──> done
                 └──no coordinator for `patience` seconds──> alone: stops its shards itself ──> done

A region that has no shards when it begins waits at most `EMPTY_S` for the confirmation, also if its
coordinator does not answer: it has nothing to move, and whatever it is given later it reports as
stopped. A region that is done without a confirmation registers again, as a proxy: otherwise the
coordinator gives it the same shards again and again. A region that no coordinator has registered
does not wait, also if a node that should coordinate is known: it never rules if the stored table
has another number of shards.

Source: S2.50, S2.51.
"""

from __future__ import annotations

from enum import Enum

EMPTY_S = 0.5
"""Seconds that a region without shards waits for the confirmation of its coordinator."""


class ShutdownStep(Enum):
    """The region's next action."""

    WAIT = "wait"
    ASK = "ask"
    """Ask the coordinator to move everything away."""
    STOP = "stop"
    """No coordinator helps: stop the hosted shards."""
    DONE = "done"


class RegionShutdown:
    """The shutdown of one region.

    Args:
        patience: seconds to wait for a coordinator.
        retry: seconds between two requests to it.
    """

    __slots__ = (
        "_ask_at", "_confirmed", "_empty_at", "_give_up_at", "_patience", "_retry", "alone", "done",
    )  # fmt: skip

    def __init__(self, patience: float, retry: float) -> None:
        self.alone = False
        """The region hosts nothing any more, whatever a coordinator sends."""
        self.done = False
        self._patience, self._retry = patience, retry
        self._ask_at: float | None = None
        self._give_up_at: float | None = None
        self._empty_at: float | None = None
        self._confirmed = False

    def deadlines(self) -> tuple[float | None, float | None, float | None]:
        """Return when the next steps are due."""
        return self._ask_at, self._give_up_at, self._empty_at

    def begin(self, now: float, *, hosts: bool) -> None:
        """Start the shutdown, once."""
        if self._ask_at is None and not self.done:
            self._ask_at = now
            self._empty_at = None if hosts else now + EMPTY_S

    def on_coordinator(self, *, here: bool, ever: bool, now: float) -> None:
        """Set the deadline for help: a node that should coordinate is known (`here`), or a
        coordinator has registered this region once (`ever`)."""
        if self._ask_at is None or (here and ever):
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + (self._patience if ever else 0.0)

    @property
    def confirmed(self) -> bool:
        """True if the coordinator has confirmed that the region hosts nothing."""
        return self._confirmed

    def confirm(self) -> None:
        """Record that the coordinator has moved everything away and allocates nothing here."""
        self._confirmed = self._ask_at is not None

    def step(self, now: float, *, hosts: bool, proxy: bool) -> ShutdownStep:
        """Return the next action. After STOP, call it again."""
        if self._ask_at is None or self.done:
            return ShutdownStep.WAIT
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self.alone = True
            if hosts:
                return ShutdownStep.STOP
        if self._empty_at is not None and now >= self._empty_at:
            self._empty_at = None
            self.alone |= not hosts
        if not hosts and (self._confirmed or self.alone or proxy):
            self.done = True
            self._ask_at = self._give_up_at = self._empty_at = None
            return ShutdownStep.DONE
        if now >= self._ask_at:
            self._ask_at = now + self._retry
            return ShutdownStep.ASK
        return ShutdownStep.WAIT
