"""Exceptions as code that others wrote may raise them: without a text, with too long a one, of no
usual class, with a chain that cannot be printed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardbus.errors import EntityFailed, ReentrancyError, Rejection, StateUnreadable, Unhandled


class Panic(BaseException):
    """As extensions in Rust raise it."""


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoString(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class PanicsInText(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)

    __repr__ = __str__


class OddMeta(type):
    @property
    def __name__(cls) -> str:
        raise KeyboardInterrupt


class OddName(Exception, metaclass=OddMeta):
    pass


class LiesAboutItsClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return EntityFailed


class HasNoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class HasNoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Uncomparable(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class OddTraceback(Exception):
    __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __cause__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __notes__ = property(lambda self: 1 / 0)


class OddStop(StopIteration):
    pass


class OddFailure(EntityFailed):
    """It lacks the attributes of its class."""

    def __init__(self) -> None:
        self.args = (1, 2)

    def __str__(self) -> str:
        raise RuntimeError("no text")


class OddUnhandled(Unhandled):
    def __init__(self) -> None:
        self.message = b"\xff"  # type: ignore[assignment]


@dataclass
class UnsendableNo(Rejection):
    why: object = None

    def __str__(self) -> str:
        raise RuntimeError("no text")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def cycle() -> BaseException:
    first, other = ValueError("one"), ValueError("other")
    first.__cause__, other.__cause__ = other, first
    return first


def long_chain() -> BaseException:
    error: BaseException = ValueError("first")
    for n in range(5_000):
        error = caused(ValueError(str(n)), error)
    return error


def recursion() -> BaseException:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as e:
        return e
    raise AssertionError


ODD: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("plain"),
    "empty": ValueError,
    "panic": lambda: Panic("index out of bounds"),
    "no_text": NoText,
    "no_string": NoString,
    "panics_in_text": PanicsInText,
    "megabytes": lambda: ValueError("x" * 3_000_000),
    "surrogate": lambda: ValueError("cannot read caf\udce9.txt"),
    "surrogates": lambda: ValueError("\udce9" * 100_000),
    "odd_name": OddName,
    "long_name": type("A" * 100_000, (Exception,), {}),
    "lies": LiesAboutItsClass,
    "no_class": HasNoClass,
    "no_attributes": HasNoAttributes,
    "uncomparable": Uncomparable,
    "odd_traceback": OddTraceback,
    "generator_exit": GeneratorExit,
    "stop": lambda: StopIteration(7),
    "odd_stop": lambda: OddStop(7),
    "stop_async": StopAsyncIteration,
    "exit": lambda: SystemExit(2),
    "exit_text": lambda: SystemExit("usage"),
    "interrupt": KeyboardInterrupt,
    "cancelled": lambda: asyncio.CancelledError("by itself"),
    "group": lambda: ExceptionGroup("some", [ValueError("a"), NoText()]),
    "exit_group": lambda: BaseExceptionGroup("some", [SystemExit(1), KeyboardInterrupt()]),
    "cancelled_group": lambda: BaseExceptionGroup("some", [asyncio.CancelledError(), Panic()]),
    "recursion": recursion,
    "memory": MemoryError,
    "cycle": cycle,
    "long_chain": long_chain,
    "no_text_cause": lambda: caused(ValueError("outer"), PanicsInText()),
    "odd_cause": lambda: caused(ValueError("outer"), HasNoAttributes()),
    "odd_failure": OddFailure,
    "odd_unhandled": OddUnhandled,
    "unsendable_no": lambda: UnsendableNo(object()),
    "no_cycle": lambda: ReentrancyError(()),
    "long_cycle": lambda: ReentrancyError([("t\x01" * 100, "i\x02" * 100)] * 100),
    "unreadable": lambda: StateUnreadable("\udce9" * 50_000, field="\udce9" * 9_000),
}
