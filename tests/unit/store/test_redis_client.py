"""The connection that a client keeps for the commands of a link."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError

from shardbus.store.redis_client import LinkRedis


class Connection:
    """Notes what is sent, and answers from a list."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.sent, self.open = answers, list[bytes](), 0

    async def connect(self) -> None:
        self.open += 1

    async def send_packed_command(self, command: Iterable[bytes]) -> None:
        self.sent += command

    async def read_response(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def disconnect(self, nowait: bool = False) -> None:
        self.open -= 1


def client_of(connection: Connection) -> LinkRedis:
    client = LinkRedis(host="localhost")
    client.connection_pool.make_connection = lambda: connection  # type: ignore[method-assign]
    return client


async def test_each_command_has_a_reply_or_an_error_over_one_connection() -> None:
    unknown = NoScriptError("NOSCRIPT")
    connection = Connection([b"a", unknown, 3, b"d"])
    client = client_of(connection)
    assert await client.exchange([("GET", "a"), ("EVALSHA", b"x"), ("INCR", "c")]) == [
        b"a", unknown, 3,
    ]  # fmt: skip
    assert await client.exchange([("GET", "d")]) == [b"d"]
    assert connection.open == 1
    assert connection.sent[0] == b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"
    assert len(connection.sent) == 4
    await client.aclose()
    assert connection.open == 0


async def test_a_connection_that_was_lost_ends_the_exchange() -> None:
    connection = Connection([b"a", Lost("reset")])
    client = client_of(connection)
    with pytest.raises(Lost):
        await client.exchange([("GET", "a"), ("GET", "b")])
    await client.aclose()
    assert connection.open == 0
