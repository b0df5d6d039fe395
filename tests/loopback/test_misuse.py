"""Clients that are used before they are entered or after they are closed, deadlines that are none,
and a batch of which a part cannot be sent: each raises an error, and no call waits for ever."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.blocking import Client
from shardbus.errors import ConfigError, LocalProtocolError, SchemaError
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S, until

bus = ShardBus("misuse")


@bus.entity("page", shards=4)
class Page(Entity):
    """Answers."""

    @handler
    def ping(self) -> int:
        return 1

    async def receive(self, message: str) -> str:
        return message


@bus.entity("nowhere", shards=4, role="absent")
class Nowhere(Entity):
    """Never has a home."""

    @handler
    def ping(self) -> int:
        return 1


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Nodes() as nodes:
        node = await nodes.start(bus)
        yield f"tcp://{node.me.address}"


USES: list[Callable[[AsyncClient], Any]] = [
    lambda client: client.ref(Page, "a").ping(),
    lambda client: client.tell("page", "a", "hello"),
    lambda client: client.ask("page", "a", "hello"),
    lambda client: client.tell("book", "a", "hello"),
    lambda client: client.tell_many("page", [("a", "hello")]),
    lambda client: client.start_entity("page", "a"),
    lambda client: client.region(Page).ask("hello"),
    lambda client: client.flush(),
]


@pytest.mark.parametrize("use", USES)
async def test_a_client_that_was_not_entered_says_so(use: Callable[[AsyncClient], Any]) -> None:
    client = AsyncClient("tcp://127.0.0.1:1", cluster="misuse")
    with pytest.raises(LocalProtocolError, match="not entered; use `async with`"):
        await use(client)
    assert not hasattr(client, "__len__")


async def test_a_closed_client_refuses_instead_of_dropping(address: str) -> None:
    async with AsyncClient(
        address, cluster="misuse", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:
        missing, unknown = client.ref(Page, "a"), client.ref(Page, "b")
        await missing.ping()
    for use in [*USES[:5], USES[7]]:
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await use(client)
    for ref in (missing, unknown):
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await ref.ping.tell()
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await ref.ping()
    assert client.lost_messages == 0


async def test_an_ask_that_waits_for_a_home_ends_with_its_client(address: str) -> None:
    async with AsyncClient(address, cluster="misuse", timeout=600) as client:
        ask = client.ref(Nowhere, "a").ping()
        await until(lambda: client.buffered == 1, "a message that waits")
    with pytest.raises(LocalProtocolError, match="the client is closed"):
        await asyncio.wait_for(asyncio.shield(ask), PATIENCE_S)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 1e12, "2", None])
async def test_a_timeout_that_is_none_is_a_setting_that_is_no_good(
    address: str, timeout: Any
) -> None:
    for make in (AsyncClient, Client) if timeout is not None else ():
        with pytest.raises(ConfigError, match="a timeout is a number of seconds"):
            make(address, cluster="misuse", timeout=timeout)
    async with AsyncClient(
        address, cluster="misuse", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:
        if timeout is not None:
            with pytest.raises(ConfigError, match="a timeout is a number of seconds"):
                await client.ask("page", "a", "hello", timeout=timeout)
        ref: Any = client.ref(Page, "a")
        with pytest.raises(ConfigError, match="a timeout is a number of seconds"):
            ref.within(timeout)


async def test_what_cannot_be_sent_of_a_batch_of_asks_has_its_error_in_its_place(
    address: str,
) -> None:
    batch: list[tuple[str, object]] = [("a", "x"), ("", "y"), ("b", object()), ("c", "z")]
    async with AsyncClient(
        address, cluster="misuse", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:
        first, second, third, last = await client.ask_many("page", batch)
    assert (first, last) == ("x", "z")
    assert isinstance(second, ConfigError)
    assert isinstance(third, SchemaError)
