"""Errors of asks as answers of a web application, and the clients that its lifespan opens and
closes."""

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
    body = answer.json()["error"]
    assert (answer.status_code, body["code"], body["definite"]) == (status, code, definite)
    assert body.keys() >= {"message", "hint"}
    assert ("Retry-After" in answer.headers) is (status == 503 and definite)
    assert "secret" not in answer.text


def test_a_rejection_shows_its_fields() -> None:
    error = TestClient(application(SoldOut(2))).get("/").json()["error"]
    assert error["fields"] == {"left": 2, "of": "pens"}
    assert error["message"] == "left=2, of='pens'"


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


def test_a_function_makes_what_each_start_enters() -> None:
    said: list[str] = []
    app = application(None, lambda: Fake(said))
    clients = []
    for _ in range(3):
        with TestClient(app) as web:
            assert web.get("/").json() is True
            clients.append(app.state.shardbus_client)
    assert said == ["client", "client ends"] * 3
    assert len({id(client) for client in clients}) == 3


def test_a_manager_that_can_be_called_is_entered_and_not_called() -> None:
    """`contextlib` makes such ones, which decorate functions."""
    said: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[int]:
        said.append("entered")
        yield 1

    with TestClient(application(None, resource())):
        assert said == ["entered"]
    for _ in range(2):
        with TestClient(application(None, resource)):
            pass
    assert said == ["entered"] * 3


async def make_late() -> Fake:
    return Fake([])


def test_what_cannot_be_entered_is_refused_with_what_to_give() -> None:
    entered: Any = {"a": "client"}
    with pytest.raises(ConfigError, match=r"cannot enter {'a': 'client'}.*a function that"):
        lifespan(entered)
    for make in (lambda: None, make_late):
        app: Any = application(None, make)
        with pytest.raises(ConfigError, match=r"cannot enter.*not async"), TestClient(app):
            pass
