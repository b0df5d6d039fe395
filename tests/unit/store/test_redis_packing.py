"""Long commands are packed as the client library packs them, in less time."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio.connection import Connection

from shardbus.store.redis_client import LinkRedis
from shardbus.store.redis_packing import Value, packed
from shardbus.store.redis_urls import RedisUrl

COMMANDS: list[tuple[Value, ...]] = [
    ("PING",),
    ("EVALSHA", "0f" * 20, 2, "key", b"other", "é", 0, -7, 2**62, b""),
    ("EVALSHA", "0f" * 20, 128, *(f"k-{n}" for n in range(128)), *(bytes(n) for n in range(128))),
    ("HSET", "key", b"\r\n$3\r\n", b"x" * 70_000),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_a_command_has_the_same_bytes_as_those_of_the_library(command: tuple[Value, ...]) -> None:
    assert packed(command) == b"".join(Connection().pack_command(*command))


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss://h", "redis+sentinel://h/0?master=m", "rediss+sentinel://h/0?master=m"],
)
async def test_every_client_of_a_server_keeps_a_connection(url: str) -> None:
    client: Any = RedisUrl.parse(url).connector(2.0)()
    assert client.exchange.__func__ is LinkRedis.exchange
    await client.aclose()
