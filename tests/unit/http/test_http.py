"""HTTP: the public JSON, health that depends on little, and writes that need permission."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError, StoreUnavailable, UnknownEntityType
from shardbus.http.api import Check, Checks, Json
from shardbus.http.app import STREAMS_MAX, create_app
from shardbus.http.server import serve
from tests.waiting import turns, until

ME = "127.0.0.1:7355#00000000000000aa"


class FakeNode:
    """A node that answers what a test wants and remembers what it was asked."""

    cluster_name = "shop"

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.ready = True
        self.failure: Exception | None = None
        self.more = asyncio.Event()

    async def answer(self, *asked: object) -> Json:
        self.asked.append(asked)
        if self.failure:
            raise self.failure
        return {"asked": list(asked)}

    async def cluster(self) -> Json:
        return await self.answer("cluster")

    async def nodes(self) -> Json:
        return await self.answer("nodes")

    async def types(self) -> Json:
        return await self.answer("types")

    async def shards(self, type: str) -> Json:
        return await self.answer("shards", type)

    async def where(self, type: str, id: str) -> Json:
        return await self.answer("where", type, id)

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        return await self.answer("entities", type, shard, prefix, limit, cursor)

    async def explain(self, type: str, id: str) -> Json:
        return await self.answer("explain", type, id)

    async def explain_shard(self, type: str, shard: str) -> Json:
        return await self.answer("explain_shard", type, shard)

    async def downing(self) -> Json:
        return await self.answer("downing")

    def liveness(self) -> Checks:
        return {"loop": Check(True, "lag 1 ms")}

    def readiness(self) -> Checks:
        return {"member": Check(True, "up"), "coordinators": Check(self.ready, "counter: none")}

    def metrics(self) -> bytes:
        return b"shardbus_build_info 1.0\n"

    async def leave(self, node: str | None) -> Json:
        return await self.answer("leave", node)

    async def down(self, node: str, *, force: bool) -> Json:
        return await self.answer("down", node, force)

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        return await self.answer("plan", type, add, list(remove))

    async def places(self, type: str) -> Json:
        return await self.answer("places", type)

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        return await self.answer("place", type, dict(places))

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        return await self.answer("rebalance", type, pause, moves)

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        return await self.answer("stop", type, list(shards))

    async def limits(self, type: str) -> Json:
        return await self.answer("limits", type)

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        return await self.answer("set_limit", type, limit, node)

    async def shutdown_region(self, node: str, type: str) -> Json:
        return await self.answer("shutdown_region", node, type)

    async def serve(self, node: str, service: str) -> Json:
        return await self.answer("serve", node, service)

    async def join(self, seeds: tuple[str, ...]) -> Json:
        return await self.answer("join", list(seeds))

    async def reload_keys(self, node: str | None) -> Json:
        return await self.answer("reload_keys", node)

    async def shut_down(self) -> Json:
        return await self.answer("shut_down")

    async def gossip(self) -> Json:
        return await self.answer("gossip")

    async def checkup(self) -> Json:
        return await self.answer("checkup")

    async def events(self) -> AsyncIterator[Json]:
        yield {"event": "snapshot"}
        await self.more.wait()
        yield {"event": "MemberUp"}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def client_of(
    node: FakeNode, settings: HttpSettings | None = None, base_url: str = "http://127.0.0.1:8558"
) -> httpx.AsyncClient:
    app = create_app(node, settings or HttpSettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(node) as client:
        yield client


# Reading


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/cluster", ["cluster"]),
        ("/v1/checkup", ["checkup"]),
        ("/v1/nodes", ["nodes"]),
        ("/v1/types", ["types"]),
        ("/v1/downing", ["downing"]),
        ("/v1/gossip", ["gossip"]),
        ("/v1/shards/counter", ["shards", "counter"]),
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
async def test_pages_ask_the_node_and_send_its_answer(client, path, asked):
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {"asked": asked}


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
    assert node.asked == []


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


async def test_no_page_is_changed_by_another_method(client, node):
    for method in ("POST", "PUT", "DELETE"):
        answer = await client.request(method, "/v1/cluster")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    for path in (f"/v1/nodes/{ME}/leave", "/v1/nodes/self/down"):
        answer = await client.get(path.replace("#", "%23"))
        assert answer.status_code == 405
    assert node.asked == []


# Health


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


async def test_startup_is_over_once_the_node_was_ready(client, node):
    node.ready = False
    assert (await client.get("/startupz")).status_code == 503
    node.ready = True
    assert (await client.get("/readyz")).status_code == 200
    node.ready = False
    assert (await client.get("/startupz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 503


async def test_metrics_are_served_without_a_redirect(client):
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == "shardbus_build_info 1.0\n"


# Writing


WRITE = HttpSettings(write=True, token="open sesame")
BEARER = {"authorization": "Bearer open sesame"}


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        (HttpSettings(), BEARER),
        (HttpSettings(write=True), {"authorization": "Bearer "}),
        (HttpSettings(token="open sesame"), BEARER),
        (WRITE, {}),
        (WRITE, {"authorization": "Bearer open"}),
        (WRITE, {"authorization": "Bearer open sesame2"}),
        (WRITE, {"authorization": "Basic open sesame"}),
        (WRITE, {"authorization": b"Bearer \xff"}),
    ],
)
async def test_a_write_without_permission_is_forbidden(node, settings, headers):
    async with client_of(node, settings) as client:
        answer = await client.post("/v1/nodes/self/leave", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "open sesame" not in answer.text
    assert node.asked == []


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
    assert node.asked == [("leave", None), ("leave", ME), *downs]


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
    wanted = [("limits", "x"), ("set_limit", "x", 5, None), ("set_limit", "x", 0, "a:1")]
    assert node.asked == wanted


async def test_plans_are_read_and_rebalances_are_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/plan/x?add=2&remove=a:1&remove=b:2")).status_code == 200
        for bad in ("add=-1", "add=x", "add=1001"):
            assert (await client.get(f"/v1/plan/x?{bad}")).status_code == 400
        assert (await client.post("/v1/rebalance/x")).status_code == 403
        assert (await client.post("/v1/rebalance/x", headers=BEARER)).status_code == 200
    assert node.asked == [("plan", "x", 2, ["a:1", "b:2"]), ("rebalance", "x", None, None)]


async def test_B77_rebalancing_is_paused_and_slowed_by_writes(node):
    async with client_of(node, WRITE) as client:
        for query in ("pause=true", "pause=false&moves=5", "moves=0"):
            assert (await client.post(f"/v1/rebalance/x?{query}")).status_code == 403
            answer = await client.post(f"/v1/rebalance/x?{query}", headers=BEARER)
            assert answer.status_code == 200
        for bad in ("pause=1", "moves=-1", "moves=x", "moves=1000001"):
            answer = await client.post(f"/v1/rebalance/x?{bad}", headers=BEARER)
            assert answer.status_code == 400
    told = [(True, None), (False, 5), (None, 0)]
    assert node.asked == [("rebalance", "x", *one) for one in told]


async def test_B63_shards_are_stopped_by_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.post("/v1/stop/x?shard=3")).status_code == 403
        path = "/v1/stop/x?shard=3&shard=a%2Fb"
        assert (await client.post(path, headers=BEARER)).status_code == 200
        for bad in ("", "?shard=", "?shard=%00"):
            assert (await client.post(f"/v1/stop/x{bad}", headers=BEARER)).status_code == 400
    assert node.asked == [("stop", "x", ["3", "a/b"])]


async def test_B69_places_are_read_and_told_by_writes(node):
    async with client_of(node, WRITE) as client:
        assert (await client.get("/v1/places/x")).status_code == 200
        path = "/v1/places/x?set=7=10.0.0.3:7355&set=a%3Db=c:1&set=8="
        assert (await client.post(path)).status_code == 403
        assert (await client.post(path, headers=BEARER)).status_code == 200
        for bad in ("7", "=a:1", "%00=a:1"):
            answer = await client.post(f"/v1/places/x?set={bad}", headers=BEARER)
            assert answer.status_code == 400
    told = {"7": "10.0.0.3:7355", "a=b": "c:1", "8": ""}
    assert node.asked == [("places", "x"), ("place", "x", told)]


async def test_a_member_is_cordoned_and_drained_by_writes(node):
    quoted = ME.replace("#", "%23")
    async with client_of(node) as client:
        assert (await client.post(f"/v1/nodes/{quoted}/cordon")).status_code == 403
    async with client_of(node, WRITE) as client:
        for action in ("cordon", "uncordon", "drain"):
            answer = await client.post(f"/v1/nodes/{quoted}/{action}", headers=BEARER)
            assert answer.status_code == 200
    words = ("cordoned", "open", "draining")
    assert node.asked == [("serve", ME, word) for word in words]


async def test_a_region_is_shut_down_by_a_write_that_names_its_type(node):
    path = "/v1/nodes/self/shutdown-region"
    async with client_of(node, WRITE) as client:
        assert (await client.post(f"{path}?type=page")).status_code == 403
        assert (await client.post(path, headers=BEARER)).status_code == 400
        assert (await client.post(f"{path}?type=page", headers=BEARER)).status_code == 200
    assert node.asked == [("shutdown_region", "self", "page")]


async def test_the_cluster_is_joined_and_stopped_by_writes(node):
    async with client_of(node) as client:
        for action in ("join", "shutdown"):
            assert (await client.post(f"/v1/cluster/{action}")).status_code == 403
    async with client_of(node, WRITE) as client:
        for path in ("join?seed=a:1&seed=b:2", "join", "shutdown"):
            assert (await client.post(f"/v1/cluster/{path}", headers=BEARER)).status_code == 200
    assert node.asked == [("join", ["a:1", "b:2"]), ("join", []), ("shut_down",)]


async def test_events_come_as_they_happen_and_only_so_many_may_listen(node):
    node.more.set()
    async with client_of(node) as client:
        answer = await client.get("/v1/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.text.split("\n") if line]
        assert lines == ['data: {"event":"snapshot"}', 'data: {"event":"MemberUp"}']
    node.more.clear()
    app = create_app(node, HttpSettings())
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


async def test_a_client_that_disconnects_makes_room_for_another_stream(node):
    app = create_app(node, HttpSettings())
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


@pytest.mark.parametrize(
    ("bound", "asked", "status"),
    [
        ("127.0.0.1", "http://127.0.0.1:8558", 200),
        ("127.0.0.1", "http://localhost:1", 200),
        ("localhost", "http://[::1]:8558", 200),
        ("127.0.0.1", "http://evil.example:8558", 403),
        ("::1", "http://127.0.0.1.evil.example", 403),
        ("127.0.0.1", "http://192.168.0.1", 403),
        ("0.0.0.0", "http://evil.example:8558", 200),
    ],
)
async def test_on_the_loopback_only_loopback_names_are_answered(node, bound, asked, status):
    async with client_of(node, HttpSettings(host=bound), base_url=asked) as client:
        assert (await client.get("/livez")).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "Cross-Site"}, 403),
        ({"origin": "http://127.0.0.1:8558"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, 403),
    ],
)
async def test_requests_of_other_origins_pages_are_refused(node, headers, status):
    base = "http://127.0.0.1:8558"
    async with client_of(node, HttpSettings(), base_url=base) as client:
        answer = await client.get("/v1/entities/counter", headers=headers)
        assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "cross_site"
        assert node.asked == []


NASTY = st.text(max_size=20) | st.sampled_from(
    ["-1", "1e9", "9" * 400, "٣", "true ", "NaN", "\0", "%", "a=b", "=", "h:99999", "#", "\udcff"]
)
PARAMETERS = [
    "add",
    "remove",
    "shard",
    "prefix",
    "limit",
    "cursor",
    "force",
    "type",
    "pause",
    "moves",
    "node",
    "set",
    "seed",
]
GETS = [
    "plan/t",
    "entities/t",
    "explain/t",
    "explain/t/x",
    "where/t/x",
    "shards/t",
    "limit/t",
    "places/t",
]
POSTS = [
    "rebalance/t",
    "limit/t",
    "stop/t",
    "places/t",
    "nodes/n/down",
    "nodes/n/drain",
    "cluster/join",
]


@given(st.sampled_from([*(("GET", p) for p in GETS), *(("POST", p) for p in POSTS)]),
       st.dictionaries(st.sampled_from(PARAMETERS), NASTY, max_size=4))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_no_query_makes_a_page_fail(asked, query):
    """An answer, or an error of the caller; never a defect."""
    allowed = HttpSettings(write=True, token="t" * 16)
    text = "&".join(f"{k}={quote(v, errors='surrogatepass')}" for k, v in query.items())

    async def ask():
        async with client_of(FakeNode(), allowed) as client:
            bearer = {"authorization": f"Bearer {allowed.token}"}
            url = f"/v1/{asked[1]}?{text}"
            return await client.request(asked[0], url, headers=bearer)

    answer = asyncio.run(ask())
    assert answer.status_code in (200, 400, 404), answer.text


# The server


async def test_the_server_listens_when_start_returns_and_stops(node):
    server = serve(create_app(node, HttpSettings()), "127.0.0.1", 0)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    await server.start()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        answer = await client.get("/v1/where/a%2Fb/c%23d")
    assert answer.json() == {"asked": ["where", "a/b", "c#d"]}
    assert "server" not in answer.headers
    await server.stop()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_taken_port_is_one_sentence(node):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(create_app(node, HttpSettings()), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: it is taken; .*--http-port"):
            await server.start()
        await server.stop()


async def test_an_address_of_another_machine_is_one_sentence(node):
    server = serve(create_app(node, HttpSettings()), "192.0.2.1", 0)
    with pytest.raises(ConfigError, match="no interface of this machine"):
        await server.start()


async def test_an_answer_has_a_deadline(node, monkeypatch):
    monkeypatch.setattr("shardbus.http.app.ANSWER_DEADLINE_S", 0.0)

    async def never(*asked: object) -> Json:
        return await asyncio.get_running_loop().create_future()

    node.answer = never
    async with client_of(node) as client:
        asking = asyncio.ensure_future(client.get("/v1/cluster"))
        for _ in range(10_000):
            if not asking.done():
                await turns(1)
        assert asking.done(), "no answer after the deadline"
        assert asking.result().status_code == 504
