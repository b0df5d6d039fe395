"""Look-ups of a name, each of which ends in any way, and the events that may come meanwhile: a
caller has an outcome in time, and the resolver keeps nothing and begins nothing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest

from shardbus.transport import name_resolver
from shardbus.transport.name_resolver import NameResolver
from tests.virtual_time import virtual

WITHIN_S, LATE_S, QUIET_S = 2.0, 5.0, 300.0
ENDS = "answers", "has no address", "fails", "answers late", "fails late"
MEANWHILE = "nothing", "again", "cancel", "close"


class LoopThread:
    """A thread that takes no time of its own: its target runs in the loop, now or late."""

    delay_s = 0.0

    def __init__(self, target: Callable[..., None], args: tuple[str], **_: Any) -> None:
        self._call = target, *args

    def start(self) -> None:
        asyncio.get_running_loop().call_later(self.delay_s, *self._call)


@pytest.mark.parametrize(("end", "meanwhile"), list(product(ENDS, MEANWHILE)))
@virtual
async def test_a_look_up_may_end_in_any_way(end: str, meanwhile: str) -> None:
    loop, calls = asyncio.get_running_loop(), list[str]()

    def look_up(name: str) -> tuple[str, ...]:
        calls.append(name)
        if end.startswith("fails"):
            raise OSError("no name server")
        return () if end == "has no address" else ("10.0.0.1",)

    resolver: Any = NameResolver(look_up)
    resolver.open(loop)
    late = LATE_S if end.endswith("late") else 0.1
    with patch.object(name_resolver.threading, "Thread", LoopThread):
        LoopThread.delay_s = late
        lookups = [loop.create_task(resolver.resolve("shop", WITHIN_S))]
        await asyncio.sleep(0.01)
        if meanwhile == "again":
            lookups.append(loop.create_task(resolver.resolve("shop", WITHIN_S)))
        elif meanwhile == "cancel":
            lookups[0].cancel()
        elif meanwhile == "close":
            resolver.close()
        await asyncio.sleep(WITHIN_S + 0.1)
        assert all(task.done() for task in lookups), "a caller waits for longer than it may"
        assert resolver._waiting == {}, "the resolver keeps a caller"
        await asyncio.sleep(LATE_S)
        made = len(calls)
        await asyncio.sleep(QUIET_S)
        assert len(calls) == made, "it looks up what nobody needs"
    for task in lookups:
        with suppress(asyncio.CancelledError):
            addresses = task.result()
            assert meanwhile == "close" or bool(addresses.addresses) == (end == "answers")
    assert resolver.known_name("shop").addresses == (
        ("10.0.0.1",) if end.startswith("answers") else ()
    )
