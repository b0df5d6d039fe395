"""What a link to one Redis server sends, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shardbus.store.redis_link import RedisLink, RedisSession
from shardbus.store.redis_scripts import LOAD_STATES
from tests.unit.store.store_suite import LONG_S


class Client:
    """Notes the keys of the scripts that it is given. It connects once `connects` is set."""

    def __init__(self) -> None:
        self.connecting, self.connects = asyncio.Event(), asyncio.Event()
        self.keys: list[Any] = []

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "INFO":
            self.connecting.set()
            await self.connects.wait()
            return {"run_id": "1"}
        self.keys.append(args[3])
        return [b"1"]

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        return [await self.execute_command(*command) for command in commands]

    def pipeline(self, transaction: Any = True) -> Any:
        raise AssertionError("the client keeps a connection")

    async def aclose(self) -> None: ...


async def test_a_call_that_is_given_up_while_its_link_connects_is_not_sent() -> None:
    """It would get a later number than what its sender sends over another link, and undo that."""
    client = Client()
    link = RedisLink(lambda: client, RedisSession("s" * 10, "redis://r"), timeout=LONG_S)
    link.open()
    given_up = asyncio.create_task(link.call(LOAD_STATES, ["a"]))
    await client.connecting.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    other = asyncio.create_task(link.call(LOAD_STATES, ["b"]))
    client.connects.set()
    assert await other == [b"1"]
    assert client.keys == ["b"]
    await link.close()
