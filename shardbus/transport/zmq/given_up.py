"""Notices that ZeroMQ has given up a connection.

ZeroMQ connects again by itself, with two exceptions that it reports by no event of their own:

    the peer is a socket of another kind    the connection ends (DISCONNECTED), and is never tried
                                            again; a seed whose port was a gossip port a moment ago
                                            would never be found
    the peer answers as no ZeroMQ does      an HTTP server that keeps the connection open passes for
                                            a peer of the first protocol, and nothing follows

While ZeroMQ does try, it reports something about each attempt, at least every few seconds: an
attempt to connect, a pause between two attempts and a handshake have bounds. So a connection that
does not work, and about which nothing is reported for `GIVEN_UP_S`, has been given up. Its owner
connects anew.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GIVEN_UP_S = 5.0
"""More than ZeroMQ takes for an attempt (`CONNECT_TIMEOUT`, 2 s) and the pause after it (at most
2 s), and for a handshake (`HANDSHAKE_IVL`, 3 s)."""


class GivenUp:
    """Watches one connection. `on_given_up` is called once per silence."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_given_up: Callable[[], None]) -> None:
        self._loop, self._on_given_up = loop, on_given_up
        self._timer: asyncio.TimerHandle | None = None

    def on_event(self) -> None:
        """ZeroMQ has begun to connect, or has reported something."""
        self.stop()
        self._timer = self._loop.call_later(GIVEN_UP_S, self._on_given_up)

    def stop(self) -> None:
        """The connection works, or is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
