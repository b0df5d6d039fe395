"""Errors of asks as answers of a web application, and what its lifespan opens and closes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from shardbus import AsyncClient, ConfigError, Rejection, RequestError
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    EntityFailed,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    SchemaError,
    Unhandled,
    UnknownEntityType,
)
from shardbus.integrations.starlette import client_of, exception_handlers, lifespan, response_of


@dataclass
class SoldOut(Rejection):
    left: int
    of: str = "pens"


@dataclass
class TooMany(Rejection):
    http_status = 429


@dataclass
class Unavailable(Rejection):
    http_status = 503


def begun(error: RequestError) -> RequestError:
    """An error of an ask with which a handler has begun."""
    error.definite = False
    return error


def application(error: Exception | None = None, *resources: Any) -> Starlette:
    async def route(request: Request) -> Response:
        if error is not None:
            raise error
        return JSONResponse(client_of(request) is request.app.state.shardbus_client)

    return Starlette(
        routes=[Route("/", route)],
        exception_handlers=dict(exception_handlers),
        lifespan=lifespan(*resources),
    )


@pytest.mark.parametrize(
    ("error", "status", "code", "definite"),
    [
        (SchemaError("amount: expected int"), 422, "invalid", True),
        (MessageTooLarge("too large"), 413, "too_large", True),
        (BufferFull("full"), 503, "busy", True),
        (MailboxFull("full"), 503, "busy", True),
        (NodeLost("gone"), 503, "node_lost", False),
        (AskTimeout("late"), 504, "timeout", False),
        (SoldOut(2), 409, "SoldOut", False),
        (TooMany(), 429, "TooMany", False),
        (Rejection("no", type="Elsewhere"), 409, "Elsewhere", False),
        (EntityFailed("ValueError", "a secret"), 500, "failed", False),
        (Unhandled("no handler"), 500, "failed", True),
        (UnknownEntityType("no type"), 500, "failed", True),
        (begun(MailboxFull("stashed")), 503, "busy", False),
        (begun(BufferFull("sent to one instance")), 503, "busy", False),
        (begun(SchemaError("the answer does not fit: a secret")), 500, "failed", False),
        (begun(Unhandled("declined")), 500, "failed", False),
        (Unavailable(), 503, "Unavailable", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_is_an_answer(error: RequestError, status: int, code: str, definite: bool) -> None:
    answer = TestClient(application(error)).get("/")
    found = answer.json()["error"]
    assert (answer.status_code, found["code"], found["definite"]) == (status, code, definite)
    assert found.keys() >= {"message", "hint"}
    assert ("Retry-After" in answer.headers) is (status == 503 and definite)
    assert "secret" not in answer.text


def test_a_rejection_shows_its_fields() -> None:
    found = TestClient(application(SoldOut(2))).get("/").json()["error"]
    assert found["fields"] == {"left": 2, "of": "pens"}
    assert found["message"] == "left=2, of='pens'"


def test_a_defect_is_logged_with_its_text(caplog: pytest.LogCaptureFixture) -> None:
    response_of(EntityFailed("ValueError", "a secret"))
    assert "EntityFailed: ValueError: a secret" in caplog.text


def test_another_error_is_not_taken_for_one_of_shardbus() -> None:
    with pytest.raises(ZeroDivisionError):
        TestClient(application(ZeroDivisionError())).get("/")


class Fake(AsyncClient):
    """A client without a cluster."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    async def __aenter__(self) -> Fake:
        self.said.append("client")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.said.append("client ends")


def test_the_lifespan_opens_in_order_and_closes_in_the_opposite_order() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[int]:
        said.append("resource")
        yield 1
        said.append("resource ends")

    app = application(None, resource(), Fake(said))
    with TestClient(app) as web:
        assert said == ["resource", "client"]
        assert web.get("/").json() is True
    assert said[2:] == ["client ends", "resource ends"]


def test_without_a_client_the_error_says_what_to_do() -> None:
    with TestClient(application(None)) as web, pytest.raises(ConfigError, match="no client"):
        web.get("/")
