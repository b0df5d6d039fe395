"""Who connects to a node's HTTP and says nothing, says it slowly, or says too much, keeps nobody
else waiting and has an end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from shardbus.http import connections
from shardbus.http.server import Server, serve
from shardbus.transport.log_limiter import LINES
from tests.waiting import PATIENCE_S, until

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    answer: Response = PlainTextResponse("fine")
    if Request(scope).url.path == "/large":
        answer = PlainTextResponse("x" * (32 << 20))
    await answer(scope, receive, send)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = serve(app, "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 0.2)
    monkeypatch.setattr(connections, "ANSWER_WITHIN_S", 0.2)


async def connect(server: Server) -> Pipe:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def ask(server: Server) -> bytes:
    reader, writer = await connect(server)
    writer.write(REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
    answer = await reader.read()
    writer.close()
    return answer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the node has ended the connection."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def held(server: Server) -> int:
    """Connections that the server keeps."""
    assert server._server is not None
    return len(server._server.server_state.connections)


async def test_a_thousand_that_say_nothing_take_no_place_from_one_that_asks(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 32)
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 1000.0)
    silent: list[Pipe] = []
    for n in range(1, 1001):
        silent.append(await connect(server))
        if n % 100 == 0:
            assert b"200 OK" in await ask(server)
            await until(lambda: held(server) <= 32, "the bound")
        if len(silent) > 100:
            silent.pop(0)[1].close()
    for _, writer in silent:
        writer.close()
    await until(lambda: held(server) == 0, "the end of all")


async def test_who_says_nothing_is_not_waited_for(server: Server, hasty: None) -> None:
    reader, writer = await connect(server)
    assert await ended(reader)
    assert held(server) == 0
    writer.close()


@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first request", "second request"])
async def test_a_request_that_comes_byte_by_byte_has_an_end(
    server: Server, hasty: None, before: bytes
) -> None:
    reader, writer = await connect(server)
    writer.write(before)

    async def trickle() -> None:
        while not writer.is_closing():
            writer.write(b"G")
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    assert await ended(reader)
    assert held(server) == 0
    trickling.cancel()
    writer.close()


async def test_an_answer_that_nobody_takes_has_an_end(server: Server, hasty: None) -> None:
    reader, writer = await connect(server)
    writer.write(REQUEST.replace(b"/livez", b"/large"))
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: held(server) == 1, "the connection")
    await until(lambda: held(server) == 0, "its end")
    writer.close()


async def test_requests_that_come_together_are_all_answered(server: Server) -> None:
    reader, writer = await connect(server)
    writer.write(REQUEST * 5)
    for _ in range(5):
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_headers_without_end_are_refused_and_logged_sparingly(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shardbus.http"):
        for _ in range(3 * LINES):
            reader, writer = await connect(server)
            writer.write(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000)
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
            writer.close()
    assert 0 < len(caplog.records) <= LINES
    assert b"200 OK" in await ask(server)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/where/counter/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez?\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nHo st: y\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_in_the_common_form(
    server: Server, request_: bytes
) -> None:
    reader, writer = await connect(server)
    writer.write(request_)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    error = json.loads(body)["error"]
    assert (error["code"], set(error)) == ("bad_request", {"code", "message", "hint"})


async def test_a_body_that_becomes_no_http_ends_the_connection(server: Server) -> None:
    reader, writer = await connect(server)
    writer.write(b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.write(b"no length\r\n")
    assert await ended(reader)
    assert (await ask(server)).startswith(b"HTTP/1.1 200 ")
