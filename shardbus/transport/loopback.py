"""A session of a process with itself: no frames and no window, the same rules.

What is flushed is received at once, but never inside of a sender's call: the entity that sends may
be the one that receives. While the receiver has no room, senders that await wait here, too.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio

from shardbus.transport.allowance import Allowance
from shardbus.transport.asks import Clock
from shardbus.transport.intake import Intake
from shardbus.transport.receiver import Receiver
from shardbus.transport.room import wake
from shardbus.transport.session import Session
from shardbus.transport.window import WINDOW_BYTES


class Loopback(Session):
    """See the module."""

    __slots__ = ()
    local = True

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        receiver: Receiver,
        allowance: Allowance | None = None,
    ) -> None:
        super().__init__(name, loop, clock, receiver, lambda kind, seq, ack, body: True, allowance)

    def _make_intake(self, receiver: Receiver, clock: Clock) -> Intake:
        free, window = self._free, self._window
        return Intake(
            self, receiver, window, self._asks, self._loop, clock, free, relayed_pass=True
        )

    def flush(self) -> None:
        runs, weight = self._runs, self._weight
        if runs:
            self._reset_batch()
            self._free()
            self._intake.take_runs(runs, weight)

    def pause(self) -> None:
        super().pause()
        self.writable = False

    def _free(self) -> None:
        if not self._intake.holding:
            self.writable = True
            wake(self._room)

    def _spill(self) -> None:
        """Never deliver inside a sender's call: the entity that sends may be the one that
        receives."""
        self.writable = self._weight < WINDOW_BYTES and not self._intake.holding
        if not self.writable and self.is_full:
            self._tell_key = self._ask_key = None  # the next message has to open a run
