"""Values without a declared type: which of them arrive as they are.

Without a declared type the receiver makes the types of MessagePack: None, bool, int, float, str,
bytes, a list, a dict, an aware datetime as its moment in UTC. Everything else would arrive as one
of these without notice, a tuple or a set as a list, a UUID as a text, a dataclass as a dict, so it
is refused; but a tuple that is a key arrives as such. A subclass counts as another class.

The check goes level by level, and looks at the classes of all values of a level at once, because
this runs in C. Only a value that is not plain is looked at piece by piece, to name the place.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import msgspec.inspect

from shardbus.wire.misfit import Misfit
from shardbus.wire.nesting import NESTING_MAX, too_deep

SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_LEAVES = SCALARS | {msgspec.msgpack.Ext}
_are_scalars = SCALARS.issuperset
_COLLECTIONS = frozenset((dict, list))
_are_plain = (SCALARS | _COLLECTIONS).issuperset


def check_plain(value: Any) -> None:
    """Check that a value without a declared type arrives as it is.

    Raises:
        Misfit: something in it would not.
    """
    if not is_flat(value) and not _is_plain(value):
        _check(value, NESTING_MAX)


def is_flat(value: Any) -> bool:
    """True for a scalar, and for a dict or a list of scalars."""
    kind = type(value)
    if kind is dict:
        return _are_scalars(map(type, value.values())) and _are_scalars(map(type, value))
    return kind in SCALARS or (kind is list and _are_scalars(map(type, value)))


def _is_plain(value: Any) -> bool:
    """True for collections of scalars; False if that is not known."""
    level = [value]
    for _ in range(NESTING_MAX):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                if not _are_scalars(map(type, each)):
                    return False
                inner += each.values()
            elif type(each) in _COLLECTIONS:
                inner += each
            else:
                return False
        kinds = set(map(type, inner))
        if kinds <= SCALARS:
            return True
        if not _are_plain(kinds):
            return False
        level = [each for each in inner if type(each) in _COLLECTIONS]
    return False


def _check(value: Any, room: int) -> None:
    kind = type(value)
    if kind in _LEAVES:
        return
    if not room and (kind is dict or kind is list):
        raise too_deep()
    if kind is dict:
        if not _are_scalars(map(type, value)):
            for key in value:
                _check_key(key, room - 1)
        if not _are_scalars(map(type, value.values())):
            _check_each(value.items(), ".{}", room - 1)
    elif kind is list:
        if not _are_scalars(map(type, value)):
            _check_each(enumerate(value), "[{}]", room - 1)
    elif kind is not datetime or value.tzinfo is None:
        raise Misfit(_why_not(value))


def _check_each(pairs: Any, place: str, room: int) -> None:
    for name, inner in pairs:
        if type(inner) not in SCALARS:
            try:
                _check(inner, room)
            except Misfit as misfit:
                raise misfit.within(place.format(f"{name!s:.60}")) from None


def check_plain_keys(value: dict[Any, Any]) -> None:
    """Raise Misfit unless the keys of a dict are plain: scalars, and tuples of these."""
    if not _are_scalars(map(type, value)):
        for key in value:
            _check_key(key, NESTING_MAX - 1)


def _check_key(key: Any, room: int) -> None:
    kind = type(key)
    if kind in SCALARS:
        return
    if kind is not tuple:
        raise Misfit(f"has a key that is a {kind.__name__}, which would arrive as another type")
    if not room:
        raise too_deep()
    for inner in key:
        _check_key(inner, room - 1)


def _why_not(value: Any) -> str:
    kind = type(value)
    what = "a datetime without a time zone" if kind is datetime else f"a {kind.__name__}"
    if not _can_be_declared(kind):
        return f"is {what}, which does not travel: send its plain form, such as a text or a number"
    return (
        f"is {what}, which does not arrive as such without a declared type: annotate it with its"
        " class, or send a plain value"
    )


def _can_be_declared(kind: Any) -> bool:
    """True if an annotation with the class would help: of msgspec's kinds, or a pydantic model."""
    try:
        info = msgspec.inspect.type_info(kind)
    except (TypeError, ValueError, NameError):
        return False
    return not isinstance(info, msgspec.inspect.CustomType) or hasattr(kind, "model_validate")
