"""The place and the class of a value that has no form on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

from shardbus.errors import SchemaError
from shardbus.wire.places import LOOKED_AT_MAX
from shardbus.wire.schema import Method, decoder, method
from shardbus.wire.stored_state import StateCodec


@dataclass
class Line:
    name: str = ""
    pieces: int = 0
    done: bool = False


class Struct(msgspec.Struct):
    lines: dict[str, Line]


@attrs.define
class Box:
    struct: Struct


@dataclass
class Order:
    total: float = 0.0
    lines: list[Line] = field(default_factory=list)


class Model(BaseModel):
    name: str
    where: Any = None


def handler_of(function: Any) -> Method:
    return method(function.__name__, function)


def put(self: Any, box: Box, count: int = 0, models: list[Model] | None = None) -> list[Line]:
    return []


def codec_of(entity_type: str, cls: type) -> StateCodec:
    return StateCodec(entity_type, cls, decoder(cls))


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(SchemaError) as caught:
        call(*args)
    return str(caught.value)


def test_an_argument_is_named_with_its_path() -> None:
    encode = handler_of(put).encode
    box: Any = Box(Struct({"tea": Line(pieces=np.int64(3))}))  # type: ignore[arg-type]
    text = "cannot send this: put.box.struct.lines.tea.pieces: a int64 cannot travel"
    assert refusal(encode, (box,), {}) == text
    good = Box(Struct({}))
    assert (
        refusal(encode, (good, np.int64(3)), {})
        == "cannot send this: put.count: a int64 cannot travel"
    )
    models = [Model(name="a"), Model(name="b", where={"home": Path("/srv")})]
    inner = "where.home: a PosixPath cannot travel"
    text = f"cannot send this: put.models[1]: a Model cannot travel: {inner}"
    assert refusal(encode, (good,), {"models": models}) == text


def test_an_answer_is_named_with_its_path() -> None:
    encode = handler_of(put).encode_result
    text = "cannot send this: the answer[1].pieces: a int64 cannot travel"
    assert refusal(encode, [Line(), Line(pieces=np.int64(3))]) == text  # type: ignore[arg-type]


def test_a_state_is_named_with_its_path() -> None:
    write = codec_of("order", Order).write
    state = Order(lines=[Line(), Line(done=np.True_)])  # type: ignore[arg-type]
    text = "cannot store the state of order.lines[1].done: a numpy.bool cannot travel"
    assert refusal(write, state) == text


def test_the_search_ends() -> None:
    state = Order(lines=[Line() for _ in range(LOOKED_AT_MAX)])
    state.lines.append(Line(pieces=np.int64(3)))  # type: ignore[arg-type]
    text = "cannot store the state of order: a int64 cannot travel"
    assert refusal(codec_of("order", Order).write, state) == text


class Odd(Enum):
    ONE = 1

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_key_without_a_text_costs_the_path_only() -> None:
    def counts(self: Any) -> dict[Odd, int]:
        return {}

    text = "cannot send this: the answer: a int64 cannot travel"
    assert refusal(handler_of(counts).encode_result, {Odd.ONE: np.int64(3)}) == text
