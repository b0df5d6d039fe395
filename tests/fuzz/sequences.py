"""Fuzzed sequences: frames in any order into one session and into one endpoint, and HTTP requests.

An input is a row of records of a fixed head and a body, so that a changed byte leaves the other
records as they are. An error that the code logs with a traceback counts as raised: the inbox keeps
a failed run from the others, and so would hide it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from starlette.responses import Response

from shardbus.config.settings import HttpSettings
from shardbus.errors import RemoteProtocolError
from shardbus.http.app import create_app
from shardbus.http.page import Events
from shardbus.ids import Address, NodeId
from shardbus.transport.asks import CoarseClock
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.link import SESSION_FRAMES
from shardbus.transport.session import Session
from shardbus.wire import batch
from tests.fuzz.targets import Target, _batches
from tests.page_doubles import PageDouble
from tests.unit.transport.memory_network import MemoryWorld
from tests.unit.transport.session_pair import Taker

RECORDS_MAX = 64
HEAD_BYTES_MAX = 2**18
"""A longer head of a request does not reach the application: the server reads at most so much at a
time, and refuses a head that is incomplete then."""
HEAD = struct.Struct("<BQQH")
"""A frame of a session: type, number, acknowledged number, length of the body."""
FRAME = struct.Struct(f"<B{batch.HEADER_BYTES}sH")
"""A frame at an endpoint: connection, header, length of the body."""
ME = NodeId("127.0.0.1", 7001, 1)


class LoggedErrors(logging.Handler):
    """Keeps the errors that are logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


class LoopTarget:
    """Runs a coroutine for each input on a loop of its own. An error in a callback of the loop
    counts as raised."""

    def __init__(self, work: Callable[[bytes], Coroutine[Any, Any, str]]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logged = LoggedErrors()

    def __call__(self, data: bytes) -> str:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._on_error)
        loggers = [logging.getLogger(name) for name in ("shardbus", "shardbus.http")]
        for logger in loggers:
            logger.addHandler(self._logged)
            logger.propagate = False
        try:
            state = self._loop.run_until_complete(self._work(data))
        finally:
            for logger in loggers:
                logger.removeHandler(self._logged)
                logger.propagate = True
        if self._logged.errors:
            error, self._logged.errors = self._logged.errors[0], []
            raise AssertionError(f"logged: {type(error).__name__}: {error}") from error
        return f"state {state}"

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._logged.errors.append(
            context.get("exception") or AssertionError(str(context["message"]))
        )


def _records(data: bytes, head: struct.Struct) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    at = 0
    for _ in range(RECORDS_MAX):
        if at + head.size > len(data):
            return
        fields = head.unpack_from(data, at)
        at += head.size
        body = data[at : at + fields[-1]]
        at += fields[-1]
        yield fields, body


# ---- a session


async def _session(data: bytes) -> str:
    taken: list[int] = []
    receiver = Taker()

    def transmit(kind: int, seq: int, ack: int, body: bytes) -> bool:
        taken.append(kind)
        return len(taken) % 7 != 0

    session = Session("n2", asyncio.get_running_loop(), CoarseClock(), receiver, transmit)
    session.opened(0)
    session.outbox.tell(("page", "hit"), "a", b"\x90")
    for (kind, seq, ack, _), body in _records(data, HEAD):
        if kind in SESSION_FRAMES:
            with suppress(RemoteProtocolError):
                session.on_frame(kind, seq, ack, body)
        elif kind == 0:
            session.outbox.tell(("page", "hit"), "b", b"\x90")
            await asyncio.sleep(0)
        elif kind == 255:
            session.opened(ack)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(taken) < 100 * RECORDS_MAX, "frames answer frames without end"
    got = sorted({str(row[0]) for row in receiver.got})
    return f"{sorted(set(taken))} {got} {session.link.peer_lost_data} {session.outbox.writable}"


def _session_seeds() -> tuple[bytes, ...]:
    bodies = _batches()
    frames = [
        HEAD.pack(batch.FrameType.DATA, i + 1, 0, len(body)) + body
        for i, body in enumerate(bodies)
        if len(body) < 2**16
    ]
    acks = HEAD.pack(batch.FrameType.ACK, 0, 1, 0) + HEAD.pack(batch.FrameType.NAK, 1, 0, 0)
    again = HEAD.pack(255, 0, 1, 0) + HEAD.pack(0, 0, 0, 0)
    part = bodies[0]
    half = len(part) // 2
    parts = (
        HEAD.pack(batch.FrameType.PART, 1, 0, half) + part[:half],
        HEAD.pack(batch.FrameType.LAST_PART, 2, 0, len(part) - half) + part[half:],
    )
    return (b"".join(frames), acks + again + frames[0], b"".join(parts), frames[0] + acks + again)


# ---- an endpoint


