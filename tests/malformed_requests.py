"""A valid request of each page, and requests that are almost like it.

`pages` has a request for each route of a node's HTTP; `changed` spoils one. Applications are called
without a server, so that every byte arrives.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.routing import Match, Route

from shardbus.admin.page_table import PAGES
from tests.records import replace

WITHIN_S = 30.0
"""For an answer. It has a deadline of its own, which is shorter."""


@dataclass(frozen=True)
class PageRequest:
    """A request: its target and body as they are sent."""

    method: str
    path: bytes
    query: bytes = b""
    body: bytes = b""

    def scope(self) -> dict[str, Any]:
        headers = [(b"host", b"127.0.0.1"), (b"content-length", b"%d" % len(self.body))]
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(self.path.decode("latin-1")),
            "raw_path": self.path,
            "query_string": self.query,
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8558),
        }


@dataclass(frozen=True)
class PageAnswer:
    status: int
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        details: dict[str, Any] = json.loads(self.body)["error"]
        return details


async def answer_to(
    app: Starlette, request: PageRequest, *headers: tuple[bytes, bytes]
) -> PageAnswer:
    """Return the answer of an application; of a stream, the chunks before its first wait."""
    scope = request.scope()
    scope["headers"] += headers
    parts, status = [], [0]
    begun, over = asyncio.Event(), asyncio.Event()
    messages = iter([{"type": "http.request", "body": request.body, "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None:
            await over.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status[0] = message["status"]
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body") or request.path == b"/v1/events":
            begun.set()

    async with asyncio.timeout(WITHIN_S):
        running = asyncio.ensure_future(app(scope, receive, send))
        ready = asyncio.ensure_future(begun.wait())
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        over.set()
        ready.cancel()
        try:
            await running
        except Exception:  # the application has answered; a server logs the rest
            assert status[0], "no answer"
    return PageAnswer(status[0], b"".join(parts))


STATE = b'{"total": 5, "note": "\xc3\xa9", "rest": [1.5, null, true, {"$bytes": "YQ=="}]}'


def pages(kind: bytes, entity: bytes, node: bytes) -> list[PageRequest]:
    """Return a valid request for each route of a node."""
    of_type, of_entity = b"/" + kind, b"/%b/%b" % (kind, entity)
    gets = [(path, b"") for path in PLAIN]
    gets += [
        (b"/v1/events/recent", b"within=60&limit=5"),
        (b"/v1/dead-letters", b"type=%b&reason=failed&since=60&limit=5" % kind),
        (b"/v1/map" + of_type, b"known=1.1"),
        (b"/v1/maps", b"known=%b%%3D1.1" % kind),
        (b"/v1/handlers", b"type=" + kind),
        (b"/v1/shards" + of_type, b""),
        (b"/v1/partitions" + of_type, b""),
        (b"/v1/plan" + of_type, b"add=1&remove=" + node),
        (b"/v1/limit" + of_type, b""),
        (b"/v1/places" + of_type, b""),
        (b"/v1/entities" + of_type, b"shard=1&prefix=%C3%A9&limit=5&cursor=a"),
        (b"/v1/stored" + of_type, b"shard=1&prefix=%C3%A9&limit=5&cursor=a"),
        (b"/v1/state" + of_entity, b"text=true"),
        (b"/v1/where" + of_entity, b""),
        (b"/v1/explain" + of_entity, b""),
        (b"/v1/reminders" + of_type, b"limit=5"),
        (b"/v1/mailboxes" + of_type, b"limit=5"),
        (b"/v1/mailboxes" + of_entity, b""),
        (b"/v1/projections", b""),
        (b"/v1/projections" + of_type, b"limit=5"),
        (b"/v1/projections" + of_entity, b""),
        (b"/v1/reminders" + of_entity, b""),
        (b"/v1/values", b"prefix=%C3%A9&limit=5"),
        (b"/v1/values/a%20b/c", b"r=majority"),
        (b"/v1/outboxes", b"limit=5"),
        (b"/v1/outboxes/a%20b/c", b"limit=5&after=3"),
        (b"/v1/explain" + of_type, b"shard=1"),
        (b"/ui", b""),
        (b"/ui/style.css", b""),
    ]
    posts = [
        (b"/v1/dead-letters/replay", b"id=a&type=%b&answered=false&dry_run=true" % kind),
        (b"/v1/rebalance" + of_type, b"pause=false&moves=3"),
        (b"/v1/stop" + of_type, b"shard=1&shard=2"),
        (b"/v1/limit" + of_type, b"limit=10&node=" + node),
        (b"/v1/places" + of_type, b"set=1%3D127.0.0.1:7355"),
        (b"/v1/nodes/%b/cordon" % node, b""),
        (b"/v1/nodes/%b/down" % node, b"force=false"),
        (b"/v1/nodes/%b/shutdown-region" % node, b"type=" + kind),
        (b"/v1/cluster/join", b"seed=127.0.0.1:7355"),
        (b"/v1/cluster/shutdown", b""),
        (b"/v1/outboxes/a%20b/c/retry", b""),
        (b"/v1/keys/reload", b"node=" + node),
    ]
    state = b"/v1/state" + of_entity
    return [
        *(PageRequest("GET", path, query) for path, query in gets),
        *(PageRequest("POST", path, query) for path, query in posts),
        PageRequest("POST", state, b"revision=1", STATE),
        PageRequest("POST", b"/v1/send" + of_entity, b"handler=add&tell=false&within=500", b"[1]"),
        PageRequest("DELETE", state, b"revision=1"),
        PageRequest("DELETE", b"/v1/reminders" + of_entity, b"name=due"),
        PageRequest("POST", b"/v1/mailboxes" + of_type + b"/retry", b"id=a"),
        PageRequest("POST", b"/v1/mailboxes" + of_type + b"/skip", b"id=a&number=1"),
        PageRequest("POST", b"/v1/projections" + of_type + b"/retry", b"id=a"),
        PageRequest("POST", b"/v1/projections" + of_type + b"/skip", b"id=a&number=1"),
        PageRequest("POST", b"/v1/projections" + of_type + b"/rewind", b"id=a&missing=true"),
        PageRequest("POST", b"/v1/values/a%20b/c", b"w=all", STATE),
        PageRequest("DELETE", b"/v1/values/a%20b/c", b"w=all"),
        PageRequest("DELETE", b"/v1/outboxes/a%20b/c", b"number=3"),
    ]


PLAIN = [one.path.encode() for one in PAGES if one.method == "GET" and not one.parameters]


def unreached(app: Starlette, requests: Sequence[PageRequest]) -> list[str]:
    """Return the routes that no request reaches, and requests that reach none."""
    routes = (route for route in app.routes if isinstance(route, Route))
    left = {f"{sorted(route.methods or ())} {route.path}": route for route in routes}
    for request in requests:
        matching = [n for n, r in left.items() if r.matches(request.scope())[0] is Match.FULL]
        for name in matching[:1]:
            del left[name]
    return list(left)


PIECES = (
    b"%ff",
    b"%C3",
    b"%ed%a0%80",
    b"%00",
    b"%0a",
    b"%",
    b"%zz",
    b"%2f",
    b"%25ff",
    b"\xff",
    b"\xc3\xa9",
    b"+",
    b"#",
    b"?",
    b"&",
    b"=",
    b"/",
    b"//",
    b"..",
    b";",
    b"-1",
    b"1e9",
    b"9" * 400,
    b"NaN",
    b"true",
    b"self",
    b"%D9%A3",
    b"%F0%9F%98%80",
    b"%F4%8F%BF%BF",
    b"x" * 300,
)
"""Values for a path or a query."""
BODIES = (
    b"",
    b"\xff",
    b'"\xff"',
    b'"\xc3"',
    b'{"total": "\xed\xa0\x80"}',
    b'"\\ud800"',
    b'{"\\udc00": 1}',
    b"NaN",
    b"[Infinity]",
    b"-Infinity",
    b"1e999",
    b"9" * 400,
    b"18446744073709551616",
    b"-9223372036854775809",
    b'{"total": 1, "total": 2}',
    b"[" * 5000,
    b'{"a":' * 5000,
    b"[" * 200 + b"]" * 200,
    b"nul",
    b"[1,]",
    b"\xef\xbb\xbf1",
    b"'a'",
    b'"\x00"',
    b'"\\u12"',
    b'{"total": null}',
    b'{"total": [1]}',
    b'{"total": 1.5}',
    b"[]",
    b"7",
    b'"text"',
    b"null",
    b'{"$bytes": "?"}',
    b'{"$map": [[{}, 2]]}',
    b'{"$ext": [999, "YQ=="]}',
    b'{"$time": "yesterday"}',
    b'{"$float": "much"}',
    b'{"unknown": 1}',
    b"\\",
    b'"',
    b"\x00" * 50,
)
"""Bodies in place of a state."""


def changed(request: PageRequest, random: Random) -> PageRequest:
    """Return a request that differs from a valid one in its path, its query or its body."""
    match random.randrange(4):
        case 0:
            return replace(request, path=b"/" + _spoiled(request.path[1:], random))
        case 1:
            return replace(request, query=_spoiled(request.query, random))
        case 2 if request.body:
            return replace(request, body=random.choice(BODIES))
        case 2:
            more = b"=".join((random.choice(NAMES), random.choice(PIECES)))
            return replace(request, query=request.query + b"&" + more)
        case _:
            body = request.body or STATE
            at, size = random.randrange(len(body)), random.randrange(4)
            noise = random.randbytes(size)
            return replace(request, body=body[:at] + noise + body[at + size :])


NAMES = tuple(
    b"type reason since limit within known add remove pause moves node shard set prefix cursor text"
    b" revision force seed id answered dry_run verbose".split()
)


def _spoiled(text: bytes, random: Random) -> bytes:
    """Return a text with a piece in place of some of its bytes."""
    at = random.randint(0, len(text))
    end = random.choice((at, min(len(text), at + random.randrange(1, 6)), len(text)))
    return text[:at] + random.choice(PIECES) + text[end:]
