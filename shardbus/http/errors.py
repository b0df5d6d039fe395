"""Errors in HTTP: a status and `{"error": {"code", "message", "hint"}}`.

The first class of the table that matches decides, so subclasses stand before their parents. An
exception without an entry is a defect: status 500, with its text in the log and not in the answer.
"""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shardbus import errors

STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.UnknownEntityType, 404, "unknown_entity_type"),
    (errors.SchemaError, 400, "bad_request"),
    (errors.KeyReused, 422, "key_reused"),
    (errors.MessageTooLarge, 413, "too_large"),
    (errors.BufferFull, 503, "busy"),
    (errors.MailboxFull, 503, "busy"),
    (errors.NodeLost, 503, "node_lost"),
    (errors.ConfigError, 400, "bad_request"),
    (errors.StateChanged, 409, "state_changed"),
    (errors.Refused, 409, "refused"),
    (errors.AskTimeout, 504, "timeout"),
    (TimeoutError, 504, "timeout"),
    (errors.ValueRefused, 409, "value_refused"),
    (errors.StoreError, 503, "store_unavailable"),
    (errors.ShardBusError, 500, "failed"),
)

CODES = {404: "not_found", 405: "method_not_allowed"}


class Forbidden(errors.ShardBusError):
    """The caller lacks the permission for a write."""


def error(status: int, code: str, message: str, hint: str = "") -> JSONResponse:
    """One error in the common form."""
    return JSONResponse(body(code, message, hint), status_code=status)


def body(code: str, message: str, hint: str = "") -> dict[str, dict[str, Any]]:
    """The common form, to which more fields may be added."""
    return {"error": {"code": code, "message": message, "hint": hint}}


def on_known_error(request: Request, exception: Exception) -> Response:
    """The answer to an error of the table."""
    if isinstance(exception, Forbidden):
        return error(403, "forbidden", exception.message, exception.hint)
    status, code = next(
        (status, code) for kind, status, code in STATUSES if isinstance(exception, kind)
    )
    if isinstance(exception, errors.ShardBusError):
        return error(status, code, exception.message, exception.hint)
    return error(status, code, "no answer in time", "try again, or ask another node")


def on_http_error(request: Request, exception: Exception) -> Response:
    """The answer to an unknown path or method."""
    assert isinstance(exception, HTTPException)
    code = CODES.get(exception.status_code, "bad_request")
    message = f"{request.method} {request.url.path}: {exception.detail}"
    answer = error(exception.status_code, code, message, "see /v1/cluster, /v1/nodes, /v1/types")
    answer.headers.update(exception.headers or {})
    return answer


def on_defect(request: Request, exception: Exception) -> Response:
    """The answer to a defect; the server logs the traceback."""
    return error(500, "internal", "this node failed to answer", "its log has the reason")


HANDLERS: dict[Any, Any] = {
    errors.ShardBusError: on_known_error,
    TimeoutError: on_known_error,
    HTTPException: on_http_error,
    Exception: on_defect,
}
"""An application's `exception_handlers=`."""
