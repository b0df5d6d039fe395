"""Texts of exceptions are texts, whatever their classes do."""

from __future__ import annotations

import pytest

from shardbus.error_text import (
    NAME_MAX,
    TEXT_MAX,
    TRACEBACK_MAX,
    callable_name,
    described,
    is_a,
    shown,
    text_of,
    traceback_of,
    type_name,
)
from shardbus.errors import EntityFailed
from tests.odd_exceptions import ODD, HasNoClass, LiesAboutItsClass, OddName, recursion


def raised(how: str) -> BaseException:
    try:
        raise ODD[how]()
    except BaseException as error:
        return error


@pytest.mark.parametrize("how", ODD)
def test_every_exception_has_a_bounded_text_that_can_be_encoded(how: str) -> None:
    error = raised(how)
    for text, most in (
        (text_of(error), TEXT_MAX),
        (type_name(error), NAME_MAX),
        (described(error), TEXT_MAX + NAME_MAX + 2),
        (shown(error, 60), 60 + len("<no text: repr() raised >") + NAME_MAX),
        (traceback_of(error), TRACEBACK_MAX + 10),
    ):
        assert type(text) is str
        assert len(text) <= most
        text.encode()
    assert "in raised" in traceback_of(error)
    assert type_name(error)[:100] in traceback_of(error)


def test_a_text_is_what_str_returns() -> None:
    assert described(ValueError("é\n")) == "ValueError: é\n"
    assert described(KeyError()) == "KeyError"
    assert text_of(ValueError("caf\udce9")) == "caf\\udce9"
    assert shown([1, "a"]) == "[1, 'a']"
    long = text_of(ValueError("x" * 100), 10)
    assert (long, len(long)) == ("xxxxxxx...", 10)


def test_a_group_names_the_exceptions_in_it() -> None:
    """Its own text only counts them: "unhandled errors in a TaskGroup (2 sub-exceptions)"."""
    inner = ExceptionGroup("inner", [KeyError(), ValueError("two")])
    group = ExceptionGroup("outer", [OSError("one"), inner])
    assert described(group) == (
        "ExceptionGroup: outer (2 sub-exceptions): OSError: one; KeyError; ValueError: two"
    )
    many = BaseExceptionGroup("many", [ValueError(str(n)) for n in range(9)])
    assert text_of(many).endswith(": ValueError: 0; ValueError: 1; ValueError: 2; ...")
    assert len(text_of(many, 30)) == 30


def test_escaping_keeps_the_bound() -> None:
    assert len(text_of(ValueError("\udce9" * 50), 60)) == 60


def test_an_object_without_a_text_is_named() -> None:
    assert text_of(ODD["no_text"]()) == "<no text: str() raised RuntimeError>"
    assert text_of(ODD["panics_in_text"]()) == "<no text: str() raised SystemExit>"
    assert shown(ODD["panics_in_text"]()) == "<no text: repr() raised SystemExit>"


def test_classes_are_compared_by_type() -> None:
    assert isinstance(LiesAboutItsClass(), EntityFailed)
    assert not is_a(LiesAboutItsClass(), EntityFailed)
    assert is_a(HasNoClass(), Exception, EntityFailed)
    assert type_name(OddName()) == "OddName"


def test_a_traceback_of_a_recursion_is_bounded() -> None:
    assert len(traceback_of(recursion())) <= TRACEBACK_MAX + 10


def test_a_callable_of_any_kind_has_a_name() -> None:
    class Odd:
        def __getattr__(self, name: str) -> object:
            raise SystemExit

        def __call__(self) -> None: ...

    assert callable_name(recursion) == "recursion"
    assert callable_name(Odd()) == "Odd"
