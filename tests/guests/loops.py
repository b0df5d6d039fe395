"""The event loops that tests run on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def debugged() -> asyncio.AbstractEventLoop:
    """asyncio's loop in debug mode: it refuses calls from a foreign thread, and arguments that are
    no callbacks."""
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(True)
    return loop


def eager() -> asyncio.AbstractEventLoop:
    """asyncio's loop, whose tasks take their first step where they are made (3.12 and later)."""
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


def debugged_uvloop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_debug(True)
    return loop


LOOPS: dict[str, LoopFactory] = {
    "asyncio": asyncio.SelectorEventLoop,
    "debug": debugged,
    "uvloop": uvloop.new_event_loop,
    "uvloop-debug": debugged_uvloop,
}
if sys.version_info >= (3, 12):
    LOOPS["eager"] = eager
