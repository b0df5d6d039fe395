"""The place of a value below the value that is sent.

An encoder hands a value of an unknown class to a hook, which raises `Unsendable` and does not know
where the value stands. `located` looks for it, after the failure.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from shardbus.error_text import class_name, is_a, plain
from shardbus.tasks.interrupts import raise_signalled
from shardbus.wire.misfit import Misfit
from shardbus.wire.round_trip import names_of

LOOKED_AT_MAX = 10_000
"""Values that are searched; behind them the place is left out."""
CLASS_MAX = 200


class Unsendable(Misfit):
    """`value` has no form on the wire."""

    def __init__(self, value: object, why: str = "") -> None:
        super().__init__(f"a {_shown_class(type(value))} cannot travel{why}")
        self.value = value


def located(error: BaseException, root: object, names: tuple[str, ...] = ()) -> BaseException:
    """Return the error of encoding `root` with the place of its value, if that is found. `names`
    are the names of the elements of `root`."""
    if not is_a(error, Unsendable):
        return error
    try:
        return error.within(_place(error.value, root, names))
    except BaseException as e:  # a class of the application's may raise anything
        raise_signalled(e)
        return error


def _place(sought: object, root: object, names: tuple[str, ...]) -> str:
    elements: Any = root
    named = zip((f".{name}" for name in names), elements, strict=False) if names else ()
    left = deque(named or [("", root)])
    for _ in range(LOOKED_AT_MAX):
        if not left:
            break
        place, value = left.popleft()
        if value is sought:
            return place
        left.extend((place + step, part) for step, part in _parts(value))
    return ""


def _parts(value: Any) -> Iterable[tuple[str, object]]:
    cls = type(value)
    if issubclass(cls, dict):
        parts: Any = ((f".{key!s:.60}", part) for key, part in value.items())
    elif issubclass(cls, list | tuple | set | frozenset):
        parts = ((f"[{n}]", part) for n, part in enumerate(value))
    elif (fields := names_of(cls)) is not None:
        parts = ((f".{name}", getattr(value, name)) for name in fields)
    elif hasattr(cls, "__pydantic_validator__"):
        parts = ((f".{name}", part) for name, part in vars(value).items())
    else:
        parts = ()
    return islice(parts, LOOKED_AT_MAX)


def _shown_class(cls: type) -> str:
    """Return the name of a class, with its module where it is named as a class of Python's."""
    name = class_name(cls)
    if getattr(builtins, name, cls) is cls:
        return name
    return plain(f"{cls.__module__}.{name}", CLASS_MAX)
