"""A TCP probe: a connection is open, refused by every address, or proves nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from shardbus.ids import Address
from shardbus.transport.tcp_probe import open_probe
from tests.ports import free_port

REFUSES, FAILS = ConnectionRefusedError("refused"), OSError("no route")


async def test_a_listening_port_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = await open_probe(Address("127.0.0.1", server.getsockname()[1]))
        with probe:
            assert probe.getpeername() == server.getsockname()


async def test_a_closed_port_is_refused() -> None:
    with pytest.raises(ConnectionRefusedError):
        await open_probe(Address("127.0.0.1", free_port()))


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
    left = list(answers)

    async def addresses(*args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", 1 + n)) for n in range(len(answers))]

    async def connect(sock: socket.socket, address: Any) -> None:
        raise left.pop(0)

    monkeypatch.setattr(loop, "getaddrinfo", addresses)
    monkeypatch.setattr(loop, "sock_connect", connect)
    with pytest.raises(OSError, match=r"refused|no route") as raised:
        await open_probe(Address("two", 1))
    assert isinstance(raised.value, ConnectionRefusedError) is refused
    assert left == []


async def test_a_connection_of_a_port_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def to_itself(sock: socket.socket, address: Any) -> None:
        sock.bind(("127.0.0.1", 0))
        await connect(sock, sock.getsockname())

    monkeypatch.setattr(loop, "sock_connect", to_itself)
    with pytest.raises(ConnectionRefusedError, match="to itself"):
        await open_probe(Address("127.0.0.1", 1))
