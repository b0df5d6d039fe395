"""Health, metrics and the state of the cluster over HTTP.

    GET  /livez /readyz /startupz            200 or 503; ?verbose indents it
    GET  /metrics                            Prometheus's text format
    GET  /ui                                 the page for operators; its parts are below /ui/
    GET  /v1/overview                        members, types and counters, for that page
    GET  /v1/map/{type}                      homes in columns; ?known=VERSION: only if changed
    GET  /v1/settings /v1/slow               settings and their origins; slow handlers
    GET  /v1/findings                        what is wrong, for `doctor`, `top` and that page
    GET  /v1/cluster /v1/nodes /v1/types
    GET  /v1/shards/{type}
    GET  /v1/partitions/{type}               the instances of each shard
    GET  /v1/plan/{type}                     ?add=N&remove=NODE ...: moves that would follow
    GET  /v1/entities/{type}                 ?shard= &prefix= &limit= &cursor=
    GET  /v1/stored/{type}                   ?shard= &prefix= &limit= &cursor=
    GET  /v1/where/{type}/{id}
    GET  /v1/explain/{type}/{id}
    GET  /v1/downing
    GET  /v1/gossip
    GET  /v1/load                            how busy the nodes are
    GET  /v1/checkup                         the members' reports, which findings compare
    GET  /v1/events                          server-sent events; the first is a snapshot
    GET  /v1/events/recent                   ?within=SECONDS &limit=: the last ones of every member
    GET  /v1/tasks                           where the tasks of this node wait
    GET  /v1/log                             the last lines of this node's log
    POST /v1/nodes/{node}/leave              needs http.write and the token; `self` is this node
    POST /v1/nodes/{node}/down               ?force=true: remove it at once
    POST /v1/nodes/{node}/cordon             no new shards; /uncordon ends that
    POST /v1/nodes/{node}/drain              its shards move away, and it gets no new ones
    POST /v1/rebalance/{type}                check the balance now; ?pause=true &moves=N
    GET  /v1/state/{type}/{id}               what is stored; needs the operator's token; ?text=true
    POST /v1/state/{type}/{id}               the state as JSON in the body; the owner saves it
    DELETE /v1/state/{type}/{id}             the owner removes it; both: ?revision=, that was read
    POST /v1/limit/{type}                    ?limit=N, 0 for none; on all nodes, or on ?node=NODE
    POST /v1/stop/{type}                     ?shard=S ...: until a message arrives
    GET  /v1/explain/{type}                  ?shard=S: its home and its history
    GET  /v1/limit/{type}                    the limit on entities in memory, by node
    GET  /v1/places/{type}                   places of shards that were set
    POST /v1/places/{type}                   ?set=SHARD=HOST:PORT ...; SHARD= takes a place away
    POST /v1/cluster/join                    ?seed=HOST:PORT ...; for node.join = manual
    POST /v1/cluster/shutdown                stop the whole cluster
    POST /v1/keys/reload                     read the secret's file again; on all, or on ?node=NODE

Ids are values: they stand percent-encoded in the path and are taken from it before decoding, so
that an id may hold a slash. No GET changes anything, no path redirects, and every answer but
the stream of events has a deadline. `NodeApi` defines the content of the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import unquote

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError, Refused
from shardbus.http.api import Checks, Json, NodeApi
from shardbus.http.errors import HANDLERS
from shardbus.http.guard import Guard, check_operator, check_write
from shardbus.http.page import page_routes
from shardbus.http.request_input import TargetCheck, read_json
from shardbus.ids import check_id

ANSWER_DEADLINE_S = 4.5
PAGE_DEFAULT, PAGE_MAX = 100, 1000
ADD_MAX = 1000
MOVES_MAX = 1_000_000
LIMIT_MAX = SINCE_MAX = 999_999_999
STREAMS_MAX = 20
BODY_MAX = 16 * 2**20
BODY_SMALL = 2**16
"""A larger body is read in a thread, so that the loop goes on."""
SERVICES = {"cordon": "cordoned", "uncordon": "open", "drain": "draining"}

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(node: NodeApi, settings: HttpSettings, advertised: str = "") -> Starlette:
    """The application that shows this node. `advertised`: its host for other nodes."""
    pages = _Pages(node, settings)
    app = Starlette(
        routes=[
            Route("/livez", pages.livez),
            Route("/readyz", pages.readyz),
            Route("/startupz", pages.startupz),
            Route("/metrics", pages.metrics),
            *page_routes(),
            Route("/v1/overview", pages.overview),
            Route("/v1/map/{rest:path}", pages.shard_map),
            Route("/v1/settings", pages.settings_page),
            Route("/v1/findings", pages.findings),
            Route("/v1/slow", pages.slow),
            Route("/v1/dead-letters", pages.dead_letters),
            Route("/v1/dead-letters/replay", pages.replay, methods=["POST"]),
            Route("/v1/cluster", pages.cluster),
            Route("/v1/nodes", pages.nodes),
            Route("/v1/types", pages.types),
            Route("/v1/downing", pages.downing),
            Route("/v1/gossip", pages.gossip),
            Route("/v1/load", pages.load),
            Route("/v1/checkup", pages.checkup),
            Route("/v1/events", pages.events),
            Route("/v1/events/recent", pages.recent_events),
            Route("/v1/tasks", pages.tasks),
            Route("/v1/log", pages.log_lines),
            Route("/v1/shards/{rest:path}", pages.shards),
            Route("/v1/partitions/{rest:path}", pages.partitions),
            Route("/v1/plan/{rest:path}", pages.plan),
            Route("/v1/rebalance/{rest:path}", pages.rebalance, methods=["POST"]),
            Route("/v1/stop/{rest:path}", pages.stop, methods=["POST"]),
            Route("/v1/limit/{rest:path}", pages.limits),
            Route("/v1/limit/{rest:path}", pages.set_limit, methods=["POST"]),
            Route("/v1/places/{rest:path}", pages.places),
            Route("/v1/places/{rest:path}", pages.place, methods=["POST"]),
            Route("/v1/entities/{rest:path}", pages.entities),
            Route("/v1/stored/{rest:path}", pages.stored),
            Route("/v1/state/{rest:path}", pages.state),
            Route("/v1/state/{rest:path}", pages.set_state, methods=["POST"]),
            Route("/v1/state/{rest:path}", pages.remove_state, methods=["DELETE"]),
            Route("/v1/where/{rest:path}", pages.where),
            Route("/v1/explain/{rest:path}", pages.explain),
            Route("/v1/nodes/{rest:path}", pages.act, methods=["POST"]),
            Route("/v1/cluster/join", pages.join, methods=["POST"]),
            Route("/v1/cluster/shutdown", pages.shut_down, methods=["POST"]),
            Route("/v1/keys/reload", pages.reload_keys, methods=["POST"]),
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
    """One method per page. `started`: the node was ready once; `streams`: open streams of
    events."""

    def __init__(self, node: NodeApi, settings: HttpSettings) -> None:
        self.node = node
        self.settings = settings
        self.started = False
        self.streams = 0

    async def livez(self, request: Request) -> Response:
        return _probe(request, self.node.liveness())

    async def readyz(self, request: Request) -> Response:
        return _probe(request, self._readiness())

    async def startupz(self, request: Request) -> Response:
        checks = self._readiness()
        return _probe(request, self.node.liveness() if self.started else checks)

    def _readiness(self) -> Checks:
        checks = self.node.readiness()
        self.started = self.started or all(check.ok for check in checks.values())
        return checks

    async def metrics(self, request: Request) -> Response:
        return Response(self.node.metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def cluster(self, request: Request) -> Response:
        return await _answer(self.node.cluster())

    async def nodes(self, request: Request) -> Response:
        return await _answer(self.node.nodes())

    async def overview(self, request: Request) -> Response:
        return await _answer(self.node.overview())

    async def shard_map(self, request: Request) -> Response:
        known = request.query_params.get("known", "")
        return await _answer(self.node.shard_map(_type(request), known))

    async def settings_page(self, request: Request) -> Response:
        return await _answer(self.node.settings())

    async def findings(self, request: Request) -> Response:
        return await _answer(self.node.findings())

    async def slow(self, request: Request) -> Response:
        return await _answer(self.node.slow())

    async def dead_letters(self, request: Request) -> Response:
        return await _answer(self.node.dead_letters(*_letter_filter(request)))

    async def replay(self, request: Request) -> Response:
        check_write(request, self.settings)
        query = request.query_params
        kind, reason, within, limit = _letter_filter(request)
        names = tuple(query.getlist("id"))
        if not (names or kind or reason or within):
            raise ConfigError(
                "no dead letter is chosen", hint="add ?id=, ?type=, ?reason= or ?since="
            )
        answered = _flag(query.get("answered", "false"), "answered")
        dry_run = _flag(query.get("dry_run", "false"), "dry_run")
        who, node = _client(request), self.node
        replayed = node.replay(
            kind, reason, within, names, limit, who, answered=answered, dry_run=dry_run
        )
        return await _answer(replayed)

    async def recent_events(self, request: Request) -> Response:
        query = request.query_params
        seconds = _number(query.get("within", str(SINCE_MAX)), "within", 1, SINCE_MAX)
        limit = _number(query.get("limit", str(PAGE_MAX)), "limit", 1, PAGE_MAX)
        return await _answer(self.node.recent_events(float(seconds), limit))

    async def tasks(self, request: Request) -> Response:
        return await _answer(self.node.tasks())

    async def log_lines(self, request: Request) -> Response:
        return await _answer(self.node.log_lines())

    async def types(self, request: Request) -> Response:
        return await _answer(self.node.types())

    async def downing(self, request: Request) -> Response:
        return await _answer(self.node.downing())

    async def gossip(self, request: Request) -> Response:
        return await _answer(self.node.gossip())

    async def load(self, request: Request) -> Response:
        return await _answer(self.node.load())

    async def checkup(self, request: Request) -> Response:
        return await _answer(self.node.checkup())

    async def events(self, request: Request) -> Response:
        if self.streams >= STREAMS_MAX:
            raise Refused(f"{STREAMS_MAX} clients read events already", hint="ask another node")
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            async for event in self.node.events():
                yield b"data: " + msgspec.json.encode(event) + b"\n\n"
        finally:
            self.streams -= 1

    async def shards(self, request: Request) -> Response:
        return await _answer(self.node.shards(_type(request)))

    async def partitions(self, request: Request) -> Response:
        return await _answer(self.node.partitions(_type(request)))

    async def plan(self, request: Request) -> Response:
        query = request.query_params
        add = _number(query.get("add", "0"), "add", 0, ADD_MAX)
        return await _answer(self.node.plan(_type(request), add, tuple(query.getlist("remove"))))

    async def rebalance(self, request: Request) -> Response:
        check_write(request, self.settings)
        query = request.query_params
        pause = _flag(query["pause"], "pause") if "pause" in query else None
        moves = _number(query["moves"], "moves", 0, MOVES_MAX) if "moves" in query else None
        return await _answer(self.node.rebalance(_type(request), pause, moves))

    async def limits(self, request: Request) -> Response:
        return await _answer(self.node.limits(_type(request)))

    async def set_limit(self, request: Request) -> Response:
        check_write(request, self.settings)
        query = request.query_params
        limit = _number(query.get("limit", ""), "limit", 0, LIMIT_MAX)
        return await _answer(self.node.set_limit(_type(request), limit, query.get("node")))

    async def stop(self, request: Request) -> Response:
        check_write(request, self.settings)
        shards = tuple(check_id("shard", s) for s in request.query_params.getlist("shard"))
        if not shards:
            raise ConfigError("no shard is given", hint="add ?shard=S for each")
        return await _answer(self.node.stop(_type(request), shards))

    async def places(self, request: Request) -> Response:
        return await _answer(self.node.places(_type(request)))

    async def place(self, request: Request) -> Response:
        check_write(request, self.settings)
        places: dict[str, str] = {}
        for text in request.query_params.getlist("set"):
            shard, sign, place = text.rpartition("=")
            if not sign:
                raise ConfigError(f"{text[:80]!r} has no place", hint="write SHARD=HOST:PORT")
            places[check_id("shard", shard)] = place
        return await _answer(self.node.place(_type(request), places))

    async def where(self, request: Request) -> Response:
        return await _answer(self.node.where(*_type_and_id(request)))

    async def explain(self, request: Request) -> Response:
        shard = request.query_params.get("shard")
        if shard is not None and len(_after(request, 2)) == 1:
            check_id("shard", shard)
            return await _answer(self.node.explain_shard(_type(request), shard))
        return await _answer(self.node.explain(*_type_and_id(request)))

    async def entities(self, request: Request) -> Response:
        query = request.query_params
        limit = _number(query.get("limit", str(PAGE_DEFAULT)), "limit", 1, None)
        return await _answer(
            self.node.entities(
                _type(request),
                query.get("shard"),
                query.get("prefix", ""),
                min(limit, PAGE_MAX),
                query.get("cursor"),
            )
        )

    async def stored(self, request: Request) -> Response:
        query = request.query_params
        limit = _number(query.get("limit", str(PAGE_DEFAULT)), "limit", 1, None)
        return await _answer(
            self.node.stored(
                _type(request),
                query.get("shard"),
                query.get("prefix", ""),
                min(limit, PAGE_MAX),
                query.get("cursor"),
            )
        )

    async def state(self, request: Request) -> Response:
        check_operator(request, self.settings, "stored states are for operators")
        text = _flag(request.query_params.get("text", "false"), "text")
        found = self.node.state(*_type_and_id(request), _client(request), text=text)
        return await _answer(found)

    async def set_state(self, request: Request) -> Response:
        check_write(request, self.settings)
        name, entity_id = _type_and_id(request)
        body = await _body(request)
        if len(body) > BODY_SMALL:
            state = await asyncio.to_thread(read_json, body)
        else:
            state = read_json(body)
        who, revision = _client(request), request.query_params.get("revision", "")
        return await _answer(self.node.set_state(name, entity_id, state, who, revision))

    async def remove_state(self, request: Request) -> Response:
        check_write(request, self.settings)
        who, revision = _client(request), request.query_params.get("revision", "")
        return await _answer(self.node.remove_state(*_type_and_id(request), who, revision))

    async def act(self, request: Request) -> Response:
        node, _, action = "/".join(_after(request, 2)).rpartition("/")
        if not node or action not in ("leave", "down", "shutdown-region", *SERVICES):
            raise HTTPException(404)
        check_write(request, self.settings)
        if action in SERVICES:
            return await _answer(self.node.serve(node, SERVICES[action]))
        if action == "shutdown-region":
            name = check_id("entity type", request.query_params.get("type", ""))
            return await _answer(self.node.shutdown_region(node, name))
        if action == "down":
            force = _flag(request.query_params.get("force", "false"), "force")
            return await _answer(self.node.down(node, force=force))
        return await _answer(self.node.leave(None if node == "self" else node))

    async def join(self, request: Request) -> Response:
        check_write(request, self.settings)
        return await _answer(self.node.join(tuple(request.query_params.getlist("seed"))))

    async def reload_keys(self, request: Request) -> Response:
        check_write(request, self.settings)
        return await _answer(self.node.reload_keys(request.query_params.get("node")))

    async def shut_down(self, request: Request) -> Response:
        check_write(request, self.settings)
        return await _answer(self.node.shut_down())


def _after(request: Request, skipped: int) -> list[str]:
    """The parts of the path after the first `skipped`, each decoded by itself."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    parts = raw.decode("latin-1").partition("?")[0].split("/")[1 + skipped :]
    return [unquote(part, errors="strict") for part in parts]  # checked by TargetCheck


