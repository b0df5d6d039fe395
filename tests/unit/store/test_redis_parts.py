"""Batches of writes are cut into scripts, and a script that fails costs its own writes."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.store import redis_parts
from shardbus.store.redis_parts import cut, rounds, settle


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


def test_a_part_without_an_answer_fails_for_its_writes_alone() -> None:
    answers: list[Any] = [None] * 3
    settle([[0, 2], [1]], [StoreUnavailable("away", definite=True), None], answers)
    assert [type(answer) for answer in answers] == [StoreUnavailable, type(None), StoreUnavailable]
    assert answers[0].definite
    with pytest.raises(StoreUnavailable) as raised:
        settle([[0], [1]], [StoreUnavailable("x", definite=True), StoreUnavailable("y")], answers)
    assert not raised.value.definite
    with pytest.raises(ValueError, match="a defect"):
        settle([[0], [1]], [None, ValueError("a defect")], answers)
