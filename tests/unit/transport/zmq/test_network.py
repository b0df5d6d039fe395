"""Connections of the ZeroMQ network: their buffers when they are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.ids import Address
from shardbus.transport.zmq import network
from shardbus.transport.zmq.network import _Dealer
from tests.explore.on_a_loop import LoopOfWorld


class Name:
    """The name of a host that has one address."""

    known_name = SimpleNamespace(addresses=("10.0.0.1",))

    def renew(self, *, new_process: bool = False) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...


def test_a_connection_closed_in_the_pause_after_a_failed_handshake_opens_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, opened = LoopOfWorld(), list[str]()
    monkeypatch.setattr(_Dealer, "_open_socket", lambda dealer: opened.append("socket"))
    resolver = SimpleNamespace(watch=lambda host, call: Name())
    owner: Any = SimpleNamespace(keyring=None, loop=world.loop, resolver=resolver)

    def nothing(*arguments: object) -> None: ...

    dealer = world.run(
        lambda: network._Dealer(owner, Address("h", 1), nothing, nothing, nothing, nothing)
    )
    assert opened == ["socket"]
    world.run(dealer._connect_anew, 0)
    dealer.close()
    world.wait(600.0)
    world.close()
    assert opened == ["socket"]
