"""Values of pydantic, attrs, msgspec and numpy as arguments, answers and states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from pydantic import BaseModel, Field, field_validator

from shardbus import AsyncClient, ConfigError, Entity, EntityFailed, SchemaError, ShardBus, handler
from tests.guests.nodes import served

bus = ShardBus("values")


@bus.message
class Line(BaseModel):
    sku: str = Field(min_length=1)
    price: float = 0.0
    tags: list[str] = []

    @field_validator("price")
    @classmethod
    def is_not_negative(cls, price: float) -> float:
        if price < 0:
            raise ValueError("negative")
        return price


@bus.message
class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


@attrs.define
class Box:
    width: int
    label: str = attrs.field(default="", kw_only=True)


@dataclass
class Measured:
    readings: int = 0
    mean: float = 0.0


@attrs.define
class Stock:
    boxes: list[Box] = attrs.field(factory=list)


@bus.entity("store-room", shards=8)
class StoreRoom(Entity):
    state: Stock

    @handler
    async def add(self, box: Box) -> Box:
        self.state.boxes.append(box)
        await self.save()
        return self.state.boxes[0]


@bus.entity("shelf", shards=8)
class Shelf(Entity):
    state: Measured

    @handler
    def line(self, line: Line) -> Line:
        return line.model_copy(update={"tags": [*line.tags, type(line).__name__]})

    @handler
    def point(self, point: Point) -> Point:
        return Point(point.y, point.x)

    @handler
    async def measure(self, readings: list[float]) -> float:
        """numpy's scalars are values of a handler; its state and its answers are plain."""
        values = np.asarray(readings, dtype=np.float64)
        self.state = Measured(int(values.size), float(values.mean()))
        await self.save()
        return self.state.mean

    @handler
    def scalar(self, kind: str) -> Any:
        """Return numpy's value, untyped."""
        return np.dtype(kind).type(3)

    @handler
    def typed_float(self) -> float:
        return np.float64(1.5)

    @handler
    def typed_int(self) -> int:
        return np.int64(3)  # type: ignore[return-value]

    @handler
    def array(self) -> Any:
        return np.arange(3)


async def test_models_come_back_as_they_were_sent() -> None:
    async with served(bus) as client:
        shelf = client.ref(Shelf, "a")
        line = Line(sku="a", price=2.5, tags=["t"])
        assert await shelf.line(line) == Line(sku="a", price=2.5, tags=["t", "Line"])
        assert await shelf.point(Point(1, 2)) == Point(2, 1)
        room = client.ref(StoreRoom, "a")
        assert await room.add(Box(1, label="b")) == Box(1, label="b")
        assert await room.add(Box(2)) == Box(1, label="b"), "the state has the class"


def test_a_class_of_attrs_is_refused_as_a_message_where_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"Box is not a dataclass, msgspec.Struct or pydantic"):
        ShardBus("other").message(Box)


async def test_a_value_that_a_model_refuses_never_reaches_a_handler() -> None:
    async with served(bus) as client:
        wrong: Any = Line.model_construct(sku="a", price="much")
        with pytest.raises(SchemaError):
            await client.ref(Shelf, "a").line(wrong)
        with pytest.raises(SchemaError):
            await client.ref(Shelf, "a").line(Line.model_construct(sku="a", price=-1.0))


async def test_numpy_computes_in_a_handler() -> None:
    async with served(bus) as client:
        assert await client.ref(Shelf, "a").measure([1.0, 2.0, 4.5]) == 2.5
        with pytest.raises(SchemaError):
            await client.ref(Shelf, "a").measure(np.arange(3.0))  # type: ignore[arg-type]


async def refused_or_plain(client: AsyncClient, name: str, *args: Any) -> Any:
    """Return the answer, or the error that names the value that could not be sent."""
    try:
        return await client.call("shelf", "a", name, *args)
    except EntityFailed as error:
        return error


@pytest.mark.parametrize("kind", ["int64", "int8", "uint64", "float32", "float64", "bool"])
async def test_a_scalar_of_numpy_is_answered_as_a_number_or_refused(kind: str) -> None:
    """Never as something else: no text, no bytes, no empty map."""
    async with served(bus) as client:
        answer = await refused_or_plain(client, "scalar", kind)
        if isinstance(answer, EntityFailed):
            assert kind.rstrip("0123456789") in str(answer) or "numpy" in str(answer)
        else:
            assert answer == 3
            assert type(answer) in (int, float, bool)


async def test_an_array_is_refused_with_its_type() -> None:
    async with served(bus) as client:
        answer = await refused_or_plain(client, "array")
        assert isinstance(answer, EntityFailed)
        assert "ndarray" in str(answer)
        for name, kind, value in (("typed_float", "float64", 1.5), ("typed_int", "int64", 3)):
            answer = await refused_or_plain(client, name)
            assert answer == value or kind in str(answer)
