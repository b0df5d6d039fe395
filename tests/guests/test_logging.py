"""structlog and loguru: the context that one message binds is in its own lines only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from loguru import logger
from structlog.contextvars import (
    bind_contextvars,
    bound_contextvars,
    clear_contextvars,
    get_contextvars,
    merge_contextvars,
)

from shardbus import Entity, ShardBus, handler
from tests.guests.nodes import served

bus = ShardBus("logging")
log = structlog.get_logger()
lines: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Keep the lines of both libraries."""

    def keep(_: Any, __: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    lines.clear()
    structlog.configure(processors=[merge_contextvars, keep])
    sink = logger.add(lambda m: lines.append({"event": m.record["message"], **m.record["extra"]}))
    yield
    logger.remove(sink)
    structlog.reset_defaults()
    clear_contextvars()


@bus.entity("cart", shards=8)
class Cart(Entity):
    @handler
    def put(self, user: str) -> dict[str, Any]:
        """Bind, and leave it bound, as code of web applications does."""
        before = get_contextvars()
        bind_contextvars(user=user)
        log.info("put")
        return before

    @handler
    async def put_later(self, user: str) -> dict[str, Any]:
        before = get_contextvars()
        bind_contextvars(user=user)
        await asyncio.sleep(0)
        log.info("put")
        await asyncio.gather(self.line("child"), asyncio.to_thread(log.info, "thread"))
        return before

    @handler(thread=True)
    def put_in_thread(self, user: str) -> dict[str, Any]:
        before = get_contextvars()
        bind_contextvars(user=user)
        log.info("put")
        return before

    async def line(self, event: str) -> None:
        await asyncio.sleep(0)
        log.info(event)

    @handler
    async def scoped(self, user: str) -> bool:
        with bound_contextvars(user=user):
            await asyncio.sleep(0)
            log.info("inside")
        return "user" in get_contextvars()

    @handler
    async def by_loguru(self, user: str) -> None:
        logger.info("before")
        with logger.contextualize(user=user):
            logger.info("inside")
            await asyncio.sleep(0)
            await asyncio.gather(*(asyncio.to_thread(logger.info, "thread") for _ in range(2)))
            logger.info("inside")
        logger.info("after")

    @handler
    async def catches(self) -> str:
        @logger.catch(reraise=False, default="caught")
        async def fail() -> str:
            await asyncio.sleep(0)
            raise ValueError("no")

        return await fail()


def users(event: str) -> list[Any]:
    """Return the users in the lines of an event."""
    return sorted(str(line.get("user")) for line in lines if line["event"] == event)


@pytest.mark.parametrize("how", ["put", "put_later", "put_in_thread"])
async def test_what_a_message_binds_is_not_seen_by_others(how: str) -> None:
    async with served(bus) as client:
        names = [f"u{n}" for n in range(10)]
        asks = [getattr(client.ref(Cart, "one"), how)(name) for name in names]
        asks += [getattr(client.ref(Cart, f"c{name}"), how)(name) for name in names]
        for before in await asyncio.gather(*asks):
            assert "user" not in before
    assert users("put") == sorted(2 * names)
    if how == "put_later":
        assert users("child") == users("thread") == sorted(2 * names)


async def test_bound_variables_end_with_their_block() -> None:
    async with served(bus) as client:
        names = [f"u{n}" for n in range(10)]
        asks = [client.ref(Cart, f"c{n % 3}").scoped(name) for n, name in enumerate(names)]
        assert not any(await asyncio.gather(*asks))
    assert users("inside") == sorted(names)


async def test_loguru_contextualizes_a_message() -> None:
    async with served(bus) as client:
        names = [f"u{n}" for n in range(10)]
        await asyncio.gather(*(client.ref(Cart, f"c{n}").by_loguru(n) for n in names))
        assert await client.ref(Cart, "c").catches() == "caught"
    assert users("inside") == users("thread") == sorted(2 * names)
    assert users("before") == users("after") == ["None"] * 10


async def test_the_context_of_the_sender_does_not_reach_the_entity() -> None:
    """Nor does an entity's reach its sender: a value that must travel is an argument."""
    async with served(bus) as client:
        bind_contextvars(user="sender")
        assert "user" not in await client.ref(Cart, "a").put("entity")
        assert "user" not in await client.ref(Cart, "a").put_later("entity")
        assert get_contextvars()["user"] == "sender"
