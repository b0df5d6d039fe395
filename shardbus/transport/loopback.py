"""The way of a process's session with itself: no frames and no window, the same rules.

A flushed batch is received at once, but never inside a sender's call, because the sending entity
may be the receiving one. A message that its sender awaits may need no batch (`direct_message`).
While the receiver has no room, senders that await their tells wait here, too.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardbus.transport.full_entities import Target
from shardbus.transport.inbox import Inbox
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import Run


@dataclass(slots=True, eq=False, repr=False)
class Loopback:
    """Passes batches to the inbox of the same session. Calls `on_room` when that takes more."""

    local = True
    idle = False
    """A message never leaves inside its sender's call."""
    outstanding = unsent = 0

    name: str
    _loop: asyncio.AbstractEventLoop
    inbox: Inbox[Any]
    _on_room: Callable[[], None]

    def put(self, runs: list[Run], weight: int) -> bool:
        """Receive a batch. Returns True if there is room for more."""
        self.free()
        self.inbox.receive_runs(runs, weight)
        return not self.inbox.holding

    def has_room(self, weight: int) -> bool:
        """True if the inbox hands out its batches at once, and the open batch weighs little."""
        return weight < WINDOW_BYTES and not self.inbox.holding

    def free(self) -> None:
        """Wake senders, unless the inbox holds its batches."""
        if not self.inbox.holding:
            self._on_room()

    def rewrite_unsent(self, change: Callable[[bytes], bytes | None]) -> None:
        """Do nothing: no batch waits."""

    def when_taken(self, call: Callable[[], None]) -> None:
        """Call once the open batch has left, at the end of the loop iteration."""
        self._loop.call_soon(call)

    def leave(self, leaves: Callable[[Target], bool]) -> None:
        """Hand out the rests of these entities: no Flush follows here."""
        self.inbox.unlist(leaves)
