"""A proxy between a Redis store and its server, which loses answers and holds commands back."""

from __future__ import annotations

import asyncio
import contextlib


class RedisProxy:
    """Sits between the store and its server. It can hold the bytes that the present connections
    send, and lose answers."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.lose_answers = 0
        self.held: list[tuple[asyncio.StreamWriter, list[bytes]]] = []
        self.holding = False
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> RedisProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *reason: object) -> None:
        assert self._server is not None
        self._server.close()  # `wait_closed` waits, since Python 3.12, for clients to go, too
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, redis_url: str) -> str:
        """Return the URL of the server by way of this proxy."""
        return f"redis://127.0.0.1:{self.port}/{redis_url.rpartition('/')[2]}"

    async def release(self) -> None:
        """Send the held bytes, as the connections that sent it would have, and wait for the
        server's answers."""
        held, self.held = self.held, []
        for writer, chunks in held:
            writer.write(b"".join(chunks))
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        held: list[bytes] = []
        if self.holding:
            self.held.append((server_writer, held))
        for pump in (
            self._forward(reader, server_writer, held),
            self._answer(server_reader, writer),
        ):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, held: list[bytes]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                if not self.holding or b"EVAL" not in chunk:
                    server.write(chunk)
                else:
                    if all(server is not writer for writer, _ in self.held):
                        self.held.append((server, held))
                    held.append(chunk)
        if not held:
            server.close()

    async def _answer(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await server.read(65536):
                if self.lose_answers > 0:
                    self.lose_answers -= 1
                    break
                writer.write(chunk)
        writer.close()
