"""Objects of one class from many payloads, in less time than one by one.

msgspec sets each field of a new object by the generic way, which takes longer than to read it; its
own Structs it fills at once. So a dataclass gets a *twin*, a Struct with the same fields, types and
defaults. msgspec reads and checks twins, and the class is called with their values. One message at
a time that gains nothing; many in a row it does, in loops that are not the interpreter's.

    payloads ── msgspec reads and checks ──> twins ── their values ──> cls(...) for each

What travels, and what is refused, is the same with and without a twin. A class has one only if its
objects are made of nothing but values, as msgspec makes them: `__init__` is the one that
`dataclass` writes and takes all fields in their order, there is no `__post_init__`, no `__new__`
and no `__setattr__` (a frozen one has that). Objects of other dataclasses are made by msgspec; many
in a row are quicker for them, too.

Source: docs/performance.md.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from itertools import starmap
from typing import Any

import msgspec
from msgspec.structs import astuple

FIELDS_MIN = 2
"""With fewer, msgspec is as quick without a twin."""

Decode = Callable[[bytes], Any]
ReadAll = Callable[[list[bytes]], list[Any]]
"""Payloads to objects, in their order; raises if any of them cannot be read."""


def reader_of_many(cls: Any, decoder: Callable[[Any], Decode], *, argument: bool) -> ReadAll | None:
    """How to read many payloads of a dataclass; None for anything else.

    Args:
        decoder: gives the function that reads one value of a type.
        argument: each value comes as the only one of an array.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        return None
    twin = _twin_of(cls)
    wanted: Any = twin or cls
    decode = decoder(tuple[wanted] if argument else wanted)

    def read(payloads: list[bytes]) -> list[Any]:
        if argument:
            return [value for (value,) in map(decode, payloads)]
        return list(map(decode, payloads))

    def read_twins(payloads: list[bytes]) -> list[Any]:
        return list(starmap(cls, map(astuple, read(payloads))))

    return read if twin is None else read_twins


def _twin_of(cls: type) -> type[msgspec.Struct] | None:
    fields = dataclasses.fields(cls)
    if len(fields) < FIELDS_MIN or not _is_made_of_values(cls):
        return None
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
        twins = [(field.name, hints[field.name], _default(field)) for field in fields]
        return msgspec.defstruct(cls.__name__, twins, kw_only=True, gc=False)
    except (TypeError, ValueError, LookupError, NameError):
        return None


def _is_made_of_values(cls: type) -> bool:
    """Whether calling the class with the values of its fields does what msgspec does with them."""
    ways: Any = cls
    plain = ways.__new__ is object.__new__ and ways.__setattr__ is object.__setattr__
    if type(cls) is not type or not plain or hasattr(cls, "__post_init__"):
        return False
    fields = dataclasses.fields(ways)
    same = [(field.name, object, _default(field, dataclasses.field)) for field in fields]
    try:
        written: Any = dataclasses.make_dataclass(cls.__name__, same)
    except TypeError:
        return False  # fields in an order that only keywords allow
    own = getattr(ways.__init__, "__code__", None)
    return own is not None and _what_it_does(own) == _what_it_does(written.__init__.__code__)


def _what_it_does(code: types.CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_argcount


def _default(field: dataclasses.Field[Any], make: Callable[..., Any] = msgspec.field) -> Any:
    """The field's default, declared anew."""
    if field.default is not dataclasses.MISSING:
        return make(default=field.default)
    if field.default_factory is not dataclasses.MISSING:
        return make(default_factory=field.default_factory)
    return make()
