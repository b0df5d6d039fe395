"""A client of redis-py that keeps one connection for the commands of a link.

For each command, the library takes a connection from its pool, looks whether it is still usable,
measures the call and gives the connection back, which takes a fifth of the time of a single save.
A link has one task that sends and reads, and connects again by itself, so it needs none of that.
The library connects: it looks up the master at the Sentinels, makes TLS, and logs in.

Commands with usual answers need no task either. `begin` writes them at once, and the arriving bytes
are compared with those answers before the library sees them. If they differ, the library reads
them.

    begin ──> AWAITED ──the usual answer──> ended(True)
                 │ another one, or the connection ends
                 └──> the library has the bytes; ended(False), and `rest` returns the reply

Source: the Redis serialization protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shardbus.store.redis_packing import Value, packed

Ended = Callable[[bool], None]


class UsualAnswer(asyncio.Protocol):
    """Stands before `library`, the protocol of a connection, and takes the usual answers."""

    def __init__(self, transport: asyncio.Transport, library: asyncio.Protocol) -> None:
        self.transport, self._library = transport, library
        self._ended: Ended | None = None
        self._usual = self._received = b""

    def expect(self, usual: bytes, ended: Ended) -> None:
        """Call `ended` with True once these bytes have arrived, with False if others do."""
        self._usual, self._ended = usual, ended

    def leave(self) -> Ended | None:
        """Expect nothing any more: the library gets all bytes, present and future. Returns the
        function that is still to be called."""
        ended, self._ended = self._ended, None
        received, self._received = self._received, b""
        if received:
            self._library.data_received(received)
        return ended

    def data_received(self, data: bytes) -> None:
        if self._ended is None:
            self._library.data_received(data)
            return
        self._received += data
        if self._received == self._usual:
            ended, self._ended, self._received = self._ended, None, b""
            ended(True)
        elif not self._usual.startswith(self._received):
            self._differs()

    def _differs(self) -> None:
        if ended := self.leave():
            ended(False)

    def eof_received(self) -> bool | None:
        keep_open = self._library.eof_received()
        self._differs()
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._library.connection_lost(exc)
        self._differs()

    def pause_writing(self) -> None:
        self._library.pause_writing()

    def resume_writing(self) -> None:
        self._library.resume_writing()


class LinkRedis(Redis):
    """A client with the commands of redis-py, each over a connection of its pool, and with
    `exchange` and `begin` over one that it keeps. After an error or a cancellation of `exchange` or
    `rest`, close it."""

    _held: Any = None
    _answer: UsualAnswer | None = None

    async def exchange(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Send these commands over the connection that is kept, and return the server's answer to
        each: bytes, int, None, a list of them, or a `ResponseError`. Connects at first."""
        if self._held is None:
            held: Any = self.connection_pool.make_connection()  # type: ignore[no-untyped-call]
            await held.connect()
            self._held, self._answer = held, _before(held)
        await self._held.send_packed_command([packed(command) for command in commands])
        return await self.rest(len(commands))

    async def rest(self, count: int) -> list[Any]:
        """Return the next replies of the server, as `exchange` does."""
        if self._answer is not None:
            self._answer.leave()
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(await self._held.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    def begin(self, commands: Sequence[Sequence[Value]], usual: bytes, ended: Ended) -> bool:
        """Send commands at once. A callback of the loop calls `ended`: with True if the server has
        answered just `usual`, else with False, and `rest` returns its replies, or raises. Returns
        False, and sends nothing, without a connection that can do so."""
        answer = self._answer
        if answer is None or answer.transport.is_closing():
            return False
        answer.expect(usual, ended)
        answer.transport.write(b"".join(map(packed, commands)))
        return True

    def place(self) -> tuple[str, int] | None:
        """Return the host and port of the connection that is kept. None without one."""
        return None if self._held is None else (str(self._held.host), int(self._held.port))

    def hang_up(self) -> None:
        """End the connection that is kept, as if the server had ended it."""
        if self._answer is not None:
            self._answer.transport.abort()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        held, self._held = self._held, None
        self._answer = None
        if held is not None:
            with contextlib.suppress(Exception):
                await held.disconnect(nowait=True)
        await super().aclose(close_connection_pool)


def _before(connection: Any) -> UsualAnswer | None:
    """Put a `UsualAnswer` before the reader of this connection. None if the library hides it."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None:
        return None
    answer = UsualAnswer(transport, transport.get_protocol())
    transport.set_protocol(answer)
    return answer
