"""The wire form of deliveries and of their answers."""

from __future__ import annotations

import msgspec
import pytest

from shardbus.deliveries.numbers import (
    APPLIED,
    KEY_MAX,
    LOST_RESULT,
    PRODUCER_MAX,
    REPEATED,
    STALE,
    AnswerCode,
    DeliveryAnswer,
    DeliveryNumber,
    KeyedAsk,
    NumberKind,
    encode_number,
    gap,
    read_answer,
    read_number,
    result,
)
from shardbus.errors import SchemaError


@pytest.mark.parametrize(
    "number",
    [
        DeliveryNumber(NumberKind.DELIVER, "node#1", 0, 1, 0, b"\x91\x02"),
        DeliveryNumber(NumberKind.SKIP, "p" * PRODUCER_MAX, 2**63, 2**63, 7, b""),
        KeyedAsk("k", b""),
        KeyedAsk("k" * KEY_MAX, b"x" * 70_000),
    ],
)
def test_a_number_is_read_as_it_was_written(number: DeliveryNumber | KeyedAsk) -> None:
    assert read_number(encode_number(number)) == number


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x93",
        b"nonsense",
        b"\x91\x02",
        encode_number(DeliveryNumber(0, "p" * (PRODUCER_MAX + 1), 0, 1, 0, b"")),
        encode_number(DeliveryNumber(0, "p", 0, -1, 0, b"")),
        encode_number(KeyedAsk("", b"")),
        encode_number(KeyedAsk("k" * (KEY_MAX + 1), b"")),
        msgspec.msgpack.encode([2, "key", "text"]),
    ],
)
def test_what_is_no_number_is_refused(payload: bytes) -> None:
    with pytest.raises(SchemaError, match="not a delivery"):
        read_number(payload)


def test_answers_are_read_as_they_were_written() -> None:
    for payload, answer in (
        (APPLIED, DeliveryAnswer(AnswerCode.APPLIED)),
        (REPEATED, DeliveryAnswer(AnswerCode.REPEATED)),
        (STALE, DeliveryAnswer(AnswerCode.STALE)),
        (LOST_RESULT, DeliveryAnswer(AnswerCode.LOST_RESULT)),
        (gap(7), DeliveryAnswer(AnswerCode.GAP, 7)),
        (result(b"\xc0"), DeliveryAnswer(AnswerCode.RESULT, 0, b"\xc0")),
    ):
        assert read_answer(payload) == answer


def test_the_answer_of_a_handler_that_answers_later_confirms() -> None:
    assert read_answer(b"\xa2ok").code == AnswerCode.APPLIED
