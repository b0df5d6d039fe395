"""The HTTP of a unit, before workers that answer, do not, or are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from shardbus.config.settings import HttpSettings
from shardbus_cli.workers import http_front
from shardbus_cli.workers.http_front import create_front
from tests.unit.cli.workers.front_kit import Unit

READY = json.dumps({"status": "ok", "checks": {"membership": {"ok": True, "detail": "up"}}})


@asynccontextmanager
async def worker(answer: bytes, requests: list[bytes]) -> AsyncIterator[int]:
    """One that answers so, or hangs up if that is empty; its port. `asked` collects requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def said(body: str, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} Whatever\r\nX-Own: yes\r\n\r\n{body}".encode()


async def ask(unit: Unit, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(create_front(unit, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, **more)


async def test_a_unit_is_ready_if_each_worker_says_so() -> None:
    async with worker(said(READY), []) as first, worker(said(READY), []) as other:
        answer = await ask(Unit(first, other), "/readyz")
        assert answer.status_code == 200
        assert list(answer.json()["checks"]) == ["worker 0: membership", "worker 1: membership"]
        unready = READY.replace("true", "false")
        async with worker(said(unready, 503), []) as third:
            answer = await ask(Unit(first, third), "/readyz")
            assert answer.status_code == 503
            assert not answer.json()["checks"]["worker 1: membership"]["ok"]


async def test_a_worker_that_rests_or_does_not_answer_is_named() -> None:
    async with worker(said(READY), []) as first, worker(b"", []) as mute:
        answer = await ask(Unit(first, None, mute), "/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["worker 1"] == {"ok": False, "detail": "resting"}
    assert not answer.json()["checks"]["worker 2"]["ok"]


async def test_a_unit_that_leaves_is_not_ready_though_its_workers_are() -> None:
    async with worker(said(READY), []) as first:
        unit = Unit(first)
        unit.leaving = True
        assert (await ask(unit, "/readyz")).status_code == 503
        assert (await ask(unit, "/livez")).status_code == 200


async def test_a_start_is_over_once_the_unit_was_ready() -> None:
    unit = Unit(None)
    assert (await ask(unit, "/startupz")).status_code == 503
    unit.announced = True
    assert (await ask(unit, "/startupz")).status_code == 200
    assert (await ask(unit, "/readyz")).status_code == 503


async def test_a_page_comes_from_the_first_that_answers_as_it_was_asked_for() -> None:
    requests: list[bytes] = []
    async with worker(b"", []) as mute, worker(said("{}", 404), requests) as good:
        path = "/v1/where/a%2Fb/c%20d?x=1"
        answer = await ask(Unit(mute, good), path, headers={"authorization": "Bearer t"})
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (404, "{}", "yes")
    [request] = requests
    lines = request.lower().split(b"\r\n")
    assert lines[0] == b"get /v1/where/a%2fb/c%20d?x=1 http/1.0"
    assert b"authorization: bearer t" in lines


async def test_a_write_goes_to_one_worker_only() -> None:
    requests: list[bytes] = []
    async with worker(b"", requests) as mute, worker(said("{}"), requests) as good:
        answer = await ask(Unit(mute, good), "/v1/rebalance/shop", "POST")
    assert answer.status_code == 504
    assert len(requests) == 1


async def test_a_request_for_this_node_is_refused() -> None:
    requests: list[bytes] = []
    async with worker(said("{}"), requests) as good:
        answer = await ask(Unit(good), "/v1/nodes/self/leave", "POST")
    assert (answer.status_code, requests) == (409, [])


async def test_without_workers_there_is_an_answer_all_the_same() -> None:
    answer = await ask(Unit(None), "/v1/nodes")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert (await ask(Unit(), "/readyz")).status_code == 503


async def test_a_silent_worker_delays_an_answer_up_to_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_front, "ANSWER_DEADLINE_S", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await ask(Unit(port), "/readyz")
        assert not answer.json()["checks"]["worker 0"]["ok"]
        assert (await ask(Unit(port), "/v1/nodes")).status_code == 503


async def test_a_body_is_read_no_further_than_its_limit() -> None:
    sent = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b"x" * http_front.CHUNK_BYTES, "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    assert await http_front.body_of(request) is None
    assert sent == http_front.BODY_BYTES_MAX // http_front.CHUNK_BYTES + 1


async def test_the_page_is_served_by_the_front_itself() -> None:
    answer = await ask(Unit(), "/ui")
    assert answer.status_code == 200
    assert answer.text.startswith("<!doctype html>")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    async with worker(said("[1]"), requests := []) as first:
        overview = await ask(Unit(first), "/v1/overview", headers={"authorization": "Bearer x"})
    assert overview.text == "[1]"
    assert requests[0].startswith(b"GET /v1/overview HTTP/1.0")
    assert b"authorization: Bearer x" in requests[0]
