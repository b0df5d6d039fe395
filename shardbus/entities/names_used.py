"""The names that the methods of a class use: a node looks for pending deliveries and reminders only
of types whose class has a method that can make some."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from shardbus.entities.entity_type import layers


def uses_name(cls: type, name: str) -> bool:
    """True if a method of the class uses a name, as `deliver` in `self.deliver(...)`, or may use
    it: the code of a compiled method cannot be read."""
    methods = (
        method
        for base in cls.__mro__
        if base.__module__ != "shardbus.entity"
        for value in vars(base).values()
        for method in (value, getattr(value, "function", None), getattr(value, "fget", None))
        if callable(method)
    )
    every = (layer for method in methods for layer in layers(method))
    return any(is_compiled(f) or any(name in code.co_names for code in _codes(f)) for f in every)


def is_compiled(function: Any) -> bool:
    """True for a function of Cython or Nuitka. It has a code object without its instructions.
    Nuitka lets `isinstance` take it for a function of Python. A decorator's object that shows the
    code of the function within is none."""
    return (
        type(function) is not FunctionType
        and isinstance(getattr(function, "__code__", None), CodeType)
        and not hasattr(function, "__wrapped__")
    )


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions in it."""
    waiting = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            yield code
            waiting += code.co_consts
