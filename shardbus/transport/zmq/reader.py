"""Reading a ZeroMQ socket on an asyncio loop, by its descriptor.

The descriptor is edge-triggered: it stirs once for any number of messages, and a send on the same
socket can swallow the edge. So whoever is woken drains until nothing is left, whoever has sent
looks again, and a watchdog that reads once a second bounds what a missed edge can cost. A drain
takes at most `TURN_MAX` messages before it lets the loop's other work run, so that a busy peer
delays nobody for long; and of several peers ZeroMQ hands over one message each, in turn.

Why not `zmq.asyncio`: a future for each receive and send makes it forty times slower on the same
work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from shardbus.transport.fork_guard import silence
from shardbus.transport.zmq.multipart import Multipart

TURN_MAX = 32
WATCHDOG_S = 1.0
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


class Reader:
    """Calls `on_message(parts)` for every message of one socket, and `on_missed` when only the
    watchdog found one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: zmq.Socket[bytes],
        on_message: Callable[[list[bytes]], None],
        on_missed: Callable[[], None] | None = None,
        multipart: Multipart | None = None,
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._receive = (multipart or Multipart(socket)).receive
        self._on_message = on_message
        self._on_missed = on_missed
        self._fd = int(socket.getsockopt(zmq.FD))
        self._scheduled = self._draining = self._closed = False
        self._watchdog: asyncio.TimerHandle | None = None
        silence(self)

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._fd, self._drain)
        self._watch()
        self.stir()

    def stir(self) -> None:
        """Look again soon: messages may be there."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._again)

    def sent(self) -> None:
        """Something was sent on the socket, which may have swallowed an edge: if a message is
        there, look again. Without one, the next to come raises an edge of its own. Whoever sends
        while we drain need not ask: we look before we end."""
        if not self._draining and not self._closed and int(self._socket.get(EVENTS)) & POLLIN:
            self.stir()

    @property
    def closed(self) -> bool:
        """It reads no more; a message just handled may have closed it."""
        return self._closed

    def close(self) -> None:
        """Stop reading. The socket stays open."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            if self._watchdog is not None:
                self._watchdog.cancel()

    def forked(self) -> None:
        """This process is a child: the socket is not its own."""
        self._closed = True

    def _again(self) -> None:
        self._scheduled = False
        self._drain()

    def _drain(self) -> int:
        taken, self._draining = 0, True
        try:
            # Who is woken finds a message, as a rule, and asks only whether there is another: that
            # costs half of being told that there is none.
            while not self._closed:
                parts = self._receive()
                taken += 1
                if parts is not None:
                    self._on_message(parts)
                if self.closed or not int(self._socket.get(EVENTS)) & POLLIN:
                    break
                if taken >= TURN_MAX:
                    self.stir()
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
        found = self._watchdog is not None and not self._scheduled and self._drain()
        if found and self._on_missed is not None:
            self._on_missed()
        if not self._closed:
            self._watchdog = self._loop.call_later(WATCHDOG_S, self._watch)
