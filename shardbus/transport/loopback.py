"""A session of a process with itself: no frames and no window, the same rules.

What is flushed is received at once, but never inside of a sender's call: the entity that sends may
be the one that receives. While the receiver has no room, senders that await wait here, too.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio

from shardbus.transport.asks import CoarseClock
from shardbus.transport.inbox import Inbox
from shardbus.transport.receiver import Receiver
from shardbus.transport.room import wake
from shardbus.transport.send_buffer import SendBufferLimit
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
        clock: CoarseClock,
        receiver: Receiver,
        send_buffer_limit: SendBufferLimit | None = None,
    ) -> None:
        super().__init__(
            name, loop, clock, receiver, lambda kind, seq, ack, body: True, send_buffer_limit
        )

    def _make_intake(self, receiver: Receiver, clock: CoarseClock) -> Inbox:
        free, window = self._free, self._window
        return Inbox(self, receiver, window, self._asks, self._loop, clock, free, relayed_pass=True)

    def flush(self) -> None:
        runs, weight = self._runs, self._weight
        if runs:
            self._reset_batch()
            self._free()
            self._inbox.take_runs(runs, weight)

    def pause(self) -> None:
        super().pause()
        self.writable = False

    def _free(self) -> None:
        if not self._inbox.holding:
            self.writable = True
            wake(self._room)

    def _spill(self) -> None:
        """Never deliver inside a sender's call: the entity that sends may be the one that
        receives."""
        self.writable = self._weight < WINDOW_BYTES and not self._inbox.holding
        if not self.writable and self.is_full:
            self._tell_key = self._ask_key = None  # the next message has to open a run
