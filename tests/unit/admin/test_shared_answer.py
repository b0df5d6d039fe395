"""An answer that is made once for all who ask within a while."""

from __future__ import annotations

import asyncio

import pytest

from shardbus.admin.shared_answer import SharedAnswer
from shardbus.errors import Refused
from tests.virtual_time import virtual


class Source:
    """Makes numbers, each after a second, or fails."""

    def __init__(self) -> None:
        self.made = 0
        self.failure: Exception | None = None

    async def make(self) -> int:
        self.made += 1
        await asyncio.sleep(1.0)
        if self.failure is not None:
            raise self.failure
        return self.made


@virtual
async def test_readers_at_the_same_time_and_soon_after_get_one_answer() -> None:
    source = Source()
    shared = SharedAnswer(source.make, 3.0)
    assert await asyncio.gather(*(shared.get() for _ in range(5))) == [1] * 5
    await asyncio.sleep(1.9)
    assert await shared.get() == 1
    await asyncio.sleep(0.2)
    assert await shared.get() == 2


@virtual
async def test_an_answer_that_takes_longer_than_it_stays_fresh_is_made_once_at_a_time() -> None:
    source = Source()
    shared = SharedAnswer(source.make, 0.1)
    first = asyncio.create_task(shared.get())
    await asyncio.sleep(0.5)
    assert await shared.get() == 1
    assert await first == 1


@virtual
async def test_a_failure_is_told_to_all_and_not_kept() -> None:
    source = Source()
    source.failure = Refused("not now")
    shared = SharedAnswer(source.make, 60.0)
    outcomes = await asyncio.gather(*(shared.get() for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in outcomes] == ["not now"] * 3
    source.failure = None
    assert await shared.get() == 2


@virtual
async def test_a_reader_that_gives_up_leaves_the_answer_to_the_others() -> None:
    source = Source()
    shared = SharedAnswer(source.make, 60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await shared.get()
    assert await shared.get() == 1
