"""A TCP probe: a connection is open, refused by every address, or proves nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from shardbus.transport.name_lookups import KnownName
from shardbus.transport.tcp_probe import open_probe
from tests.ports import free_port

REFUSES, FAILS = ConnectionRefusedError("refused"), OSError("no route")


def here() -> KnownName:
    return KnownName(("127.0.0.1",), True, "")


async def test_a_listening_port_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = await open_probe(here(), server.getsockname()[1])
        with probe:
            assert probe.getpeername() == server.getsockname()


async def test_a_closed_port_is_refused() -> None:
    with pytest.raises(ConnectionRefusedError):
        await open_probe(here(), free_port())


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([REFUSES], True),
        ([REFUSES, REFUSES], True),
        ([FAILS], False),
        ([REFUSES, FAILS], False),
        ([FAILS, REFUSES], False),
    ],
)
async def test_only_a_host_whose_every_address_refuses_is_refused(
    monkeypatch: pytest.MonkeyPatch, answers: list[OSError], refused: bool
) -> None:
    loop = asyncio.get_running_loop()
    tried: list[str] = []

    async def connect(sock: socket.socket, address: Any) -> None:
        tried.append(address[0])
        raise answers[int(address[0].rpartition(".")[2])]

    monkeypatch.setattr(loop, "sock_connect", connect)
    places = tuple(f"127.0.0.{n}" for n in range(len(answers)))
    with pytest.raises(OSError, match=r"refused|no route") as raised:
        await open_probe(KnownName(places, True, ""), 1)
    assert isinstance(raised.value, ConnectionRefusedError) is refused
    assert sorted(tried) == list(places)


async def test_an_address_that_another_process_may_have_had_proves_nothing() -> None:
    with pytest.raises(OSError, match="another process") as raised:
        await open_probe(KnownName(("127.0.0.1",), False, ""), free_port())
    assert not isinstance(raised.value, ConnectionRefusedError)


async def test_a_host_without_an_address_proves_nothing() -> None:
    with pytest.raises(OSError, match="no answer within 2 s") as raised:
        await open_probe(KnownName((), True, "no answer within 2 s"), free_port())
    assert not isinstance(raised.value, ConnectionRefusedError)


async def test_an_address_that_answers_is_found_behind_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def drop(sock: socket.socket, address: Any) -> None:
        if address[0] == "127.0.0.2":
            await asyncio.Event().wait()
        await connect(sock, address)

    monkeypatch.setattr(loop, "sock_connect", drop)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = KnownName(("127.0.0.2", "127.0.0.1"), True, "")
        with await open_probe(host, server.getsockname()[1]) as probe:
            assert probe.getpeername() == server.getsockname()


async def test_a_connection_of_a_port_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def to_itself(sock: socket.socket, address: Any) -> None:
        sock.bind(("127.0.0.1", 0))
        await connect(sock, sock.getsockname())

    monkeypatch.setattr(loop, "sock_connect", to_itself)
    with pytest.raises(ConnectionRefusedError, match="to itself"):
        await open_probe(here(), 1)
