"""A batch ends once, however the coroutine of its store ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.batches import BatchTasks, Outcomes, written

STALE = StaleFence("cart", "a", 1, 2)
AWAY = StoreUnavailable("no answer", definite=True)


def ends_with(outcomes: list[Exception | None] | BaseException) -> Callable[..., Any]:
    """The coroutine of a store."""

    async def write(writes: Sequence[Any]) -> Outcomes:
        await asyncio.sleep(0)
        if isinstance(outcomes, BaseException):
            raise outcomes
        return outcomes

    return write


@pytest.mark.parametrize(
    ("outcomes", "seen"),
    [
        ([None, STALE], [None, StaleFence]),
        ([None], [None, ValueError]),
        ([], [ValueError, ValueError]),
        ([None, None, STALE], [None, None]),
        (AWAY, [StoreUnavailable, StoreUnavailable]),
        (TypeError("a defect"), [TypeError, TypeError]),
        (asyncio.CancelledError(), [StoreUnavailable, StoreUnavailable]),
    ],
    ids=repr,
)
async def test_each_write_of_a_batch_has_one_outcome(
    outcomes: list[Exception | None] | BaseException, seen: list[type | None]
) -> None:
    ended: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
    BatchTasks(ends_with(outcomes)).begin_saves(["a", "b"], ended.set_result)
    assert not ended.done(), "never inside of begin_saves"
    assert [each and type(each) for each in await ended] == seen
    silent = [each.definite for each in ended.result() if isinstance(each, StoreUnavailable)]
    assert silent in ([], [outcomes is AWAY] * 2)


async def test_an_empty_batch_has_no_outcomes() -> None:
    assert await written(lambda writes, ended: pytest.fail("nothing to send"), []) == []
