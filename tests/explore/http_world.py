"""The world of the connections of a web server with two places, without sockets.

    connect              a client connects; a later one is named by the next letter
    a asks, a asks twice its request arrives; two of them in one packet
    a drips              a part of a request arrives
    a follows            it requests the stream of events
    answered             the oldest request without an answer gets one
    a leaves             it closes the connection
    second, five         time passes

Laws: no more connections are open than there are places. A new one takes the place of the
connection that has waited longest for a request; if none waits, it is ended itself. A connection is
ended when it has waited for its request, or for its answer, as long as it may, and not before; the
stream lasts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any
from unittest.mock import patch

from uvicorn import Config
from uvicorn.server import ServerState

from shardbus.http import connections
from shardbus.http.connections import ANSWER_WITHIN_S, LASTING, REQUEST_WITHIN_S, BoundedConnections
from tests.explore.on_a_loop import LoopOfWorld

PLACES, NAMES_MAX = 2, 4
REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
NEAR_S = 0.1


class Wire:
    """The transport of one connection, and its client's actions."""

    def __init__(self, world: HttpWorld, name: str) -> None:
        self.world, self.name, self.closing = world, name, False
        self.protocol: Any = None
        self.waits_since: float | None = world.now
        """When it began to wait for a request; None while it waits for an answer, or follows."""
        self.asked_at: deque[float] = deque()
        """Of its requests that have no answer, the first of which is being handled since then."""
        self.follows = self.dripped = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.world.ended(self)
            self.world.world.loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def may_end(self) -> bool:
        """True if it has waited as long as it may."""
        if self.asked_at:
            return not self.follows and self.world.now - self.asked_at[0] > ANSWER_WITHIN_S - NEAR_S
        since = self.waits_since
        return since is not None and self.world.now - since > REQUEST_WITHIN_S - NEAR_S

    def must_have_ended(self) -> bool:
        late = self.world.now - NEAR_S
        if self.asked_at:
            return not self.follows and late - self.asked_at[0] > ANSWER_WITHIN_S
        return self.waits_since is not None and late - self.waits_since > REQUEST_WITHIN_S


class HttpWorld:
    """A server's state, without its listener."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.world = LoopOfWorld()
        self._bound = patch.object(connections, "CONNECTIONS_MAX", PLACES)
        self._bound.start()
        self.config = Config(
            self._app, interface="asgi3", http=BoundedConnections, ws="none", lifespan="off",
            log_config=None, log_level="critical", access_log=False,
        )  # fmt: skip
        self.config.load()
        self.state = ServerState()
        self.wires: dict[str, Wire] = {}
        self.requests: list[tuple[str, asyncio.Future[None]]] = []
        self.giving_way: str | None = None

    @property
    def now(self) -> float:
        return self.world.loop.time()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        future = self.world.loop.create_future()
        self.requests.append((scope["path"], future))
        await future
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def open(self) -> list[Wire]:
        return [wire for wire in self.wires.values() if not wire.closing]

    def events(self) -> Iterable[str]:
        verbs = ["second", "five"]
        if len(self.wires) < NAMES_MAX:
            verbs.append("connect")
        for wire in self.open():
            verbs.append(f"{wire.name} leaves")
            if not wire.asked_at and not wire.dripped:
                verbs += [f"{wire.name} {verb}" for verb in ("asks", "asks twice", "drips")]
                verbs.append(f"{wire.name} follows")
        if self._answerable():
            verbs.append("answered")
        return verbs

    def _answerable(self) -> list[tuple[str, Wire]]:
        """Return the requests that are being handled, each with its connection."""
        names = {f"/{wire.name}": wire for wire in self.open()}
        rows = [(path, future) for path, future in self.requests if not future.done()]
        return [(path, names[path]) for path, _ in rows if path in names]

    def do(self, event: str) -> None:
        match event.split():
            case ["connect"]:
                self._connect()
            case ["second"]:
                self._wait(1.0)
            case ["five"]:
                self._wait(5.0)
            case ["answered"]:
                self._answer()
            case [name, "leaves"]:
                wire = self.wires[name]
                wire.closing = True
                self.world.run(wire.protocol.connection_lost, None)
            case [name, "drips"]:
                self.world.run(self.wires[name].protocol.data_received, b"G")
                self.wires[name].dripped = True
            case [name, "follows"]:
                self._ask(name, LASTING.encode(), 1)
            case [name, "asks", *more]:
                self._ask(name, f"/{name}".encode(), 2 if more else 1)
        self._check()

    def _connect(self) -> None:
        name = "abcd"[len(self.wires)]
        others = self.open()
        waiting = [wire for wire in others if wire.waits_since is not None]
        if len(others) >= PLACES:
            oldest = min(waiting, key=lambda wire: wire.waits_since or 0.0, default=None)
            self.giving_way = name if oldest is None else oldest.name
        wire = self.wires[name] = Wire(self, name)
        wire.protocol = BoundedConnections(self.config, self.state, {}, self.world.loop)
        self.world.run(wire.protocol.connection_made, wire)
        assert self.giving_way is None, f"{self.giving_way} keeps its place"
        self.world.wait(NEAR_S)

    def _ask(self, name: str, path: bytes, count: int) -> None:
        wire = self.wires[name]
        wire.waits_since, wire.follows = None, path.decode() == LASTING
        wire.asked_at.extend([self.now] * count)
        self.world.run(wire.protocol.data_received, REQUEST % path * count)

    def _answer(self) -> None:
        path, wire = self._answerable()[0]
        future = next(f for p, f in self.requests if p == path and not f.done())
        wire.asked_at.popleft()
        if wire.asked_at:
            wire.asked_at[0] = self.now
        else:
            wire.waits_since = self.now
        self.world.run(future.set_result, None)

    def ended(self, wire: Wire) -> None:
        """The server ends a connection."""
        self.said.append(f"{wire.name} is ended")
        if self.giving_way is not None:
            assert wire.name == self.giving_way, f"{wire.name} gives way, not {self.giving_way}"
            self.giving_way = None
            return
        assert wire.may_end(), f"{wire.name} is ended before its time"

    def _wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.world.wait(0.5)
            self._check()

    def _check(self) -> None:
        assert len(self.open()) <= PLACES, f"{len(self.open())} connections are open"
        for wire in self.open():
            assert not wire.must_have_ended(), f"{wire.name} outlives its time"

    def key(self) -> Hashable:
        now = self.now
        rows = []
        for wire in self.wires.values():
            since = wire.asked_at[0] if wire.asked_at else wire.waits_since
            age = None if since is None else round(now - since)
            rows.append((wire.closing, age, len(wire.asked_at), wire.follows))
        return tuple(rows)

    def rest(self) -> None:
        self._wait(ANSWER_WITHIN_S + 1.0)
        left = [wire.name for wire in self.open() if not wire.follows]
        assert not left, f"{left} are never ended"

    def close(self) -> None:
        self._bound.stop()
        for _, future in self.requests:
            future.cancel()
        self.world.close()
