"""The HTTP interface: declared pages (`page`) behind the guard, and the dashboard.

Ids are values: they stand percent-encoded in the path and are taken from it before decoding, so
that an id may hold a slash. No GET changes anything, no path redirects, and every answer but
a stream of events has a deadline.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import assert_never
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError, Refused
from shardbus.http.dashboard import page_routes
from shardbus.http.errors import HANDLERS
from shardbus.http.guard import Guard, check_operator, check_write
from shardbus.http.page import AnyPage, Checks, Events, Json, NodePages, Source
from shardbus.http.request_input import TargetCheck, read_json
from shardbus.task_set import TaskSet

ANSWER_DEADLINE_S = 4.5
STREAMS_MAX = 20
KEEP_ALIVE_S = 15.0
"""Without an event, until a stream gets a comment."""
BODY_MAX = 16 * 2**20
BODY_SMALL = 2**16
"""A larger body is read in a thread, so that the loop goes on."""


def create_app(
    pages: NodePages,
    settings: HttpSettings,
    advertised: str = "",
    others: Sequence[Route] = (),
) -> Starlette:
    """Return the application of these pages. `advertised`: the host for other nodes; `others`:
    routes for requests that no page answers."""
    streams = EventStreams()
    by_path: dict[tuple[str, str], list[AnyPage]] = {}
    for page in pages.values():
        path = f"{page.prefix}{{rest:path}}" if page.prefix[-1] == "/" else page.prefix
        by_path.setdefault((path, page.method), []).append(page)
    routes = [
        Route(path, PageEndpoint(of_path, settings, streams).answer, methods=[method])
        for (path, method), of_path in by_path.items()
    ]
    app = Starlette(
        routes=[*routes, *page_routes(), *others],
        middleware=[
            Middleware(Guard, settings=settings, advertised=advertised),
            Middleware(TargetCheck),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


class EventStreams:
    """Counts the open streams of an application."""

    def __init__(self) -> None:
        self.open = 0

    def response(self, events: Events) -> Response:
        """Return a stream of events.

        Raises:
            Refused: there are `STREAMS_MAX` streams.
        """
        if self.open >= STREAMS_MAX:
            raise Refused(f"{STREAMS_MAX} clients read events already", hint="ask another node")
        return StreamingResponse(self._lines(events), media_type="text/event-stream")

    async def _lines(self, events: Events) -> AsyncIterator[bytes]:
        """Yield the events, and a comment where none comes for `KEEP_ALIVE_S`: a proxy ends a
        stream that is silent, and a client whose machine is gone is noticed by writes alone."""
        lines: asyncio.Queue[bytes] = asyncio.Queue(1)
        reading = TaskSet()
        self.open += 1
        try:
            reading.spawn(_read(events, lines), name="shardbus-events")
            while True:
                line = b": no event\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        line = await lines.get()
                if not line:
                    return
                yield line
        finally:
            self.open -= 1
            reading.cancel()


async def _read(events: Events, lines: asyncio.Queue[bytes]) -> None:
    """Put the events as lines, and an empty one at their end."""
    try:
        async for event in events:
            await lines.put(b"data: " + msgspec.json.encode(event) + b"\n\n")
    except Exception:
        await lines.put(b"")
        raise
    await lines.put(b"")


class PageEndpoint:
    """Answers the requests of one method for one prefix, by its pages."""

    def __init__(self, pages: list[AnyPage], settings: HttpSettings, streams: EventStreams) -> None:
        self.pages, self._settings, self._streams = pages, settings, streams

    async def answer(self, request: Request) -> Response:
        """Check the permission, convert the parameters, call the page, and send its result."""
        parts = _parts(request, self.pages[0].prefix.count("/"))
        page = self._page(parts, request)
        if page.method != "GET":
            check_write(request, self._settings)
        elif page.operators_only:
            check_operator(request, self._settings, page.operators_only)
        arguments = await _arguments(page, parts, request)
        if page.sent == Events:
            return self._streams.response(page(**arguments))
        if page.sent == Json:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                return _sent(msgspec.json.encode(await page(**arguments)))
        result = await page(**arguments)
        return result if isinstance(result, Response) else _probe(request, result)

    def _page(self, parts: list[str], request: Request) -> AnyPage:
        """Return the page that the path names. A permission is checked before the path of a page
        that has no other beside it."""
        if len(self.pages) == 1:
            return self.pages[0]
        for page in self.pages:
            if page.matches(parts, request.query_params):
                return page
        raise HTTPException(404)


async def _arguments(page: AnyPage, parts: list[str], request: Request) -> dict[str, object]:
    """Return the arguments of a page. The query is read before the path, the body is last."""
    texts, arguments = page.texts(parts), dict[str, object]()
    for parameter in sorted(page.parameters, key=attrgetter("source")):
        name = parameter.name
        match parameter.source:
            case Source.QUERY:
                arguments[name] = parameter.value(request.query_params.getlist(name))
            case Source.CLIENT:
                arguments[name] = _client(request)
            case Source.PATH:
                if texts is None:
                    raise HTTPException(404)
                arguments[name] = parameter.value([texts[name]])
            case Source.BODY:
                arguments[name] = await _body(request)
            case never:
                assert_never(never)
    return arguments


def _parts(request: Request, skipped: int) -> list[str]:
    """Return the parts of the path after the first `skipped`, each decoded by itself."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    parts = raw.decode("latin-1").partition("?")[0].split("/")[skipped:]
    return [unquote(part, errors="strict") for part in parts]  # checked by TargetCheck


async def _body(request: Request) -> object:
    """Return the JSON in a body of at most `BODY_MAX` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise ConfigError(f"the body has more than {BODY_MAX} bytes")
    if len(body) > BODY_SMALL:
        return await asyncio.to_thread(read_json, bytes(body))
    return read_json(bytes(body))


def _client(request: Request) -> str:
    """The operator, for the log: the address that the request came from."""
    return f"operator at {request.client.host}" if request.client is not None else "operator"


def _sent(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _probe(request: Request, checks: Checks) -> Response:
    ok = all(check.ok for check in checks.values())
    body = msgspec.json.encode({"status": "ok" if ok else "unavailable", "checks": checks})
    if "verbose" in request.query_params:
        body = msgspec.json.format(body, indent=2) + b"\n"
    return _sent(body, 200 if ok else 503)
