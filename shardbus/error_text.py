"""Texts of exceptions and values whose classes others wrote.

A class may raise in `__str__` or `__repr__`, return megabytes or a lone surrogate, lie about its
`__class__`, or have a metaclass with a `__name__` of its own. An error text made from it goes into
answers, logs, metrics and pages, and none of these may fail because of it. So every text of such an
object is made here, and each function returns a plain `str` whatever the object does: bounded, and
without characters that UTF-8 cannot encode.

    type_name(error)      "OutOfRange"
    text_of(error)        "index 7"
    described(error)      "OutOfRange: index 7", or the name alone
    shown(value)          its repr
    traceback_of(error)   the traceback with its causes

An object that has no text is named: `<no text: str() raised TypeError>`. Code that handles such an
exception compares `type(error)` (`is_a`), because `isinstance` reads `__class__`.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TypeGuard, TypeVar

E = TypeVar("E", bound=BaseException)
NAME_MAX = 200
"""Characters of the name of a class."""
TEXT_MAX = 16 * 1024
"""Characters of the text of an exception."""
MEMBERS_MAX = 3
"""Exceptions of a group in its text."""
SHOWN_MAX = 100
"""Characters of a value in a message, by default."""
TRACEBACK_MAX = 64 * 1024
"""Characters of a traceback: the first half, and the last."""
_CUT = "..."
HEAD = "Traceback (most recent call last):\n"
_name = type.__dict__["__name__"].__get__
"""The name of a class by itself: a metaclass may define another `__name__`."""
_members = BaseExceptionGroup.__dict__["exceptions"].__get__
"""The exceptions in a group, whatever its class defines."""
_traceback = BaseException.__dict__["__traceback__"].__get__
"""The traceback by itself: a class may define another `__traceback__`."""


def is_a(error: BaseException, *classes: type[E]) -> TypeGuard[E]:
    """True if the exception is of one of these classes, whatever its `__class__` says."""
    return issubclass(type(error), classes)


def is_exception(error: BaseException) -> TypeGuard[Exception]:
    """True if it is an Exception, whatever its `__class__` says."""
    return issubclass(type(error), Exception)


def is_error(value: object) -> TypeGuard[BaseException]:
    """True if the value is an exception, whatever its `__class__` says."""
    return issubclass(type(value), BaseException)


def type_name(error: object) -> str:
    """Return the name of an object's class."""
    return class_name(type(error))


def class_name(cls: type) -> str:
    """Return the name of a class."""
    return plain(_name(cls), NAME_MAX)


def callable_name(function: object) -> str:
    """Return the qualified name of a function or method, else the name of the object's class."""
    try:
        name = function.__qualname__  # type: ignore[attr-defined]
        return plain(name, NAME_MAX) or type_name(function)
    except BaseException:
        return type_name(function)


def text_of(error: BaseException, most: int = TEXT_MAX) -> str:
    """Return the text of an exception, of at most `most` characters. A group has the exceptions
    that it contains behind its own text, which counts them only."""
    if not is_a(error, BaseExceptionGroup):
        return written(error, most)
    named: list[str] = []
    members = list(_members(error))
    while members and len(named) < MEMBERS_MAX:
        member = members.pop(0)
        if is_a(member, BaseExceptionGroup):
            members[:0] = _members(member)
        else:
            named.append(f"{type_name(member)}: {written(member, most)}".removesuffix(": "))
    if members:
        named.append(_CUT)
    return plain(f"{written(error, most)}: {'; '.join(named)}", most)


def written(value: object, most: int = TEXT_MAX) -> str:
    """Return a value as `str` does, of at most `most` characters."""
    return _text(value, str, most)


def shown(value: object, most: int = SHOWN_MAX) -> str:
    """Return the repr of a value, of at most `most` characters."""
    return _text(value, repr, most)


def described(error: BaseException, most: int = TEXT_MAX) -> str:
    """Return the name of an exception's class, and its text if it has one."""
    name, text = type_name(error), text_of(error, most)
    return f"{name}: {text}" if text else name


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception and of those that led to it. One that cannot be written
    is replaced by the description of the exception and its own frames."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as e:
        text = f"{HEAD}{_frames(error)}{described(error)}\n({_no_text('the chain', e)})"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8").rstrip("\n")
    half = TRACEBACK_MAX // 2
    return text if len(text) <= TRACEBACK_MAX else f"{text[:half]}\n{_CUT}\n{text[-half:]}"


def traceback_in(error: BaseException) -> TracebackType | None:
    """Return the traceback that an exception has, as `__traceback__`."""
    frames: TracebackType | None = _traceback(error)
    return frames


def plain(text: str, most: int) -> str:
    """Return a text as a `str` that UTF-8 can encode, of at most `most` characters."""
    text = str.__str__(_cut(text, most))
    if text.isascii():
        return text
    return _cut(text.encode("utf-8", "backslashreplace").decode("utf-8"), most)


def _cut(text: str, most: int) -> str:
    if str.__len__(text) <= most:
        return text
    return str.__getitem__(text, slice(0, max(0, most - len(_CUT)))) + _CUT


def _text(value: object, write: Callable[[object], str], most: int) -> str:
    try:
        return plain(write(value), most)
    except BaseException as e:
        return _no_text(f"{write.__name__}()", e)


def _no_text(what: str, error: BaseException) -> str:
    return f"<no text: {what} raised {type_name(error)}>"


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_tb(_traceback(error)))
    except BaseException:
        return ""
