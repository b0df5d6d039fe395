"""The gate in front of a node's entities: no handler runs while the node is suspended.

The cluster thread writes `valid_until`, the time until which membership has confirmed this node
(`membership.suspension`). The application compares it with the clock before it handles anything:

    work                                        checked
    a run of messages from a session            at its start, and every 64 messages
    the mailbox of an entity                    at its start, and every 16 messages
    a timer, an outcome of piped work           each
    a handler, start or on_stop that waited     each time it goes on
    a save that the store has acknowledged      before the entity goes on
    a start, a recovery of remembered entities  each, or once in a turn of the loop

A process that was stopped finds the time passed at its first check, before any message of another
thread reaches it.

**While the gate is shut** messages wait in their mailboxes, within the bounds of these; handlers
that waited stay where they are; entities neither start nor stop, and none is passivated. Asks keep
their deadlines. A hand-off waits, and its deadline cuts the entity off as usual: `on_stop` may use
state that lives elsewhere by then, so it does not run.

**It opens** when the clock is before `valid_until` again: `poll`, which the ticker calls every
50 ms, then lets everything go on in order. `end` keeps it shut for good: the process ends, handlers
that waited are cancelled, and only their clean-up runs.

Not covered: one handler that computes on without `await` past the time, its worker threads, and
tasks that it has created itself.

Source: docs/downing.md; S2.4, S4.13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from shardbus.transport.suspend_clock import suspend_clock


@dataclass(slots=True, eq=False, repr=False)
class SuspensionGate:
    """Whether the entities of one node may handle messages now. `clock` is the clock of
    `valid_until`, in seconds."""

    clock: Callable[[], float] = suspend_clock
    valid_until: float = inf
    """Written by the cluster thread as a whole."""
    closed: bool = False
    """The last check found the gate shut, and `poll` has not opened it since."""
    ended: bool = False
    reason: str = ""
    """Why membership has suspended this node; empty while it has not."""
    since: float = 0.0
    """When it did."""
    suspensions: int = 0
    """How often it did."""
    _on_open: list[Callable[[], object]] = field(default_factory=list)
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def confirmed(self, until: float) -> None:
        """Set the time until which entities may handle messages. Called in the cluster thread."""
        self.valid_until = until

    def is_shut(self) -> bool:
        """True if no entity may handle anything now."""
        return self.closed or self.clock() >= self.valid_until

    def close_if_due(self) -> bool:
        """Close the gate once its time is over. Returns True if it is closed."""
        if self.closed:
            return True
        if self.clock() < self.valid_until:
            return False
        self.closed = True
        return True

    def on_open(self, action: Callable[[], object]) -> None:
        """Call this each time the gate opens."""
        self._on_open.append(action)

    def opened(self) -> asyncio.Future[None]:
        """Return a future that is done once the gate may be open; check again then."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def passed(self) -> None:
        """Wait until the gate is open, or has ended."""
        while self.close_if_due() and not self.ended:
            await self.opened()

    def poll(self) -> None:
        """Open the gate if it may be open."""
        if self.closed and not self.ended and self.clock() < self.valid_until:
            self.closed = False
            self._wake()
            for action in self._on_open:
                action()

    def end(self) -> None:
        """Keep the gate shut: the process ends. It wakes handlers that wait at it."""
        self.closed = self.ended = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- for pages

    def suspended(self, reason: str) -> None:
        """Note that membership has suspended this node."""
        if not self.reason:
            self.suspensions += 1
            self.since = self.clock()
        self.reason = reason

    def resumed(self) -> None:
        """Note that membership has confirmed this node again."""
        self.reason = ""

    def describe(self) -> str:
        """Describe why the gate is shut and for how long; empty if it is not. A process that has
        just woken up knows no reason yet."""
        if self.reason:
            return f"suspended, because {self.reason} ({self.clock() - self.since:.1f} s)"
        if self.closed and not self.ended:
            return "suspended, because membership has not confirmed this node lately"
        return ""
