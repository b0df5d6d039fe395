"""The commands of a link to a PostgreSQL server, and their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from asyncpg.exceptions import (
    ConnectionDoesNotExistError,
    InvalidPasswordError,
    TooManyConnectionsError,
)

from shardbus.errors import StoreUnavailable
from shardbus.store.postgres_link import PostgresLink
from shardbus.store.postgres_statements import SAVE_STATES
from shardbus.store.postgres_urls import FoundServer, PostgresConnection
from tests.unit.store.store_suite import LONG_S, SHORT_S


class Connection:
    """Notes the last argument of each statement."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._closed = False

    async def execute(self, text: str, *args: Any) -> str:
        self.sent.append(args[-1])
        return "INSERT 0 1"

    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True


async def test_a_statement_that_is_given_up_while_its_link_connects_is_not_sent() -> None:
    """It would get a later number than its sender's calls meanwhile, and undo these."""
    connection, connecting, connects = Connection(), asyncio.Event(), asyncio.Event()

    async def connect() -> FoundServer:
        connecting.set()
        await connects.wait()
        return FoundServer(cast("PostgresConnection", connection), "1")

    async def prepare(connection: PostgresConnection, anew: bool) -> bool:
        return False

    link = PostgresLink(
        connect, prepare, schema="s", shown="postgres://p", timeout=LONG_S, connections=1
    )
    link.open()
    given_up = asyncio.create_task(link.call(SAVE_STATES, "a"))
    await connecting.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    other = asyncio.create_task(link.call(SAVE_STATES, "b"))
    connects.set()
    assert await other == 1
    assert connection.sent == ["b"]
    await link.close()


class LosingConnection(Connection):
    """It ends before the first answer."""

    async def execute(self, text: str, *args: Any) -> str:
        await super().execute(text, *args)
        self._closed = True
        raise ConnectionDoesNotExistError("connection was closed in the middle of operation")


@pytest.mark.parametrize(
    "error",
    [
        InvalidPasswordError("password authentication failed"),
        TooManyConnectionsError("sorry, too many clients already"),
    ],
)
@pytest.mark.parametrize("sent", [True, False])
async def test_a_statement_without_an_answer_stays_in_doubt_where_no_connection_follows(
    error: Exception, sent: bool
) -> None:
    """The server may have run it, whatever it says to the next connection."""
    connections = iter([LosingConnection()] if sent else [])

    async def connect() -> FoundServer:
        for connection in connections:
            return FoundServer(cast("PostgresConnection", connection), "1")
        raise error

    async def prepare(connection: PostgresConnection, anew: bool) -> bool:
        return False

    link = PostgresLink(
        connect, prepare, schema="s", shown="postgres://p", timeout=SHORT_S, connections=1
    )
    link.open()
    with pytest.raises(StoreUnavailable) as raised:
        await link.call(SAVE_STATES, "a")
    assert raised.value.definite is not sent
    await link.close()
