"""tenacity, around asks and inside handlers."""

from __future__ import annotations

import asyncio

import pytest
from tenacity import (
    AsyncRetrying,
    RetryError,
    retry,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_none,
)

from shardbus import Entity, EntityFailed, RequestError, ShardBus, handler
from tests.guests.nodes import served

bus = ShardBus("retries")


class Busy(Exception):
    pass


@bus.entity("job", shards=8)
class Job(Entity):
    def __init__(self) -> None:
        self.tries = 0

    def attempt(self, needs: int) -> int:
        self.tries += 1
        if self.tries < needs:
            raise Busy
        return self.tries

    @handler
    async def by_loop(self, needs: int) -> int:
        async for attempt in AsyncRetrying(stop=stop_after_attempt(5), wait=wait_none()):
            with attempt:
                await asyncio.sleep(0)
                return self.attempt(needs)
        raise AssertionError

    @handler
    @retry(stop=stop_after_attempt(5), retry=retry_if_exception_type(Busy), reraise=True)
    async def by_decorator(self, needs: int) -> int:
        await asyncio.sleep(0)
        return self.attempt(needs)

    @handler
    @retry(stop=stop_after_attempt(5), retry=retry_if_exception_type(Busy), reraise=True)
    def by_decorator_at_once(self, needs: int) -> int:
        return self.attempt(needs)

    @handler
    @retry(stop=stop_after_attempt(2), wait=wait_none())
    async def in_vain(self) -> None:
        raise Busy

    @handler
    def sometimes(self, needs: int) -> int:
        return self.attempt(needs)


async def test_a_handler_tries_again() -> None:
    async with served(bus) as client:
        assert await client.ref(Job, "a").by_loop(3) == 3
        assert await client.ref(Job, "b").by_decorator(4) == 4
        assert await client.ref(Job, "c").by_decorator_at_once(5) == 5
        with pytest.raises(EntityFailed, match="Busy"):
            await client.ref(Job, "d").by_decorator(9)
        with pytest.raises(EntityFailed, match="RetryError"):
            await client.ref(Job, "e").in_vain()
        assert await client.ref(Job, "e").sometimes(1) == 1


async def test_an_ask_is_tried_again() -> None:
    async with served(bus) as client:

        @retry(stop=stop_after_attempt(5), retry=retry_if_exception_type(EntityFailed))
        async def ask(name: str) -> int:
            return await client.ref(Job, name).sometimes(1)

        assert await ask("a") == 1
        tried = 0

        @retry(
            stop=stop_after_attempt(3),
            retry=retry_if_exception(lambda e: isinstance(e, RequestError) and e.definite),
            reraise=True,
        )
        async def ask_again_only_if_it_is_safe(needs: int) -> int:
            nonlocal tried
            tried += 1
            return await client.ref(Job, "b").sometimes(needs)

        with pytest.raises(EntityFailed):
            await ask_again_only_if_it_is_safe(2)
        assert tried == 1


async def test_an_ask_is_retried_in_a_function_of_ones_own() -> None:
    """tenacity awaits only results of a coroutine function, and an ask returns a future."""
    async with served(bus) as client:
        again = AsyncRetrying(stop=stop_after_attempt(3), wait=wait_none())

        async def ask(name: str) -> int:
            return await client.ref(Job, name).sometimes(1)

        async def in_vain() -> None:
            await client.ref(Job, "b").in_vain()

        assert await again(ask, "a") == 1
        with pytest.raises(RetryError):
            await again(in_vain)
