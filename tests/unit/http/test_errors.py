"""Errors in HTTP: a status, a code, and no detail of a defect."""

from __future__ import annotations

import pytest

from shardbus.errors import ConfigError, StoreUnavailable, UnknownEntityType


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (UnknownEntityType("no type 'x'", hint="see types"), 404, "unknown_entity_type"),
        (StoreUnavailable("redis is away"), 503, "store_unavailable"),
        (ConfigError("no such cursor"), 400, "bad_request"),
        (TimeoutError(), 504, "timeout"),
        (ZeroDivisionError("secret detail"), 500, "internal"),
    ],
)
async def test_errors_have_one_form(client, node, failure, status, code):
    node.failure = failure
    answer = await client.get("/v1/shards/x")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert "secret detail" not in answer.text
