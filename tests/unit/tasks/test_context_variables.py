"""Context variables that a coroutine sets for a part of its run."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import Any

from shardbus.tasks.context_variables import restore

VARIABLE: ContextVar[str] = ContextVar("variable", default="none")


async def part(future: asyncio.Future[None]) -> str:
    token = VARIABLE.set("inside")
    try:
        await future
        return VARIABLE.get()
    finally:
        restore(VARIABLE, token)


async def test_a_variable_has_its_former_value_after_the_block() -> None:
    VARIABLE.set("outside")
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    assert await part(future) == "inside"
    assert VARIABLE.get() == "outside"


async def test_a_coroutine_that_ends_in_another_context_changes_nothing_there() -> None:
    coroutine: Any = part(asyncio.get_running_loop().create_future())
    copy_context().run(coroutine.send, None)
    VARIABLE.set("elsewhere")
    coroutine.close()
    assert VARIABLE.get() == "elsewhere"
