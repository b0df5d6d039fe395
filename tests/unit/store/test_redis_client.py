"""The connection that a client keeps for the commands of a link, and the answers that it takes from
the library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError

from shardbus.store.redis_client import LinkRedis, UsualAnswer


class Connection:
    """Notes commands, and answers from a list."""

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


class Library(asyncio.Protocol):
    """Notes its input."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def eof_received(self) -> bool:
        self.got.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.got.append("lost")


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def ended() -> list[bool]:
    return []


@pytest.fixture
def answer(library: Library, ended: list[bool]) -> UsualAnswer:
    answer = UsualAnswer(asyncio.Transport(), library)
    answer.expect(b"*0\r\n", ended.append)
    return answer


@pytest.mark.parametrize(
    ("pieces", "is_kept", "passed_on"),
    [
        ([b"*0\r\n"], [True], []),
        ([b"*", b"0\r", b"\n"], [True], []),
        ([b"*0\r\n", b"+OK\r\n"], [True], [b"+OK\r\n"]),
        ([b"*0\r\n+OK\r\n"], [False], [b"*0\r\n+OK\r\n"]),
        ([b"*0", b"\r\t"], [False], [b"*0\r\t"]),
        ([b"*2\r\n", b":1\r\n"], [False], [b"*2\r\n", b":1\r\n"]),
        ([b"-NOSCRIPT\r\n"], [False], [b"-NOSCRIPT\r\n"]),
        ([b"*0"], [], []),
    ],
)
def test_only_the_usual_answer_is_kept_from_the_library(
    answer: UsualAnswer,
    library: Library,
    ended: list[bool],
    pieces: list[bytes],
    is_kept: list[bool],
    passed_on: list[bytes],
) -> None:
    for piece in pieces:
        answer.data_received(piece)
    assert ended == is_kept
    assert library.got == passed_on


def test_the_library_gets_what_came_before_the_end_of_the_connection(
    answer: UsualAnswer, library: Library, ended: list[bool]
) -> None:
    answer.data_received(b"*0")
    assert answer.eof_received() is True
    answer.connection_lost(None)
    assert library.got == ["eof", b"*0", "lost"]
    assert ended == [False]


def test_a_lost_connection_ends_the_wait(
    answer: UsualAnswer, library: Library, ended: list[bool]
) -> None:
    answer.connection_lost(ConnectionResetError())
    assert library.got == ["lost"]
    assert ended == [False]


def test_what_is_expected_no_more_goes_to_the_library(
    answer: UsualAnswer, library: Library, ended: list[bool]
) -> None:
    answer.data_received(b"*0")
    answer.leave()
    answer.data_received(b"\r\n")
    answer.connection_lost(None)
    assert library.got == [b"*0", b"\r\n", "lost"]
    assert ended == []


async def test_a_connection_whose_reader_is_hidden_begins_nothing() -> None:
    client = client_of(Connection([b"a"]))
    assert not client.begin([("GET", "a")], b"$1\r\n", lambda usual: None), "not connected"
    await client.exchange([("GET", "a")])
    assert not client.begin([("GET", "a")], b"$1\r\n", lambda usual: None)
    await client.aclose()
