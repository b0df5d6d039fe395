"""Edge-triggered reading of a ZeroMQ socket on an asyncio loop, by its descriptor.

The descriptor becomes readable once for any number of messages, and an operation on the same socket
can swallow that edge. So a wake-up drains the socket until it is empty; code that uses the
socket calls `used`, which checks it again; and a watchdog that reads once a second bounds the cost
of a missed edge. One drain takes at most `TURN_MAX` messages before the loop's other work runs, so
a busy peer delays nothing for long. The effects of a message may end the turn as well: once many
handlers wait for the store, its answers come before further messages. Of several peers, ZeroMQ
hands over one message each, in turn.

Why not `zmq.asyncio`: a future for each receive and send makes it forty times slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from shardbus.transport.fork_guard import silence
from shardbus.transport.zmq.multipart import Multipart

TURN_MAX = 32
WATCHDOG_S = 1.0
EVENTS, POLLIN = zmq.EVENTS, int(zmq.POLLIN)
"""`get` makes an enum member of a number, which takes longer than to pass the member."""

Receive = Callable[[], list[bytes] | None]
"""Reads one message: its parts, or None if there is nothing to hand out. Raises zmq.Again if the
socket is empty."""


class Reader:
    """Calls `on_message(parts)` for every message of one socket, and `on_missed` when only the
    watchdog found one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: zmq.Socket[bytes],
        on_message: Callable[[list[bytes]], None],
        on_missed: Callable[[], None] | None = None,
        receive: Receive | None = None,
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._receive = receive or Multipart(socket).receive
        self._on_message = on_message
        self._on_missed = on_missed
        self._fd = int(socket.getsockopt(zmq.FD))
        self._scheduled = self._draining = self._closed = self._turn_over = False
        self._watchdog: asyncio.TimerHandle | None = None
        silence(self)

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._fd, self._drain)
        self._watch()
        self.read_soon()

    def read_soon(self) -> None:
        """Drain the socket in the next iteration of the loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._read_scheduled)

    def used(self) -> None:
        """An operation on the socket may have swallowed an edge: if a message is there, read it
        soon. Without one, the next to arrive raises an edge of its own. During a drain there is
        nothing to do: it checks the socket before it ends."""
        if not self._draining and not self._closed and int(self._socket.get(EVENTS)) & POLLIN:
            self.read_soon()

    def end_turn(self) -> None:
        """Let the loop's other work run before the next message is read."""
        self._turn_over = True

    @property
    def closed(self) -> bool:
        """True after `close`; a message just handled may have called it."""
        return self._closed

    def close(self) -> None:
        """Stop reading. The socket stays open."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            if self._watchdog is not None:
                self._watchdog.cancel()

    def forked(self) -> None:
        """This process is a child: leave the parent's socket alone."""
        self._closed = True

    def _read_scheduled(self) -> None:
        self._scheduled = False
        self._drain()

    def _drain(self) -> int:
        """Read until the socket is empty, or a turn's share is used. Returns the number read."""
        taken, self._draining, self._turn_over = 0, True, False
        try:
            # A wake-up usually has a message, so it reads first and then checks for another: that
            # costs half of a receive that fails.
            while not self._closed:
                parts = self._receive()
                taken += 1
                if parts is not None:
                    self._on_message(parts)
                if self.closed or not int(self._socket.get(EVENTS)) & POLLIN:
                    break
                if taken >= TURN_MAX or self._turn_over:
                    self.read_soon()
                    break
        except zmq.Again:
            pass
        except zmq.ZMQError as e:
            if e.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                raise
            self.close()
        finally:
            self._draining = False
        return taken

    def _watch(self) -> None:
        missed = self._watchdog is not None and not self._scheduled and self._drain()
        if missed and self._on_missed is not None:
            self._on_missed()
        if not self._closed:
            self._watchdog = self._loop.call_later(WATCHDOG_S, self._watch)
