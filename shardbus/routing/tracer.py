"""The interface of a process's tracing, without OpenTelemetry.

Source: docs/how-to/trace.md; B.151.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from shardbus.errors import ConfigError


class Tracer(Protocol):
    """The part of `routing.tracing.Tracing` that routers and regions use."""

    countdown: int
    current: Any
    plain: Any

    def parent(self) -> Any | None: ...
    def send(
        self, what: str, entity_type: str, entity_id: str, method: str, context: Any
    ) -> Any: ...
    def end_with(self, span: Any, answer: asyncio.Future[Any]) -> None: ...
    def under(self, context: Any, call: Callable[[], Any]) -> Any: ...
    def ending(self, span: Any, answer: Any) -> Any: ...
    def text(self, span: Any) -> str: ...
    def passed(
        self, carried: str, what: str, about: dict[str, Any], seconds: float = 0.0
    ) -> str: ...
    def handling(
        self,
        function: Any,
        text: str,
        loop: asyncio.AbstractEventLoop,
        *,
        is_async: bool,
        is_ask: bool,
        method: str,
    ) -> Any: ...
    def cause(self) -> str: ...
    def fired(
        self, cause: str, entity_type: str, entity_id: str, method: str, delay: float | None
    ) -> str: ...
    def keeper(self, states: Any) -> Any: ...


def open_tracing(
    where: str,
    ratio: float,
    dice: Random,
    loop: asyncio.AbstractEventLoop,
    may_begin: Callable[[], bool] = lambda: True,
    limit: int = 0,
) -> Tracer:
    """Return the tracing of this process. Without a span, messages begin traces only where
    `may_begin` permits it, and at most `limit` in a second by the clock of `loop`; 0: any number.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        from shardbus.routing.tracing import TraceLimit, Tracing
    except ImportError as e:
        raise ConfigError(
            f"tracing needs OpenTelemetry: {e}", hint="pip install 'shardbus[otel]'"
        ) from None
    return Tracing(where, ratio, dice, may_begin, TraceLimit(limit, loop) if limit else None)