def _type(request: Request) -> str:
    parts = _after(request, 2)
    if len(parts) != 1:
        raise HTTPException(404)
    return check_id("entity type", parts[0])


def _type_and_id(request: Request) -> tuple[str, str]:
    parts = _after(request, 2)
    if len(parts) < 2:
        raise HTTPException(404)
    return check_id("entity type", parts[0]), check_id("entity id", "/".join(parts[1:]))


def _letter_filter(request: Request) -> tuple[str, str, float, int]:
    """Return type, reason, seconds, and the most letters that are wanted."""
    query = request.query_params
    kind = query.get("type", "")
    within = _number(query.get("since", "0"), "since", 0, SINCE_MAX)
    limit = _number(query.get("limit", str(PAGE_DEFAULT)), "limit", 1, None)
    reason = query.get("reason", "")
    return kind and check_id("entity type", kind), reason, float(within), min(limit, PAGE_MAX)


async def _body(request: Request) -> bytes:
    """The body of a request, of at most `BODY_MAX` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise ConfigError(f"the body has more than {BODY_MAX} bytes")
    return bytes(body)


def _client(request: Request) -> str:
    """The operator, for the log: the address that the request came from."""
    return f"operator at {request.client.host}" if request.client is not None else "operator"


def _number(text: str, name: str, low: int, high: int | None) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        value = int(text)
        if low <= value and (high is None or value <= high):
            return value
    most = PAGE_MAX if high is None else high
    raise ConfigError(f"{name} {text[:40]!r} is not a number in range", hint=f"use {low} to {most}")


def _flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{name} {text[:40]!r} is not true or false")
    return text == "true"


async def _answer(pending: Awaitable[Json]) -> Response:
    async with asyncio.timeout(ANSWER_DEADLINE_S):
        body = await pending
    return Response(msgspec.json.encode(body), media_type="application/json")


def _probe(request: Request, checks: Checks) -> Response:
    ok = all(check.ok for check in checks.values())
    body = msgspec.json.encode(
        {
            "status": "ok" if ok else "unavailable",
            "checks": {name: {"ok": c.ok, "detail": c.detail} for name, c in checks.items()},
        }
    )
    if "verbose" in request.query_params:
        body = msgspec.json.format(body, indent=2) + b"\n"
    return Response(body, 200 if ok else 503, media_type="application/json")
