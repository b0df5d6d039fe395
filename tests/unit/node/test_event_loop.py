"""The loop of a node: a name server that does not answer holds up no handler, no store, no end."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from shardbus.node import event_loop
from shardbus.node.event_loop import NodeEventLoop

HANGS_S = 30.0


class NameServer:
    """Answers known names; other names hang until `release`."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ...]] = {}
        self.release = threading.Event()

    def look_up(self, name: str) -> tuple[str, ...]:
        if name not in self.answers:
            self.release.wait()
        return self.answers.get(name, ())


async def read(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_a_name_is_found_and_stays_known_while_the_name_server_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameServer()
    names.answers["redis"] = ("127.0.0.1",)
    monkeypatch.setattr(event_loop, "WITHIN_S", HANGS_S)

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await read("redis", port) == b"here"
        del names.answers["redis"]
        monkeypatch.setattr(event_loop, "WITHIN_S", 0.01)
        monkeypatch.setattr("shardbus.transport.name_lookups.FRESH_S", 0.0)
        assert await read("redis", port) == b"here"
        server.close()

    with asyncio.Runner(loop_factory=lambda: NodeEventLoop(names.look_up)) as runner:
        runner.run(main())
    names.release.set()


def test_look_ups_that_hang_leave_the_threads_of_handlers_free_and_let_the_loop_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameServer()
    monkeypatch.setattr(event_loop, "WITHIN_S", 0.01)

    async def main() -> str:
        for n in range(50):
            with pytest.raises(socket.gaierror):
                await asyncio.open_connection(f"silent-{n}", 1)
        async with asyncio.timeout(HANGS_S):
            return await asyncio.to_thread(lambda: "ran")

    with asyncio.Runner(loop_factory=lambda: NodeEventLoop(names.look_up)) as runner:
        assert runner.run(main()) == "ran"
    names.release.set()


def test_what_needs_no_look_up_is_as_in_asyncio() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for host, port in (("127.0.0.1", 80), (None, 80), (None, "80"), ("::1", 80)):
            expected = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            assert await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM) == expected

    with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(main())
