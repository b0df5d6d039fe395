"""The unit's HTTP: one address for all workers.

    GET  /livez              200 while the supervisor runs
    GET  /readyz             200 if every worker is ready and the unit does not leave; each check is
                             named `worker N: ...`
    GET  /startupz           as /readyz until the unit was ready once, then as /livez
    GET  /metrics            the metrics of all workers, with a label `worker`
    GET  /ui                 the page for operators, which shows the cluster by one of the workers
    GET  /v1/workers         the workers: process, addresses, stage, starts
    anything else            is forwarded to the first worker that serves

A worker answers for the cluster as any node does. A request for "this node" (`/v1/nodes/self/...`)
is refused with 409, because several nodes share this address. Requests to a worker use HTTP/1.0, so
that an answer ends with its connection, and a stream of events can be forwarded as it is.

Source: docs/reference/http.md; B.142, B.143.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shardbus.config.settings import HttpSettings
from shardbus.http.errors import HANDLERS, error
from shardbus.http.guard import HEADERS, Guard
from shardbus.http.page import page_routes
from shardbus.http.request_input import TargetCheck
from shardbus_cli.workers.exposition import merged

ANSWER_DEADLINE_S = 5.0
CHUNK_BYTES, HEAD_BYTES_MAX, BODY_BYTES_MAX = 64 * 2**10, 64 * 2**10, 2**20
FORWARDED = (b"host", b"authorization", b"accept", b"content-type")
OWN_HEADERS = (b"connection", b"transfer-encoding", b"date", *(name for name, _ in HEADERS))
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Json = dict[str, Any]
Place = tuple[str, int]


class WorkerUnit(Protocol):
    """The unit behind the front. `serving` is the HTTP address of each worker that serves."""

    @property
    def announced(self) -> bool: ...

    @property
    def leaving(self) -> bool: ...

    @property
    def expected(self) -> list[int]: ...

    @property
    def serving(self) -> dict[int, Place]: ...

    def rows(self) -> list[Json]: ...


def create_front(unit: WorkerUnit, settings: HttpSettings, advertised: str = "") -> Starlette:
    """Return the HTTP application of a unit. `advertised`: its host for other nodes."""
    pages = _Pages(unit, settings)
    app = Starlette(
        routes=[
            Route("/livez", pages.livez),
            Route("/readyz", pages.readyz),
            Route("/startupz", pages.startupz),
            Route("/metrics", pages.metrics),
            *page_routes(),
            Route("/v1/workers", pages.workers),
            Route("/v1/nodes/self/{action:path}", pages.refused, methods=["POST"]),
            Route("/{rest:path}", pages.forward, methods=["GET", "POST", "DELETE"]),
        ],
        middleware=[
            Middleware(Guard, settings=settings, advertised=advertised),
            Middleware(TargetCheck),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


class _Pages:
    def __init__(self, unit: WorkerUnit, settings: HttpSettings) -> None:
        self._unit, self._settings = unit, settings
        self._tls: ssl.SSLContext | None = None

    @property
    def _context(self) -> ssl.SSLContext | None:
        """The TLS to workers, which have the certificate of the unit: exactly that one counts."""
        if self._settings.tls_cert and self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._settings.tls_cert)
            self._tls.check_hostname = False
            self._tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return self._tls

    @property
    def _token(self) -> str:
        return self._settings.reader_token or self._settings.token

    async def livez(self, request: Request) -> Response:
        return _checked(request, {"supervisor": {"ok": True, "detail": "runs"}})

    async def startupz(self, request: Request) -> Response:
        return await (self.livez if self._unit.announced else self.readyz)(request)

    async def readyz(self, request: Request) -> Response:
        """Return the checks of all workers, except those that left by order."""
        serving = self._unit.serving
        stages = {row["worker"]: row["stage"] for row in self._unit.rows()}
        texts = await _of_all(serving, "/readyz", self._context)
        checks: Json = {}
        for worker in self._unit.expected:
            found = _checks_of(texts.get(worker, ""))
            if not found:
                checks[f"worker {worker}"] = {"ok": False, "detail": stages[worker]}
            for name, check in found.items():
                checks[f"worker {worker}: {name}"] = check
        if self._unit.leaving or not checks:
            checks["unit"] = {"ok": False, "detail": "leaves" if checks else "no worker is left"}
        return _checked(request, checks)

    async def metrics(self, request: Request) -> Response:
        pages = await _of_all(self._unit.serving, "/metrics", self._context, self._token)
        return Response(merged(pages), headers={"content-type": METRICS_TYPE})

    async def workers(self, request: Request) -> Response:
        return JSONResponse({"workers": self._unit.rows()})

    async def refused(self, request: Request) -> Response:
        return error(
            409, "refused", "several nodes share this address", "name one, as /v1/nodes does"
        )

    async def forward(self, request: Request) -> Response:
        """Forward to the first worker that serves. A write is sent only once: it may have
        worked."""
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                body = await body_of(request)
        except TimeoutError:
            return error(408, "timeout", "the body did not arrive", "send it at once")
        if body is None:
            return error(413, "bad_request", "the body is too large")
        for place in self._unit.serving.values():
            try:
                return await _passed_on(place, request, body, self._context)
            except (OSError, ValueError, TimeoutError, EOFError):
                if request.method != "GET":
                    return error(504, "timeout", "the worker did not answer", "see its log")
        return error(503, "unavailable", "no worker serves yet", "see /v1/workers")


def _checked(request: Request, checks: Json) -> Response:
    ok = all(check["ok"] for check in checks.values())
    body = {"status": "ok" if ok else "unavailable", "checks": checks}
    indent = 2 if "verbose" in request.query_params else None
    text = json.dumps(body, indent=indent, ensure_ascii=False)
    return Response(text, 200 if ok else 503, media_type="application/json")


def _checks_of(text: str) -> Json:
    with suppress(ValueError, KeyError, TypeError):
        return dict(json.loads(text)["checks"])
    return {}


async def _of_all(
    serving: dict[int, Place], path: str, tls: ssl.SSLContext | None, token: str = ""
) -> dict[int, str]:
    """Return the text of a page from every worker that answers in time."""

    async def one(place: Place) -> str:
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                bearer = f"authorization: Bearer {token}\r\n" if token else ""
                asked = f"GET {path} HTTP/1.0\r\n{bearer}\r\n".encode("latin-1")
                _, _, reader, writer = await _ask(place, asked, tls)
                try:
                    return (await reader.read()).decode(errors="replace")
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError, EOFError):
            return ""

    texts = await asyncio.gather(*map(one, serving.values()))
    return {worker: text for worker, text in zip(serving, texts, strict=True) if text}


async def _passed_on(
    place: Place, request: Request, body: bytes, tls: ssl.SSLContext | None
) -> Response:
    """Return a worker's answer to this request, streamed."""
    async with asyncio.timeout(ANSWER_DEADLINE_S):
        status, headers, reader, writer = await _ask(place, _written(request, body), tls)

    async def rest() -> AsyncIterator[bytes]:
        try:
            while data := await reader.read(CHUNK_BYTES):
                yield data
        finally:
            writer.close()

    answer = StreamingResponse(rest(), status)
    answer.raw_headers = [pair for pair in headers if pair[0] not in OWN_HEADERS]
    return answer


async def body_of(request: Request) -> bytes | None:
    """Read the body of a request; return None as soon as it has more than `BODY_BYTES_MAX`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    return bytes(body)


def _written(request: Request, body: bytes) -> bytes:
    path = request.scope.get("raw_path") or request.url.path.encode("latin-1", "replace")
    query = request.scope["query_string"]
    target = path.partition(b"?")[0] + (b"?" + query if query else b"")
    lines = [b"%b %b HTTP/1.0" % (request.method.encode("ascii"), target)]
    lines += [b"%b: %b" % (k, v) for k, v in request.headers.raw if k in FORWARDED]
    if body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


async def _ask(
    place: Place, asked: bytes, tls: ssl.SSLContext | None
) -> tuple[int, list[tuple[bytes, bytes]], asyncio.StreamReader, asyncio.StreamWriter]:
    """Return status and headers of the answer, and the streams of the connection."""
    reader, writer = await asyncio.open_connection(*place, limit=HEAD_BYTES_MAX, ssl=tls)
    try:
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
        return int(first.split()[1]), headers, reader, writer
    except BaseException:
        writer.close()
        raise
