"""The pages: the request of each to the node, health that depends on little, and writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.admin.page_table import PAGES
from shardbus.config.settings import HttpSettings
from shardbus.http.app import STREAMS_MAX, create_app
from shardbus.http.page import Json
from tests.malformed_requests import PLAIN
from tests.unit.http.http_kit import BEARER, ME, OPERATOR, READER, WRITE, client_of
from tests.waiting import turns, until


@pytest.mark.parametrize(
    ("path", "calls"),
    [
        *(
            (page.path, [page.name])
            for page in PAGES
            if page.sent == Json and page.path.encode() in PLAIN
        ),
        ("/v1/events/recent", ["recent_events", 999_999_999.0, 1000]),
        ("/v1/events/recent?within=5&limit=9", ["recent_events", 5.0, 9]),
        ("/v1/map/counter", ["shard_map", "counter", ""]),
        ("/v1/map/counter?known=3.7", ["shard_map", "counter", "3.7"]),
        ("/v1/shards/counter", ["shards", "counter"]),
        ("/v1/partitions/counter", ["partitions", "counter"]),
        ("/v1/where/counter/page-7", ["where", "counter", "page-7"]),
        ("/v1/explain/counter/page-7", ["explain", "counter", "page-7"]),
        ("/v1/explain/counter?shard=7", ["explain_shard", "counter", "7"]),
        ("/v1/explain/counter/page-7?shard=7", ["explain", "counter", "page-7"]),
        ("/v1/where/a%2Fb/c%2Fd%20%C3%A9", ["where", "a/b", "c/d é"]),
        ("/v1/where/counter/a/b?x=1", ["where", "counter", "a/b"]),
        ("/v1/where/counter/%2e%2e", ["where", "counter", ".."]),
        ("/v1/entities/counter", ["entities", "counter", None, "", 100, None]),
        (
            "/v1/entities/counter?shard=3&prefix=p%26&limit=5&cursor=abc",
            ["entities", "counter", "3", "p&", 5, "abc"],
        ),
        ("/v1/entities/counter?limit=999999", ["entities", "counter", None, "", 1000, None]),
    ],
)
async def test_pages_ask_the_node_and_send_its_answer(client, path, calls):
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {"asked": calls}


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/where/counter", "/v1/shards/a/b", "/v1/entities/a/b", "/v2/nodes", "/livez/"],
)
async def test_a_path_that_there_is_not(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/where/counter/",
        "/v1/where/counter/%00",
        "/v1/where/counter/%ff",
        "/v1/where/counter/" + "x" * 257,
        "/v1/shards/",
        "/v1/entities/counter?limit=0",
        "/v1/entities/counter?limit=ten",
        "/v1/entities/counter?limit=%C2%B2",
    ],
)
async def test_a_bad_id_or_page_size_is_the_callers_error(client, node, path):
    answer = await client.get(path)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"code", "message", "hint"}
    assert node.requests == []


async def test_no_page_is_changed_by_another_method(client, node):
    for method in ("POST", "PUT", "DELETE"):
        answer = await client.request(method, "/v1/cluster")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    for path in (f"/v1/nodes/{ME}/leave", "/v1/nodes/self/down"):
        answer = await client.get(path.replace("#", "%23"))
        assert answer.status_code == 405
    assert node.requests == []


async def test_readiness_and_liveness_are_apart(client, node):
    node.ready = False
    ready, live = await client.get("/readyz"), await client.get("/livez")
    assert (ready.status_code, live.status_code) == (503, 200)
    assert ready.json() == {
        "status": "unavailable",
        "checks": {
            "member": {"ok": True, "detail": "up"},
            "coordinators": {"ok": False, "detail": "counter: none"},
        },
    }
    assert live.json()["status"] == "ok"


async def test_verbose_is_the_same_laid_out_for_people(client):
    short, long = await client.get("/readyz"), await client.get("/readyz?verbose")
    assert short.json() == long.json()
    assert long.text.count("\n") > short.text.count("\n")


async def test_metrics_are_served_without_a_redirect(client):
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == "shardbus_build_info 1.0\n"


async def test_a_write_with_the_token_reaches_the_node(node):
    async with client_of(node, WRITE) as client:
        quoted = ME.replace("#", "%23")
        writes = ("self/leave", f"{quoted}/leave", f"{quoted}/down", f"{quoted}/down?force=true")
        for path in writes:
            assert (await client.post(f"/v1/nodes/{path}", headers=BEARER)).status_code == 200
        assert (await client.post("/v1/nodes/self/burn", headers=BEARER)).status_code == 404
        bad = await client.post(f"/v1/nodes/{quoted}/down?force=1", headers=BEARER)
        assert bad.status_code == 400
    downs = [("down", ME, False), ("down", ME, True)]
    assert node.requests == [("leave", "self"), ("leave", ME), *downs]


async def test_B85_limits_are_read_by_all_and_written_by_few(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/limit/x")).status_code == 200
        assert (await client.post("/v1/limit/x?limit=5")).status_code == 403
        for bad in ("", "limit=", "limit=-1", "limit=x", "limit=1000000000"):
            refused = await client.post(f"/v1/limit/x?{bad}", headers=BEARER)
            assert refused.status_code == 400
        for good in ("limit=5", "limit=0&node=a:1"):
            answer = await client.post(f"/v1/limit/x?{good}", headers=BEARER)
            assert answer.status_code == 200
    calls = [("limits", "x"), ("set_limit", "x", 5, None), ("set_limit", "x", 0, "a:1")]
    assert node.requests == calls


async def test_stored_ids_are_read_and_states_are_written_by_few(node, monkeypatch):
    monkeypatch.setattr("shardbus.http.app.BODY_MAX", 10_000)
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/stored/x?prefix=a&limit=2000")).status_code == 200
        for method in ("POST", "DELETE"):
            assert (await client.request(method, "/v1/state/x/a%2Fb")).status_code == 403
        answer = await client.post("/v1/state/x/a%2Fb", json={"n": 1}, headers=BEARER)
        assert answer.status_code == 200
        for bad in (b"nonsense", b"[" + b"1," * 6_000 + b"1]", b"[" * 9_000):
            answer = await client.post("/v1/state/x/a", content=bad, headers=BEARER)
            assert answer.status_code == 400
        assert (await client.delete("/v1/state/x/a?revision=7f", headers=BEARER)).status_code == 200
    who = "operator at 127.0.0.1"
    assert node.requests == [
        ("stored", "x", None, "a", 1000, None),
        ("set_state", "x", "a/b", {"n": 1}, who, ""),
        ("remove_state", "x", "a", who, "7f", False),
    ]


@pytest.mark.parametrize(
    ("settings", "token", "status", "why"),
    [
        (HttpSettings(), OPERATOR, 403, "this node has no token"),
        (HttpSettings(token=OPERATOR), "", 403, "missing or wrong"),
        (HttpSettings(token=OPERATOR), "another", 403, "missing or wrong"),
        (HttpSettings(token=OPERATOR, reader_token=READER), READER, 403, "are for operators"),
        (HttpSettings(token=OPERATOR), OPERATOR, 200, ""),
    ],
)
async def test_B149_a_stored_state_is_read_by_operators_alone(node, settings, token, status, why):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with client_of(node, settings) as client:
        answer = await client.get("/v1/state/x/a%2Fb?text=true", headers=headers)
    assert answer.status_code == status
    assert why in answer.text
    expected = [("state", "x", "a/b", "operator at 127.0.0.1", True)] if status == 200 else []
    assert node.requests == expected


async def test_B166_dead_letters_are_read_by_all_and_replayed_by_few(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/dead-letters")).status_code == 200
        query = "type=x&reason=failed&since=60&limit=2000"
        assert (await client.get(f"/v1/dead-letters?{query}")).status_code == 200
        assert (await client.post(f"/v1/dead-letters/replay?{query}")).status_code == 403
        for good in (f"{query}&dry_run=true", "id=a-1&id=b-2&answered=true"):
            answer = await client.post(f"/v1/dead-letters/replay?{good}", headers=BEARER)
            assert answer.status_code == 200
        for bad in ("type=x&limit=0", "type=x&since=-1", "type=x&answered=1"):
            answer = await client.post(f"/v1/dead-letters/replay?{bad}", headers=BEARER)
            assert answer.status_code == 400
    who = "operator at 127.0.0.1"
    assert node.requests == [
        ("dead_letters", "", "", 0.0, 100),
        ("dead_letters", "x", "failed", 60.0, 1000),
        ("replay", who, (), "x", "failed", 60.0, 1000, False, True),
        ("replay", who, ("a-1", "b-2"), "", "", 0.0, 100, True, False),
    ]


async def test_plans_are_read_and_rebalances_are_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/plan/x?add=2&remove=a:1&remove=b:2")).status_code == 200
        for bad in ("add=-1", "add=x", "add=1001"):
            assert (await client.get(f"/v1/plan/x?{bad}")).status_code == 400
        assert (await client.post("/v1/rebalance/x")).status_code == 403
        assert (await client.post("/v1/rebalance/x", headers=BEARER)).status_code == 200
    assert node.requests == [("plan", "x", 2, ("a:1", "b:2")), ("rebalance", "x", None, None)]


async def test_B77_rebalancing_is_paused_and_slowed_by_writes(node):
    async with client_of(node, WRITE) as client:
        for query in ("pause=true", "pause=false&moves=5", "moves=0"):
            assert (await client.post(f"/v1/rebalance/x?{query}")).status_code == 403
            answer = await client.post(f"/v1/rebalance/x?{query}", headers=BEARER)
            assert answer.status_code == 200
        for bad in ("pause=1", "moves=-1", "moves=x", "moves=1000001"):
            answer = await client.post(f"/v1/rebalance/x?{bad}", headers=BEARER)
            assert answer.status_code == 400
    calls = [(True, None), (False, 5), (None, 0)]
    assert node.requests == [("rebalance", "x", *arguments) for arguments in calls]


async def test_B63_shards_are_stopped_by_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.post("/v1/stop/x?shard=3")).status_code == 403
        path = "/v1/stop/x?shard=3&shard=a%2Fb"
        assert (await client.post(path, headers=BEARER)).status_code == 200
        for bad in ("?shard=", "?shard=%00"):
            assert (await client.post(f"/v1/stop/x{bad}", headers=BEARER)).status_code == 400
    assert node.requests == [("stop", "x", ("3", "a/b"))]


async def test_B69_places_are_read_and_told_by_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/places/x")).status_code == 200
        path = "/v1/places/x?set=7=10.0.0.3:7355&set=a%3Db=c:1&set=8="
        assert (await client.post(path)).status_code == 403
        assert (await client.post(path, headers=BEARER)).status_code == 200
    places = ("7=10.0.0.3:7355", "a=b=c:1", "8=")
    assert node.requests == [("places", "x"), ("place", "x", places)]


async def test_a_member_is_cordoned_and_drained_by_writes(node):
    quoted = ME.replace("#", "%23")
    async with client_of(node) as client:
        assert (await client.post(f"/v1/nodes/{quoted}/cordon")).status_code == 403
    async with client_of(node, WRITE) as client:
        for action in ("cordon", "uncordon", "drain"):
            answer = await client.post(f"/v1/nodes/{quoted}/{action}", headers=BEARER)
            assert answer.status_code == 200
    assert node.requests == [(action, ME) for action in ("cordon", "uncordon", "drain")]


async def test_a_region_is_shut_down_by_a_write_that_names_its_type(node):
    path = "/v1/nodes/self/shutdown-region"
    async with client_of(node, WRITE) as client:
        assert (await client.post(f"{path}?type=page")).status_code == 403
        assert (await client.post(path, headers=BEARER)).status_code == 400
        assert (await client.post(f"{path}?type=page", headers=BEARER)).status_code == 200
    assert node.requests == [("shutdown_region", "self", "page")]


async def test_the_cluster_is_joined_and_stopped_by_writes(node):
    async with client_of(node) as client:
        for action in ("join", "shutdown"):
            assert (await client.post(f"/v1/cluster/{action}")).status_code == 403
    async with client_of(node, WRITE) as client:
        for path in ("join?seed=a:1&seed=b:2", "join", "shutdown"):
            assert (await client.post(f"/v1/cluster/{path}", headers=BEARER)).status_code == 200
    assert node.requests == [("join", ("a:1", "b:2")), ("join", ()), ("shut_down",)]


async def test_events_come_as_they_happen_and_only_so_many_may_listen(node):
    node.more.set()
    async with client_of(node) as client:
        answer = await client.get("/v1/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.text.split("\n") if line]
        assert lines == ['data: {"event":"snapshot"}', 'data: {"event":"MemberUp"}']
    node.more.clear()
    app = create_app(node.pages, HttpSettings())
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "http", "method": "GET", "path": "/v1/events", "headers": []}
    scope["query_string"] = b""
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {}

    tasks = [asyncio.create_task(app(dict(scope), receive, sent.put)) for _ in range(20)]
    for _ in range(40):
        await sent.get()
    refused: list[dict[str, Any]] = []

    async def keep(message: dict[str, Any]) -> None:
        refused.append(message)

    extra = asyncio.create_task(app(dict(scope), receive, keep))
    await until(lambda: refused, "an answer")
    assert refused[0]["status"] == 409
    await extra
    node.more.set()
    await asyncio.gather(*tasks)
    answered: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    await app(dict(scope), receive, answered.put)
    assert (await answered.get())["status"] == 200, "streams that have ended make room"


async def test_a_stream_without_events_gets_comments(node, monkeypatch):
    """A proxy ends a stream that is silent, often after a minute."""
    monkeypatch.setattr("shardbus.http.app.KEEP_ALIVE_S", 0.0)
    app = create_app(node.pages, HttpSettings())
    parts: list[bytes] = []
    scope = {"type": "http", "method": "GET", "path": "/v1/events", "headers": []}
    scope["query_string"] = b""
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {}

    async def send(message: dict[str, Any]) -> None:
        parts.append(message.get("body", b""))

    stream = asyncio.create_task(app(scope, receive, send))
    await until(lambda: parts.count(b": no event\n\n") > 2 or stream.done(), "comments")
    assert not stream.done()
    node.more.set()
    await stream
    assert [part for part in parts if part.startswith(b"data: ")] == [
        b'data: {"event":"snapshot"}\n\n',
        b'data: {"event":"MemberUp"}\n\n',
    ]


async def test_a_client_that_disconnects_makes_room_for_another_stream(node):
    app = create_app(node.pages, HttpSettings())
    scope = {"type": "http", "method": "GET", "path": "/v1/events", "headers": []}
    scope |= {"query_string": b"", "asgi": {"spec_version": "2.3"}}
    statuses = []

    async def read_one_event() -> None:
        first = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                first.set()

        async def receive() -> dict[str, Any]:
            await first.wait()
            return {"type": "http.disconnect"}

        await app(dict(scope), receive, send)

    for _ in range(STREAMS_MAX + 1):
        await read_one_event()
    assert statuses == [200] * (STREAMS_MAX + 1)


async def test_an_answer_has_a_deadline(node, monkeypatch):
    monkeypatch.setattr("shardbus.http.app.ANSWER_DEADLINE_S", 0.0)

    async def never(*arguments: object) -> Json:
        return await asyncio.get_running_loop().create_future()

    node.answer = never
    async with client_of(node) as client:
        asking = asyncio.ensure_future(client.get("/v1/cluster"))
        for _ in range(10_000):
            if not asking.done():
                await turns(1)
        assert asking.done(), "no answer after the deadline"
        assert asking.result().status_code == 504
