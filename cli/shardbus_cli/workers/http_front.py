"""The unit's HTTP: one address for all workers.

    POST /v1/nodes/self/...  is refused with 409: several nodes share this address
    GET  /ui                 the page for operators, which shows the cluster by one of the workers
    the pages below          are answered here
    anything else            is forwarded to the first worker that serves

A worker answers for the cluster as any node does. Requests to a worker use HTTP/1.0, so that an
answer ends with its connection, and a stream of events can be forwarded as it is.

Source: docs/reference/http.md; B.142, B.143.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.http.errors import error
from shardbus.http.guard import HEADERS
from shardbus.http.page import Check, Checks, Json, page
from shardbus_cli.workers.exposition import merged

ANSWER_DEADLINE_S = 5.0
CHUNK_BYTES, HEAD_BYTES_MAX, BODY_BYTES_MAX = 64 * 2**10, 64 * 2**10, 2**20
FORWARDED = (b"host", b"authorization", b"accept", b"content-type")
OWN_HEADERS = (b"connection", b"transfer-encoding", b"date", *(name for name, _ in HEADERS))
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Place = tuple[str, int]
Row = dict[str, Any]
"""A worker, as `/v1/workers` shows it."""


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

    def rows(self) -> list[Row]: ...


class Front:
    """The unit and its settings, as pages see them."""

    def __init__(self, unit: WorkerUnit, settings: HttpSettings) -> None:
        self.unit = unit
        self.token = settings.reader_token or settings.token
        self._tls_cert = settings.tls_cert

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS to workers, which have the certificate of the unit: exactly that one counts."""
        if not self._tls_cert:
            return None
        context = ssl.create_default_context(cafile=self._tls_cert)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

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
        for place in self.unit.serving.values():
            try:
                return await _passed_on(place, request, body, self.tls)
            except (OSError, ValueError, TimeoutError, EOFError):
                if request.method != "GET":
                    return error(504, "timeout", "the worker did not answer", "see its log")
        return error(503, "unavailable", "no worker serves yet", "see /v1/workers")


@page("GET", "/livez")
async def livez(front: Front) -> Checks:
    """The supervisor works."""
    return {"supervisor": Check(True, "runs")}


@page("GET", "/readyz")
async def readyz(front: Front) -> Checks:
    """Every worker is ready, except workers that left by command, and the unit is not leaving;
    checks are named `worker N: ...`."""
    unit, checks = front.unit, dict[str, Check]()
    stages = {row["worker"]: row["stage"] for row in unit.rows()}
    texts = await _of_all(unit.serving, "/readyz", front.tls)
    for worker in unit.expected:
        of_worker = _checks_of(texts.get(worker, ""))
        if not of_worker:
            checks[f"worker {worker}"] = Check(False, stages[worker])
        for name, check in of_worker.items():
            checks[f"worker {worker}: {name}"] = check
    if unit.leaving or not checks:
        checks["unit"] = Check(False, "leaves" if checks else "no worker is left")
    return checks


@page("GET", "/startupz")
async def startupz(front: Front) -> Checks:
    """As `/readyz` until the unit was ready once, then as `/livez`."""
    return await (livez if front.unit.announced else readyz)(front)


@page("GET", "/metrics")
async def metrics(front: Front) -> Response:
    """The metrics of all workers, with a label `worker`."""
    texts = await _of_all(front.unit.serving, "/metrics", front.tls, front.token)
    return Response(merged(texts), headers={"content-type": METRICS_TYPE})


@page("GET", "/v1/workers")
async def workers(front: Front) -> Json:
    """The workers.

    `workers`, each with `worker`, `stage` (`waiting`, `starting`, `joining`, `ready`, `resting`,
    `gone`), `address`, `http`, `pid` (null while none runs) and `starts`.
    """
    return {"workers": front.unit.rows()}


PAGES = (livez, readyz, startupz, metrics, workers)


async def _refuse(request: Request) -> Response:
    return error(409, "refused", "several nodes share this address", "name one, as /v1/nodes does")


def create_front(unit: WorkerUnit, settings: HttpSettings, advertised: str = "") -> Starlette:
    """Return the HTTP application of a unit. `advertised`: its host for other nodes."""
    front = Front(unit, settings)
    others = (
        Route("/v1/nodes/self/{action:path}", _refuse, methods=["POST"]),
        Route("/{rest:path}", front.forward, methods=["GET", "POST", "DELETE"]),
    )
    pages = {declared.name: declared.bound(front) for declared in PAGES}
    return create_app(pages, settings, advertised, others)


def _checks_of(text: str) -> Checks:
    with suppress(ValueError, KeyError, TypeError):
        return {name: Check(**check) for name, check in json.loads(text)["checks"].items()}
    return {}


async def _of_all(
    serving: dict[int, Place], path: str, tls: ssl.SSLContext | None, token: str = ""
) -> dict[int, str]:
    """Return the text of a page from every worker that answers in time."""

    async def text_of(place: Place) -> str:
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                bearer = f"authorization: Bearer {token}\r\n" if token else ""
                request = f"GET {path} HTTP/1.0\r\n{bearer}\r\n".encode("latin-1")
                _, _, reader, writer = await _ask(place, request, tls)
                try:
                    return (await reader.read()).decode(errors="replace")
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError, EOFError):
            return ""

    texts = await asyncio.gather(*map(text_of, serving.values()))
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
    place: Place, request: bytes, tls: ssl.SSLContext | None
) -> tuple[int, list[tuple[bytes, bytes]], asyncio.StreamReader, asyncio.StreamWriter]:
    """Return status and headers of the answer, and the streams of the connection."""
    reader, writer = await asyncio.open_connection(*place, limit=HEAD_BYTES_MAX, ssl=tls)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
        return int(first.split()[1]), headers, reader, writer
    except BaseException:
        writer.close()
        raise
