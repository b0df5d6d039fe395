"""shardbus in a Starlette or FastAPI application.

    def shop_client() -> AsyncClient:
        return AsyncClient("tcp://10.0.0.1:7355", cluster="shop")

    app = FastAPI(lifespan=lifespan(shop_client), exception_handlers=exception_handlers)

    @app.post("/baskets/{id}")
    async def put(id: str, shop: Annotated[AsyncClient, Depends(client_of)]) -> int:
        return await shop.ref(Basket, id).put()

`lifespan` connects a client, or starts a node that is embedded (`bus.run(...)`), with the
application, and ends it with the application. A client and a node are for one start, so an
application that starts several times in a process, as in tests, gives a function that makes one; a
process that a server forks then makes its own, too. `client_of` is the client of a request or of a
WebSocket. `exception_handlers` answer requests whose ask failed, in the form of the HTTP interface
of a node: `{"error": {"code", "message", "hint"}}`, and beside them `definite`: True if no handler
has begun, so that the request may be sent again. Only then a 503 has `Retry-After`.

    Rejection                                    409, or `http_status` of its class; with `fields`
    SchemaError                                  422; 500 if it is the answer that does not fit
    KeyReused                                    422
    MessageTooLarge                              413
    BufferFull, MailboxFull                      503, Retry-After: 1 if it is definite
    NodeLost                                     503
    AskTimeout                                   504
    EntityFailed, Unhandled, UnknownEntityType   500: a defect; its text is logged, not sent

Source: docs/how-to/web.md.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields, is_dataclass
from typing import Any, cast

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shardbus import errors
from shardbus.client.asynchronous import AsyncClient
from shardbus.error_text import text_of, type_name
from shardbus.guarded_log import GuardedLog
from shardbus.http.errors import body

log = GuardedLog("shardbus.web")

RETRY_AFTER_S = 1
REJECTED = 409
DEFECT = 500
STATUSES: tuple[tuple[type[errors.RequestError], int, str], ...] = (
    (errors.SchemaError, 422, "invalid"),
    (errors.KeyReused, 422, "key_reused"),
    (errors.MessageTooLarge, 413, "too_large"),
    (errors.BufferFull, 503, "busy"),
    (errors.MailboxFull, 503, "busy"),
    (errors.NodeLost, 503, "node_lost"),
    (errors.AskTimeout, 504, "timeout"),
)
"""Errors that are no defects, with their status and their code."""
REQUESTS = (errors.SchemaError, errors.MessageTooLarge)
"""Errors of the request; of the answer, if they are not definite, and so a defect."""

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]
Resource = AbstractAsyncContextManager[Any] | Callable[[], AbstractAsyncContextManager[Any]]


def lifespan(*resources: Resource) -> Lifespan:
    """Return the lifespan of an application: it enters these, in order, and leaves them in the
    opposite order. A function among them is called at each start, and makes the resource that is
    entered. `client_of` returns the client among them; the first one, if there are several.

    Raises:
        ConfigError: an argument, or at the start the result of a function, cannot be entered by
            `async with`.
    """
    for resource in resources:
        if not callable(resource):
            _check(resource)

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            entered = [await stack.enter_async_context(_made(resource)) for resource in resources]
            clients = (client for client in entered if isinstance(client, AsyncClient))
            app.state.shardbus_client = next(clients, None)
            yield

    return running


def _made(resource: Resource) -> AbstractAsyncContextManager[Any]:
    """Return the resource of one start: itself, or the one it makes."""
    if not hasattr(type(resource), "__aenter__") and callable(resource):
        resource = resource()
    return _check(resource)


def _check(resource: Any) -> AbstractAsyncContextManager[Any]:
    if hasattr(type(resource), "__aenter__"):
        return cast("AbstractAsyncContextManager[Any]", resource)
    if inspect.iscoroutine(resource):
        resource.close()
    raise errors.ConfigError(
        f"lifespan cannot enter {resource!r:.100}",
        hint="give a client, bus.run(...), or a function that returns one and is not async",
    )


class TraceContext:
    """ASGI middleware: the W3C trace context of a request's headers is current while the request is
    handled, so that the messages of a client with `tracing` join that trace. If another
    instrumentation has begun a span, that stays current.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, app: ASGIApp) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as e:
            hint = "pip install 'shardbus[otel]'"
            raise errors.ConfigError(f"tracing needs OpenTelemetry: {e}", hint=hint) from None
        self._app = app
        self._context, self._propagate, self._trace = context, propagate, trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_traced = self._trace.get_current_span().get_span_context().is_valid
        if scope["type"] not in ("http", "websocket") or is_traced:
            await self._app(scope, receive, send)
            return
        carrier = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        token = self._context.attach(self._propagate.extract(carrier))
        try:
            await self._app(scope, receive, send)
        finally:
            self._context.detach(token)


def client_of(connection: HTTPConnection) -> AsyncClient:
    """Return the application's client, for a request or a WebSocket: a dependency for FastAPI.

    Raises:
        ConfigError: the application has no lifespan with a client.
    """
    client = getattr(connection.app.state, "shardbus_client", None)
    if client is None:
        raise errors.ConfigError(
            "this application has no client of shardbus",
            hint="give it lifespan=lifespan(lambda: AsyncClient(...))",
        )
    assert isinstance(client, AsyncClient)
    return client


def response_of(error: errors.RequestError) -> Response:
    """Return the answer to a request that failed with this error."""
    message, hint = str(error.message), str(error.hint)
    if isinstance(error, errors.Rejection):
        status = getattr(error, "http_status", REJECTED)
        return _answer(error, status, error.type, message, hint, fields=_fields(error))
    for kind, status, code in STATUSES:
        if isinstance(error, kind) and (error.definite or kind not in REQUESTS):
            return _answer(error, status, code, message, hint)
    log.error("a request failed: %s: %s", type_name(error), text_of(error))
    return _answer(error, DEFECT, "failed", "the request failed; the log has the reason")


def _fields(error: object) -> Any:
    shown = fields(error) if is_dataclass(error) else ()
    values = {field.name: getattr(error, field.name) for field in shown}
    return msgspec.to_builtins(values, str_keys=True)


def _answer(
    error: errors.RequestError, status: int, code: str, message: str, hint: str = "", **more: Any
) -> Response:
    content = body(code, message, hint)
    content["error"] |= {"definite": error.definite, **more}
    again = status == 503 and error.definite
    headers = {"Retry-After": str(RETRY_AFTER_S)} if again else None
    return JSONResponse(content, status_code=status, headers=headers)


async def on_request_error(request: Request, error: errors.RequestError) -> Response:
    """Answer a request whose ask failed."""
    return response_of(error)


exception_handlers: dict[
    int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]
] = {errors.RequestError: on_request_error}
"""The argument `exception_handlers=` of an application."""
