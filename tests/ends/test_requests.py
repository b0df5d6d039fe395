"""Requests of a web application, one after the other in one task, each of which ends in any way:
its trace is current while it is handled, and no longer."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from opentelemetry import trace

from shardbus.integrations.starlette import TraceContext
from tests.virtual_time import virtual

ENDS = "answers", "fails", "is cancelled"
KINDS = "http", "websocket"


def current() -> str:
    """Return the id of the trace that is current; zeros if none is."""
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@pytest.mark.parametrize(("kind", "ends"), list(product(KINDS, product(ENDS, ENDS))))
@virtual
async def test_a_trace_ends_with_its_request(kind: str, ends: tuple[str, str]) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current())
        match scope["end"]:
            case "fails":
                raise ValueError("a defect")
            case "is cancelled":
                raise asyncio.CancelledError

    traced, none = TraceContext(app), current()
    traces = [f"{n:032x}" for n in (1, 2)]
    for end, name in zip(ends, traces, strict=True):
        header = (b"traceparent", f"00-{name}-{1:016x}-01".encode())
        scope: Any = {"type": kind, "headers": [header], "end": end}
        unused: Any = None
        try:
            await traced(scope, unused, unused)
        except (ValueError, asyncio.CancelledError):
            assert end != "answers"
        assert current() == none, f"the trace of a request that {end} goes on"
    assert seen == traces
