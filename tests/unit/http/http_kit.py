"""A node that remembers the requests of its pages, and a client of its pages."""

from __future__ import annotations

import asyncio

import httpx
from starlette.responses import Response

from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.http.page import Events, Json
from tests.page_doubles import PageDouble

ME = "127.0.0.1:7355#00000000000000aa"


class FakeNode(PageDouble):
    """A node that remembers its requests."""

    cluster_name = "shop"

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []
        self.failure: Exception | None = None
        self.more = asyncio.Event()

    async def answer(self, page: str, *values: object) -> Json:
        self.requests.append((page, *values))
        if self.failure:
            raise self.failure
        return await super().answer(page, *values)

    async def metrics(self) -> Response:
        return Response(b"shardbus_build_info 1.0\n", media_type="text/plain")

    async def events(self) -> Events:
        yield {"event": "snapshot"}
        await self.more.wait()
        yield {"event": "MemberUp"}


def client_of(
    node: FakeNode, settings: HttpSettings | None = None, base_url: str = "http://127.0.0.1:8558"
) -> httpx.AsyncClient:
    app = create_app(node.pages, settings or HttpSettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


WRITE = HttpSettings(write=True, token="open sesame")


BEARER = {"authorization": "Bearer open sesame"}


HERE, THERE = "127.0.0.1", "0.0.0.0"


OPERATOR, READER = "operator of the tests", "reader of the tests"


def with_tokens(host: str, *, operator: bool, reader: bool) -> HttpSettings:
    return HttpSettings(
        host=host,
        write=operator,
        token=OPERATOR if operator else "",
        reader_token=READER if reader else "",
    )
