"""Connections of the web server, each with a deadline.

uvicorn waits for a request without end: a client that connects and sends nothing, or sends byte by
byte, keeps a descriptor and a place. Here a request, with all its headers, must arrive within
`REQUEST_WITHIN_S`, and its answer must be read within `ANSWER_WITHIN_S`; only the stream of events
may last.

There are `CONNECTIONS_MAX` places, fewer if descriptors are few. When all are taken, a new
connection takes the place of the connection with the longest wait for a request, so that a probe is
answered however many clients are silent.

The class builds on uvicorn's `H11Protocol`, whose attributes and hooks are not a public interface:
pyproject.toml bounds uvicorn's version, and docs/dependencies.md names the used parts.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from shardbus.http.errors import body
from shardbus.transport.log_limiter import LogRateLimiter
from shardbus.transport.zmq.connection_guard import connections_for

CONNECTIONS_MAX = 256
REQUEST_WITHIN_S = 5.0
ANSWER_WITHIN_S = 15.0
LASTING = "/v1/events"
DESCRIPTORS = 16
"""The web server may use one part in `DESCRIPTORS` of the process's descriptors."""
NO_HTTP = "this is no HTTP/1.1 request: its lines have a byte that HTTP does not allow, or no end"
NO_HTTP_HINT = "percent-encode what is not ASCII in the path and the query"


log = logging.getLogger("shardbus.http.connections")
log.addFilter(LogRateLimiter())


class BoundedConnections(H11Protocol):
    """A connection with a deadline for its request and its answer. Its lines are the node's."""

    waits_for_request = False
    waits_since = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger, self.access_log = log, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; end the longest waiting one if there are too many."""
        others = [other for other in self.connections if isinstance(other, BoundedConnections)]
        super().connection_made(transport)
        if len(others) >= min(CONNECTIONS_MAX, connections_for(DESCRIPTORS)):
            waiting = [other for other in others if other.waits_for_request]
            oldest = min(waiting, key=lambda other: other.waits_since, default=self)
            oldest.abort()
        if not transport.is_closing():
            self._wait_for_request()

    def handle_events(self) -> None:
        """Handle data; wait for the answer once a request is complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.waits_for_request = False
            lasts = self.scope["path"] == LASTING
            self._expect_within(None if lasts else ANSWER_WITHIN_S)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived already."""
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is answered and not self.transport.is_closing():
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self.waits_for_request = False
        self._expect_within(None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP, in the common form of errors, and end the connection. If
        an answer has begun already, it is cut off."""
        content = msgspec.json.encode(body("bad_request", NO_HTTP, NO_HTTP_HINT))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),
        ]
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        with suppress(h11.LocalProtocolError):
            for event in (answer, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self.waits_for_request = False
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self.waits_for_request, self.waits_since = True, self.loop.time()
        self._expect_within(REQUEST_WITHIN_S)

    def _expect_within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.abort)
