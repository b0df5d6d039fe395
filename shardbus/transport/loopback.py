"""The session of a process with itself: no frames and no window, the same rules.

A flushed batch is received at once, but never inside a sender's call, because the sending entity
may be the receiving one. While the receiver has no room, senders that await their tells wait here,
too.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardbus.transport.asks import CoarseClock
from shardbus.transport.full_entities import Target
from shardbus.transport.inbox import Inbox, Receiver
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.session import Session, wake
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import SESSION_FEATURES


class Loopback(Session):
    """A session whose other side is this process."""

    __slots__ = ()
    local = True

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        receiver: Receiver[Session],
        send_buffer_limit: SendBufferLimit | None = None,
        sent: SentMessages | None = None,
    ) -> None:
        super().__init__(
            name, loop, clock, receiver, lambda kind, seq, ack, body: True, send_buffer_limit, sent
        )
        self.features = frozenset(SESSION_FEATURES)

    def _make_inbox(self, receiver: Receiver[Session], clock: CoarseClock) -> Inbox[Session]:
        free, window, asks, loop = self._free, self._window, self._asks, self._loop
        hold = self._on_hold
        return Inbox(self, receiver, window, asks, loop, clock, free, hold, relayed_pass=True)

    @property
    def _has_room(self) -> bool:
        return self._weight < WINDOW_BYTES and not self._inbox.holding

    @property
    def held_any(self) -> bool:
        return super().held_any or self._inbox.any_full

    def leave(self, leaves: Callable[[Target], bool]) -> None:
        """Bring what waits for these entities to them: no Flush follows here."""
        self._inbox.unlist(leaves)
        super().leave(leaves)

    def _when_taken(self, call: Callable[[], None]) -> None:
        """Call once the open batch has left, at the end of the loop iteration."""
        self._loop.call_soon(call)

    def flush(self) -> None:
        runs, weight = self._runs, self._weight
        if runs:
            entries, since = self._asks.entries, self._asked_since
            self._sent.leave(runs, entries, since, self._delayed, self._loop)
            self._reset_batch()
            self._free()
            self._inbox.receive_runs(runs, weight)

    def pause(self) -> None:
        super().pause()
        self.writable = False

    def _free(self) -> None:
        if not self._inbox.holding:
            self.writable = True
            wake(self._room_waiters)

    def _send_full(self) -> None:
        """Leave the batch to the end of the loop iteration: a batch must not be received inside a
        sender's call."""
        self.writable = self._has_room
        if not self.writable and self.is_full:
            self._tell_key = self._ask_key = None  # the next message has to open a run
