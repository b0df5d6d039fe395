"""Hints for handlers that a type lacks."""

from __future__ import annotations

import pytest

from shardbus.wire.missing_handlers import LISTED_MAX, hint_of, hint_of_call, no_attribute
from shardbus.wire.schema import Interface, Method, method


def methods(*names: str) -> dict[str, Method]:
    def function(self: object) -> None: ...

    return {name: method(name, function) for name in names}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("totl", "; did you mean total?"),
        ("Total", "; did you mean total?"),
        ("refresh", "; it has total, add"),
        ("total" + "x" * 200, "; it has total, add"),
        ("hidden", "; write it"),
    ],
)
def test_a_missing_handler_gets_a_hint(name: str, hint: str) -> None:
    counter = Interface(
        "counter", 1, "", methods("total", "add"), no_handlers={"hidden": "write it"}
    )
    assert hint_of(counter, name) == hint
    assert (
        str(no_attribute(counter, name)) == f"entity type 'counter' has no handler {name!r}{hint}"
    )


def test_a_type_that_is_not_known_gives_no_hint() -> None:
    assert hint_of(Interface("counter", 1, ""), "add") == ""


def test_few_handlers_are_listed() -> None:
    many = Interface("many", 1, "", methods(*(f"h{n}" for n in range(LISTED_MAX + 1))))
    assert hint_of(many, "quickly") == "; it has h0, h1, h2, h3, h4, ..."


@pytest.mark.parametrize(
    ("receives", "name", "hint"),
    [
        (True, "totl", "; did you mean total?"),
        (True, "hidden", "; write it"),
        (True, "hello", """; receive takes it as a message: '"hello"' on the command line"""),
        (True, "no name", "; receive takes it as a message"),
        (False, "hello", "; it has total"),
    ],
)
def test_a_call_by_name_gets_one_hint(receives: bool, name: str, hint: str) -> None:
    messages = {"": lambda payload: payload} if receives else {}
    counter = Interface(
        "counter", 1, "", methods("total"), messages, no_handlers={"hidden": "write it"}
    )
    assert hint_of_call(counter, name) == hint
