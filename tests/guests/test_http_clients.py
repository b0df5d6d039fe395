"""httpx and aiohttp: a session for each entity, opened in `on_start` and closed in `on_stop`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import httpx
import pytest
from aiohttp import web

from shardbus import AsyncClient, Entity, EntityFailed, ShardBus, StopReason, handler
from tests.guests.nodes import served
from tests.waiting import PATIENCE_S, turns, until

bus = ShardBus("http")


class Site:
    """A web server of aiohttp. `slow` answers once `free` is set."""

    url = ""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.began = 0


site = Site()
closed: list[str] = []


async def hello(request: web.Request) -> web.Response:
    return web.json_response({"hello": request.match_info["name"]})


async def slow(request: web.Request) -> web.Response:
    site.began += 1
    await site.free.wait()
    return web.Response(text="late")


@asynccontextmanager
async def serving() -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get("/hello/{name}", hello), web.get("/slow", slow)])
    runner = web.AppRunner(app)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    site.free, site.began = asyncio.Event(), 0
    closed.clear()
    try:
        yield
    finally:
        site.free.set()
        await runner.cleanup()


@bus.entity("httpx", shards=8)
class WithHttpx(Entity):
    async def on_start(self) -> None:
        self.session = httpx.AsyncClient(base_url=site.url, timeout=PATIENCE_S)

    async def on_stop(self, reason: StopReason) -> None:
        await self.session.aclose()
        closed.append(self.context.entity_id)

    @handler
    async def hello(self) -> str:
        answer = await self.session.get(f"/hello/{self.context.entity_id}")
        name: str = answer.raise_for_status().json()["hello"]
        return name

    @handler
    async def many(self) -> list[int]:
        answers = await asyncio.gather(*(self.session.get(f"/hello/{n}") for n in range(5)))
        return [answer.status_code for answer in answers]

    @handler
    async def late(self) -> str:
        try:
            await self.session.get("/slow", timeout=0.05)
        except httpx.TimeoutException as error:
            return type(error).__name__
        return "in time"

    @handler
    async def given_up(self) -> str:
        try:
            async with asyncio.timeout(0.05):
                await self.session.get("/slow")
        except TimeoutError:
            return await self.hello()
        return "in time"

    @handler
    async def waits(self) -> str:
        return (await self.session.get("/slow")).text

    @handler
    async def missing(self) -> None:
        (await self.session.get("/nowhere")).raise_for_status()


@bus.entity("aiohttp", shards=8)
class WithAiohttp(Entity):
    async def on_start(self) -> None:
        self.session = aiohttp.ClientSession(base_url=site.url)

    async def on_stop(self, reason: StopReason) -> None:
        await self.session.close()
        closed.append(self.context.entity_id)

    @handler
    async def hello(self) -> str:
        """aiohttp's own timeout reads the current task, and cancels it."""
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self.session.get(f"/hello/{self.context.entity_id}", timeout=limit) as answer:
            name: str = (await answer.json())["hello"]
        return name

    @handler
    async def many(self) -> list[int]:
        async def status_of(n: int) -> int:
            async with self.session.get(f"/hello/{n}") as answer:
                return answer.status

        return list(await asyncio.gather(*(status_of(n) for n in range(5))))

    @handler
    async def late(self) -> str:
        limit = aiohttp.ClientTimeout(total=0.05)
        try:
            async with self.session.get("/slow", timeout=limit):
                pass
        except TimeoutError as error:
            return type(error).__name__
        return "in time"

    @handler
    async def given_up(self) -> str:
        try:
            async with asyncio.timeout(0.05), self.session.get("/slow"):
                pass
        except TimeoutError:
            return await self.hello()
        return "in time"

    @handler
    async def waits(self) -> str:
        async with self.session.get("/slow") as answer:
            return await answer.text()

    @handler
    async def missing(self) -> None:
        async with self.session.get("/nowhere") as answer:
            answer.raise_for_status()


async def talk(client: AsyncClient, kind: type[WithHttpx] | type[WithAiohttp], late: str) -> None:
    ref = client.ref(kind, "a")
    for n in range(3):
        assert await ref.hello() == "a"
        assert await ref.many() == [200] * 5
        assert await ref.late() == late
        assert await ref.given_up() == "a"
        with pytest.raises(EntityFailed, match="404"):
            await client.ref(kind, f"b{n}").missing()
    names = [f"{kind.__name__}{n}" for n in range(20)]
    assert await asyncio.gather(*(client.ref(kind, name).hello() for name in names)) == names


async def test_httpx_in_handlers() -> None:
    async with serving(), served(bus) as client:
        await talk(client, WithHttpx, "ReadTimeout")
    assert {"a", "b0", "WithHttpx7"} <= set(closed)


async def test_aiohttp_in_handlers() -> None:
    async with serving(), served(bus) as client:
        await talk(client, WithAiohttp, "TimeoutError")
    assert {"a", "b0", "WithAiohttp7"} <= set(closed)


async def test_a_request_ends_with_the_program_that_asked_and_the_entity_goes_on() -> None:
    """The asker gives up; the handler's request goes on, and ends in its own time."""
    async with serving(), served(bus) as client:
        for kind in (WithHttpx, WithAiohttp):
            ref, began = client.ref(kind, "a"), site.began
            asking = asyncio.ensure_future(ref.waits())
            await until(lambda began=began: site.began > began, "the request")
            asking.cancel()
            await turns()
            site.free.set()
            assert await ref.hello() == "a"
            site.free.clear()


async def test_a_service_of_aiohttp_uses_a_client() -> None:
    """Its `cleanup_ctx` opens and closes the client in the service's loop."""
    async with serving(), served(bus) as client:
        address = f"tcp://{client.contact.address}"  # type: ignore[union-attr]
        key = web.AppKey("shop", AsyncClient)

        async def connected(app: web.Application) -> AsyncIterator[None]:
            async with AsyncClient(address, cluster=bus.name, timeout=PATIENCE_S) as inner:
                app[key] = inner
                yield

        async def ask(request: web.Request) -> web.Response:
            ref = request.app[key].ref(WithHttpx, request.match_info["id"])
            return web.Response(text=await ref.hello())

        app = web.Application()
        app.cleanup_ctx.append(connected)
        app.router.add_get("/{id}", ask)
        runner = web.AppRunner(app)
        await runner.setup()
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            for n in range(5):
                async with session.get(f"/e{n}") as answer:
                    assert await answer.text() == f"e{n}"
        await runner.cleanup()
