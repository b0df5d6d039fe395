"""The kind of listener at an address, by a few bytes of its answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import zmq

from shardbus.transport import who_listens as module
from shardbus.transport.name_lookups import KnownName
from shardbus.transport.who_listens import (
    FOREIGN,
    GREETING,
    HTTP,
    KEYED,
    NO_ANSWER,
    REFUSED,
    ROUTER,
    XPUB,
    judge,
    who_listens,
)
from shardbus.transport.zmq.curve import ZAP_DOMAIN
from tests.ports import free_port

HERE = KnownName(("127.0.0.1",), True, "")
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received."


@asynccontextmanager
async def server(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """A server that answers each line, or each portion of bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while portion := await reader.read(4096):
            writer.write(answer(portion))
        writer.close()

    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with made:
        yield made.sockets[0].getsockname()[1]


async def test_no_process() -> None:
    assert await who_listens(HERE, free_port(), ROUTER) == REFUSED


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda got: BAD_REQUEST, HTTP),
        (lambda got: BAD_REQUEST if b"\n" in got else b"", HTTP),
        (lambda got: b"", FOREIGN),
        (lambda got: b"SSH-2.0-OpenSSH_9.2\r\n", FOREIGN),
        (lambda got: b"\x15\x03\x01\x00\x02\x02\x46", FOREIGN),
    ],
    ids=["HTTP at once", "HTTP at a line", "silence", "SSH", "TLS"],
)
async def test_a_process_that_speaks_no_zeromq(answer: Callable[[bytes], bytes], kind: str) -> None:
    async with server(answer) as port:
        assert await who_listens(HERE, port, ROUTER) == kind


@pytest.mark.parametrize(
    ("kind", "expected", "report"),
    [
        (zmq.ROUTER, ROUTER, ""),
        (zmq.XPUB, XPUB, ""),
        (zmq.XPUB, ROUTER, "a node's port of gossip answers there, not a node's port of messages"),
        (zmq.ROUTER, XPUB, "a node's port of messages answers there, not a node's port of gossip"),
        (zmq.REP, ROUTER, "another ZeroMQ socket answers there, not a node's port of messages"),
    ],
)
async def test_the_kind_of_a_zeromq_socket(kind: int, expected: str, report: str) -> None:
    with zmq.Context() as context, context.socket(kind) as there:
        there.linger = 0
        there.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        port = there.bind_to_random_port("tcp://127.0.0.1")
        assert await who_listens(HERE, port, expected) == report


async def test_a_socket_with_keys() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as there:
        there.linger = 0
        there.curve_secretkey = zmq.curve_keypair()[1]
        there.curve_server = True
        port = there.bind_to_random_port("tcp://127.0.0.1")
        assert await who_listens(HERE, port, ROUTER) == KEYED


async def test_no_answer_to_an_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(host: object, port: int) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(module, "open_probe", hangs)
    assert await who_listens(HERE, 1, ROUTER) == NO_ANSWER


async def test_a_name_without_an_address() -> None:
    unknown = KnownName((), False, "Name or service not known")
    assert "Name or service not known" in await who_listens(unknown, 1, ROUTER)


def test_half_an_answer_is_judged_too() -> None:
    ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
    assert judge(GREETING + ready, ROUTER) == ""
    for length in range(len(GREETING + ready)):
        assert judge((GREETING + ready)[:length], ROUTER) != ""
