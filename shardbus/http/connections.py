"""Connections of the web server, each with an end.

uvicorn waits for a request for ever: whoever connects and says nothing, or says it byte by byte,
keeps a descriptor and a place. Here a request has to be there, with all its headers, within
`REQUEST_WITHIN_S`, and its answer has to be taken within `ANSWER_WITHIN_S`; the stream of events
alone may last. There are `CONNECTIONS_MAX` places, fewer if descriptors are few. When all are
taken, the newcomer gets that of whoever has been waited for longest, so that a probe is answered
however many are silent.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from shardbus.transport.zmq.connection_guard import connections_for

CONNECTIONS_MAX = 256
REQUEST_WITHIN_S = 5.0
ANSWER_WITHIN_S = 15.0
LASTING = "/v1/events"
DESCRIPTORS = 16
"""The web server may use one of so many parts of the process's descriptors."""


class BoundedConnections(H11Protocol):
    """See the module."""

    waits_for_request = False
    waits_since = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        crowd = [other for other in self.connections if isinstance(other, BoundedConnections)]
        super().connection_made(transport)
        if len(crowd) >= min(CONNECTIONS_MAX, connections_for(DESCRIPTORS)):
            waited_for = [other for other in crowd if other.waits_for_request]
            oldest = min(waited_for, key=lambda other: other.waits_since, default=self)
            oldest.abort()
        if not transport.is_closing():
            self._wait_for_request()

    def handle_events(self) -> None:
        """Something has come; perhaps a request is complete now."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.waits_for_request = False
            lasts = self.scope["path"] == LASTING
            self._expect_within(None if lasts else ANSWER_WITHIN_S)

    def on_response_complete(self) -> None:
        """The answer has left; another request may come, or has come already."""
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is answered and not self.transport.is_closing():
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.waits_for_request = False
        self._expect_within(None)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End it now; nobody waits for it any more."""
        self.waits_for_request = False
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self.waits_for_request, self.waits_since = True, self.loop.time()
        self._expect_within(REQUEST_WITHIN_S)

    def _expect_within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.abort)
