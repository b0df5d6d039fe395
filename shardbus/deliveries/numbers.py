"""The number of a delivery, and the answers to it, as they travel.

A delivery is an ask with `MARK` before the name of its method; its payload has the number before
the arguments:

    payload   [kind, producer, era, seq, before, arguments]        DELIVER, SKIP
              [KEYED, key, arguments]
    answer    [code, done, result]: `done` for GAP, `result` for RESULT to a keyed ask, and the
              handler of the first request for OTHER_REQUEST

So whatever carries asks carries deliveries: batches, buffers, forwards, mailboxes, moves. A node
without deliveries answers that it has no such handler. A column of its own in a run of asks would
have to be handed on at each of these places, and would cost every ask a comparison.

`seq` grows with each delivery of a producer, to whatever entity. `before` is the number of the
previous delivery to this entity that was not confirmed when this one was sent, 0 if there was none.
`era` grows with each opening of a producer that has several openers; former ones are refused.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from shardbus.bounds import Uid
from shardbus.errors import SchemaError

MARK = "!"
"""Stands before the method of a delivery. No handler has such a name."""
PRODUCER_MAX = 400
"""Characters of a producer's name."""
KEY_MAX = 200
"""Characters of the key of an ask."""

ProducerName = Annotated[str, msgspec.Meta(max_length=PRODUCER_MAX)]


class NumberKind(IntEnum):
    """The purpose of a numbered message."""

    DELIVER = 0
    SKIP = 1
    """Handle nothing, and let no copy of this number be handled later."""
    KEYED = 2


class DeliveryNumber(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery: its number, and the arguments of its handler."""

    kind: int
    producer: ProducerName
    era: Uid
    seq: Uid
    before: Uid
    arguments: bytes


class KeyedAsk(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind", tag=2):
    """An ask that is handled once for its key."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_MAX)]
    arguments: bytes


class AnswerCode(IntEnum):
    """How a delivery was answered."""

    APPLIED = 0
    REPEATED = 1
    """It had been handled, or skipped, before."""
    GAP = 2
    """An earlier one is missing: `done` is the last that was handled."""
    STALE = 3
    """The producer has been opened again elsewhere."""
    RESULT = 4
    """The result of a keyed ask."""
    LOST_RESULT = 5
    """A keyed ask has been handled, and its result was not stored."""
    OTHER_REQUEST = 6
    """The key was used for another request."""


class DeliveryAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to a delivery."""

    code: int
    done: Uid = 0
    result: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_number = msgspec.msgpack.Decoder(DeliveryNumber).decode
_decode_keyed = msgspec.msgpack.Decoder(KeyedAsk).decode
_decode_answer = msgspec.msgpack.Decoder(DeliveryAnswer).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

encode_number = _encode
APPLIED, REPEATED, STALE, LOST_RESULT = (
    _encode(DeliveryAnswer(code))
    for code in (AnswerCode.APPLIED, AnswerCode.REPEATED, AnswerCode.STALE, AnswerCode.LOST_RESULT)
)
_APPLIED = DeliveryAnswer(AnswerCode.APPLIED)
_KEYED_HEAD = bytes((0x93, NumberKind.KEYED))
"""The first bytes of a keyed ask."""


def gap(done: int) -> bytes:
    """Return the answer to a delivery whose predecessor is missing."""
    return _encode(DeliveryAnswer(AnswerCode.GAP, done))


def result(payload: bytes) -> bytes:
    """Return the answer to a keyed ask with this result."""
    return _encode(DeliveryAnswer(AnswerCode.RESULT, 0, payload))


def other_request(method: str) -> bytes:
    """Return the answer to a keyed ask whose key was used for another request. `method`: the asked
    handler."""
    return _encode(DeliveryAnswer(AnswerCode.OTHER_REQUEST, 0, method.encode()))


def read_number(payload: bytes) -> DeliveryNumber | KeyedAsk:
    """Decode a delivery.

    Raises:
        SchemaError: it is none.
    """
    try:
        if payload[:2] == _KEYED_HEAD:
            return _decode_keyed(payload)
        return _decode_number(payload)
    except UNREADABLE as error:
        raise SchemaError(f"not a delivery: {error}") from None


def read_answer(payload: bytes) -> DeliveryAnswer:
    """Decode an answer. A payload of another form is the answer of a handler that has answered
    later, and counts as applied."""
    if payload == APPLIED:
        return _APPLIED
    try:
        return _decode_answer(payload)
    except UNREADABLE:
        return DeliveryAnswer(AnswerCode.APPLIED, 0, payload)
