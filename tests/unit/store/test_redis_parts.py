"""Batches of writes are cut into scripts, and a script that fails costs its own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.store import redis_parts
from shardbus.store.batches import BatchEnded, written
from shardbus.store.redis_parts import begin_parts, cut, in_rounds, rounds


def test_a_round_has_each_key_once_and_rounds_keep_the_order() -> None:
    assert [*rounds([])] == []
    assert [*rounds(["a", "b"])] == [range(2)]
    assert [*rounds(["a", "b", "a", "a", "b"])] == [range(2), range(2, 3), range(3, 5)]


def test_parts_for_one_script_are_bounded_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_parts, "CHUNK_WRITES", 4)
    monkeypatch.setattr(redis_parts, "CHUNK_BYTES", 100)
    sizes = [1] * 5 + [99] * 3
    assert [*cut(range(5), sizes)] == [range(4), range(4, 5)]
    assert [*cut([7, 6, 5, 0], sizes)] == [[7, 6], [5, 0]]
    assert [*cut(range(4), sizes)] == [range(4)]


async def test_a_part_without_an_answer_fails_for_its_calls_alone() -> None:
    replies = [asyncio.get_running_loop().create_future() for _ in range(3)]
    ends: list[Any] = []

    def note(reply: Any, part: Sequence[int], answers: list[Any]) -> None:
        for i in part:
            answers[i] = reply + i

    sent = iter(replies)
    begin_parts([[0, 2], [1], [3]], lambda part: next(sent), note, ends.append)
    replies[0].set_exception(StoreUnavailable("away", hint="wait", definite=True))
    replies[1].set_result(10)
    await asyncio.sleep(0)
    assert ends == []
    replies[2].set_result("no number")
    await asyncio.sleep(0)
    [[first, second, third, fourth]] = ends
    assert first is not third
    assert [str(first), str(third)] == ["away; wait"] * 2
    assert first.definite
    assert second == 11
    assert isinstance(fourth, TypeError), "a defect"


async def test_a_batch_that_nothing_answers_raises_and_is_definite_if_all_of_it_is() -> None:
    def outcomes(*definite: bool) -> Callable[[Sequence[Any], BatchEnded], None]:
        return lambda writes, ended: ended([StoreUnavailable("x", definite=d) for d in definite])

    for definite in [(True, True), (True, False)]:
        with pytest.raises(StoreUnavailable) as raised:
            await written(outcomes(*definite), "ab")
        assert raised.value.definite is all(definite)
    assert await written(lambda writes, ended: ended([None, ValueError()]), "ab") != [None, None]


async def test_writes_to_one_key_go_one_after_the_other() -> None:
    batches: list[str] = []

    def begin(writes: Sequence[Any], ended: BatchEnded) -> None:
        batches.append("".join(writes))
        ended([None] * len(writes))

    assert await in_rounds(begin, "12345", ["a", "b", "a", "a", "b"]) == [None] * 5
    assert batches == ["12", "3", "45"]