async def _endpoint(data: bytes) -> str:
    world, receiver = MemoryWorld(), Taker()
    endpoint = Endpoint("shop", str(ME), ME.uid, receiver, network=world.network(), node=ME)
    endpoint.start(ME.host, ME.port)
    links = [
        world.network().connect(
            Address(ME.host, ME.port), lambda parts: None, lambda: None, lambda: None
        )
        for _ in range(3)
    ]
    try:
        for (number, header, _), body in _records(data, FRAME):
            link = links[number % len(links)]
            endpoint.incoming.on_parts([link.identity, header, body])
        for _ in range(3):
            await asyncio.sleep(0)
        sessions = len(endpoint.incoming.by_name)
        assert sessions <= len(links), "more sessions than connections"
        got = sorted({str(row[0]) for row in receiver.got})
        return f"{sessions} {sorted(endpoint.dropped_frames)} {got}"
    finally:
        endpoint.close()


def _frame(link: int, kind: int, seq: int, ack: int, body: bytes, receiver: int = ME.uid) -> bytes:
    tag = batch.cluster_tag("shop")
    header = batch.pack_header(batch.PROTOCOL_VERSION, kind, tag, 9 + link, receiver, seq, ack)
    return FRAME.pack(link, header, len(body)) + body


def _endpoint_seeds() -> tuple[bytes, ...]:
    peer = NodeId("127.0.0.1", 7002, 2)
    hello = batch.encode_body(batch.Hello("shop", "client#9", None, 1, True))
    node = batch.encode_body(batch.Hello("shop", str(peer), peer, 1, True))
    bodies = [body for body in _batches() if len(body) < 2**16]
    data = b"".join(
        _frame(0, batch.FrameType.DATA, i + 1, 0, body) for i, body in enumerate(bodies)
    )
    opened = _frame(0, batch.FrameType.HELLO, 0, 0, hello)
    second = _frame(1, batch.FrameType.HELLO, 0, 0, node, receiver=0)
    membership = batch.encode_body(batch.MembershipFrame(peer, b"\x01\x00\x91\x03"))
    bye = _frame(0, batch.FrameType.BYE, 0, 0, b"")
    return (
        opened + data,
        opened + second + data + bye + opened,
        second + _frame(1, batch.FrameType.MEMBERSHIP, 0, 0, membership),
        _frame(2, batch.FrameType.DATA, 1, 0, bodies[0]) + opened + _frame(0, 5, 0, 9, b""),
    )


# ---- HTTP


class AnyNode(PageDouble):
    """Answers every page with its parameters."""

    async def events(self) -> Events:
        yield {"event": "snapshot"}

    async def metrics(self) -> Response:
        return Response(b"")


_APP: list[Any] = []
_TARGET = re.compile(rb"[\x21-\x7e]+")
"""Targets that h11 accepts."""


async def _http(data: bytes) -> str:
    """The first line is the method, the second the target, the others are headers."""
    if not _APP:
        settings = HttpSettings(host="127.0.0.1", write=True, token="t" * 40)
        _APP.append(create_app(AnyNode().pages, settings))
    if len(data) > HEAD_BYTES_MAX:
        return ""
    method, _, rest = data.partition(b"\n")
    target, *lines = rest.split(b"\n")
    if not _TARGET.fullmatch(target):
        return ""  # the server answers 400, and the application does not see it
    path, _, query = target.partition(b"?")
    headers = [tuple(line.split(b":", 1)) for line in lines if b":" in line]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.decode("latin-1").upper(),
        "scheme": "http",
        "path": _decoded(path),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.strip().lower(), value.strip()) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8558),
    }
    statuses: list[int] = []

    received = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return next(received, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await _APP[0](scope, receive, send)
    assert len(statuses) == 1, f"{len(statuses)} answers"
    assert statuses[0] < 500, f"status {statuses[0]}"
    return f"{statuses[0]} {path.split(b'/')[1:3]}"


def _decoded(path: bytes) -> str:
    return unquote_to_bytes(path).decode("utf-8", "replace")


_PAGES = (
    "/livez", "/readyz?verbose", "/metrics", "/v1/cluster", "/v1/nodes", "/v1/shards/page",
    "/v1/plan/page?add=2&remove=n1:1", "/v1/entities/page?shard=3&prefix=a&limit=10&cursor=MTA",
    "/v1/where/page/a%2Fb", "/v1/explain/page?shard=3", "/v1/events", "/v1/keys/reload",
    "/v1/nodes/n1:7001/down?force=true", "/v1/limit/page?limit=5", "/v1/stop/page?shard=1&shard=2",
    "/v1/places/page?set=1=n1:7001", "/v1/rebalance/page?pause=true&moves=3",
)  # fmt: skip


def _http_seeds() -> tuple[bytes, ...]:
    tail = f"\nHost: 127.0.0.1\nAuthorization: Bearer {'t' * 40}".encode()
    names = quote("straße/\x00")
    return tuple(
        f"{method}\n{page}".encode() + tail
        for page in (*_PAGES, f"/v1/where/{names}/{names}")
        for method in ("GET", "POST")
    )


SEQUENCES: tuple[Target, ...] = (
    Target("session", LoopTarget(_session), (), _session_seeds(), share=6),
    Target("endpoint", LoopTarget(_endpoint), (), _endpoint_seeds(), share=4),
    Target(
        "http",
        LoopTarget(_http),
        (),
        _http_seeds(),
        share=2,
        words=(b"%ff", b"%00", b"%2F", b"&limit=", b"?cursor=", b"[::1]", b"bearer ", b"\xc3\x28"),
    ),
)
