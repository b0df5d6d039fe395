"""A save warns of attributes that are no fields, in the test kit and in debug mode."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.lost_attributes import WatchingProof, lost_attributes, watch_states
from shardbus.testing import EntityProbe


@dataclass
class Line:
    count: int = 0


@dataclass
class Book:
    total: int = 0
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)

    @cached_property
    def doubled(self) -> int:
        return 2 * self.total


class Strict(msgspec.Struct):
    total: int = 0


def book(**extra: object) -> Book:
    made = Book(lines=[Line()], by_name={"a": Line()})
    vars(made).update(extra)
    return made


def test_fields_private_names_and_those_of_the_class_are_no_loss() -> None:
    made = book(_cache=1)
    assert made.doubled == 0
    assert list(lost_attributes(made)) == []
    assert list(lost_attributes(Strict())) == []


def test_each_other_name_is_found_with_its_path() -> None:
    made = book(totl=1)
    vars(made.lines[0])["cuont"] = 1
    vars(made.by_name["a"])["x"] = 1
    assert list(lost_attributes(made)) == [
        (".totl", "Book"),
        (".lines[0].cuont", "Line"),
        (".by_name.a.x", "Line"),
    ]


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity(name="book")
    class Counter(Entity):
        state: Book

        @handler
        async def add(self, name: str) -> int:
            setattr(self.state, name, 5)
            await self.save()
            return self.state.total

    return bus


async def test_the_kit_warns_with_the_line_of_the_save() -> None:
    counter = application().types["book"].cls
    with pytest.warns(RuntimeWarning) as warnings_seen, EntityProbe(counter, "a") as probe:
        assert probe.run(probe.ref.add("totl")) == 0
    [warning] = [record for record in warnings_seen if "is not stored" in str(record.message)]
    assert str(warning.message) == ("the state of book.totl is not stored: Book has no such field")
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with EntityProbe(counter, "a") as probe:
            assert probe.run(probe.ref.add("total")) == 5


async def test_a_loop_looks_for_it_in_debug_mode_only() -> None:
    states = application().types["book"].states
    assert states is not None
    loop = asyncio.get_running_loop()
    watch_states(states, loop)
    assert not isinstance(states.proof, WatchingProof)
    loop.set_debug(True)
    for _ in range(2):
        watch_states(states, loop)
    assert isinstance(states.proof, WatchingProof)
    assert not isinstance(states.proof._proof, WatchingProof)
    with pytest.warns(RuntimeWarning, match=r"the state of book\.totl is not stored"):
        assert states.write(book(totl=1)) == states.write(book())
