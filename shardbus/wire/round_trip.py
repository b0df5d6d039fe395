"""The value that was read, compared with the written one.

The comparison goes by fields and elements, and does not ask a class of the application's whether
two objects are equal. Two values are the same if they have one type and one value. A declared type
decides the arriving value, so these are the same, too, unless `exact`, which is for places without
a declared type, or with several:

    an int where a float is declared         the float of that value
    a subclass of a plain class              the plain value, which is equal
    a tuple where a list is declared         the list

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_origin

import msgspec

from shardbus.quantities import counted
from shardbus.wire.misfit import Misfit
from shardbus.wire.plain_values import SCALARS

Compare = Callable[[Any, Any, bool], None]
Values = Callable[[Any], tuple[Any, ...]]
_PLAIN = (str, bytes, float, int, dict, list, tuple, set, frozenset)
_are_scalars = SCALARS.issuperset


def check_same(sent: Any, read: Any, *, exact: bool = False) -> None:
    """Check that a value was read as it was written.

    Raises:
        Misfit: it was not; the text names the place. A property or an `__eq__` of a class of the
            application's may raise anything.
    """
    if sent is not read:
        kind: Any = type(read)
        if type(sent) is not kind:
            _check_kinds(sent, read, exact)
        _comparison(kind)(sent, read, exact)


@lru_cache(1024)
def _comparison(kind: Any) -> Compare:
    """Return the function that compares a value with one that is read as this class."""
    if kind in SCALARS:
        return _check_scalars
    if issubclass(kind, dict):
        return _check_dicts
    if issubclass(kind, list | tuple):
        return _check_lists
    if (names := names_of(kind)) is not None:
        return partial(_check_fields, names, values_of(kind))
    if hasattr(kind, "__pydantic_validator__"):
        return _check_models
    return _check_others


def _check_scalars(sent: Any, read: Any, exact: bool) -> None:
    if sent != read and (sent == sent or read == read):  # else neither is a number
        raise Misfit(f"would come back as {_shown(read)}")


def _check_others(sent: Any, read: Any, exact: bool) -> None:
    if sent != read and not _is_one_moment(sent, read):
        raise Misfit(f"would come back as {_shown(read)}")
    if exact and isinstance(read, set | frozenset) and _types(sent) != _types(read):
        raise Misfit(f"has elements that would come back as in {_shown(read)}")


def _check_kinds(sent: Any, read: Any, exact: bool) -> None:
    made = type(read)
    if made is float and type(sent) is int:
        return
    if made is list and type(sent) is tuple and not exact:
        return
    if not exact and made in _PLAIN and isinstance(sent, made) and made is not bool:
        return
    if made in (set, frozenset) and isinstance(sent, set | frozenset) and not exact:
        return
    if made not in _PLAIN and not exact and _is_equal_scalar(sent, read):
        return
    raise Misfit(f"is a {type(sent).__name__} and would come back as a {made.__name__}")


def _is_equal_scalar(sent: Any, read: Any) -> bool:
    """True for equal values of two types without fields, as an int where a Decimal is declared."""
    made: Any = type(read)
    return type(sent) in SCALARS and names_of(made) is None and bool(sent == read)


def _check_dicts(sent: Any, read: Any, exact: bool) -> None:
    if len(sent) != len(read):
        raise Misfit(f"has {counted(len(sent), 'key')}, {len(read)} would come back")
    if not exact and _are_scalars(map(type, read.values())) and sent == read:
        return
    for (key, value), (other, returned) in zip(sent.items(), read.items(), strict=True):
        try:
            check_same(key, other, exact=exact)
        except Misfit as misfit:
            raise Misfit(f"has a key that {misfit.reason}") from None
        try:
            check_same(value, returned, exact=exact)
        except Misfit as misfit:
            raise misfit.within(f".{key!s:.60}") from None


def _check_lists(sent: Any, read: Any, exact: bool) -> None:
    if len(sent) != len(read):
        raise Misfit(f"has {counted(len(sent), 'element')}, {len(read)} would come back")
    for n, (value, returned) in enumerate(zip(sent, read, strict=True)):
        if type(value) not in SCALARS or type(value) is not type(returned) or value != returned:
            try:
                check_same(value, returned, exact=exact)
            except Misfit as misfit:
                raise misfit.within(f"[{n}]") from None


def names_of(cls: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, a Struct or an attrs class; None for any other."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if issubclass(cls, msgspec.Struct):
        struct: tuple[str, ...] = cls.__struct_fields__
        return struct
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else tuple(attribute.name for attribute in attributes)


def values_of(cls: Any) -> Values:
    """Return the function that reads all fields of an object at once."""
    names = names_of(cls) or ()
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _check_fields(
    names: tuple[str, ...], values: Values, sent: Any, read: Any, exact: bool
) -> None:
    try:
        before = values(sent)
    except AttributeError as e:
        raise Misfit(_unset(sent, names, e)) from None
    after = values(read)
    if not exact and _are_scalars(map(type, after)) and before == after:
        return
    for name, value, other in zip(names, before, after, strict=True):
        if value is not other:
            try:
                check_same(value, other, exact=exact)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None


def _unset(sent: Any, names: tuple[str, ...], error: AttributeError) -> str:
    for name in names:
        if not hasattr(sent, name):
            return f"has no value in its field {name}"
    return str(error)


def _check_models(sent: Any, read: Any, exact: bool) -> None:
    cls: Any = type(read)
    fields, other = sent.__dict__, read.__dict__
    flat = _are_scalars(map(type, fields.values())) and _are_scalars(map(type, other.values()))
    for name, is_open in () if flat and fields == other else _model_fields(cls):
        value, returned = fields[name], other[name]
        if value is not returned:
            try:
                check_same(value, returned, exact=exact or is_open)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
    for held in ("__pydantic_extra__", "__pydantic_private__"):
        fields, other = getattr(sent, held, None) or {}, getattr(read, held, None) or {}
        for name in (*fields, *(name for name in other if name not in fields)):
            if name not in other or name not in fields:
                raise Misfit("would not come back as it is", f".{name}")
            try:
                check_same(fields[name], other[name], exact=True)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None


@lru_cache(1024)
def _model_fields(model: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a model, each with whether the type of a part of it is open."""
    fields = model.model_fields.items()
    return tuple((name, _is_open(field.annotation)) for name, field in fields)


def _is_open(annotation: Any) -> bool:
    """True if the class of a value does not follow from a part of an annotation: without a type, or
    with several, of which pydantic takes one that fits the plain value."""
    arguments = getattr(annotation, "__args__", None)
    if arguments:
        several = (
            get_origin(annotation) in (Union, UnionType) and len({*arguments} - {NoneType}) > 1
        )
        return several or any(map(_is_open, arguments))
    return annotation in (Any, object, list, dict, tuple, set, frozenset)


def _is_one_moment(sent: Any, read: Any) -> bool:
    """True for equal moments, also in the hour that a clock repeats, where Python calls a time
    unequal to every time of another zone."""
    if type(sent) is not datetime or sent.tzinfo is None or read.tzinfo is None:
        return False
    return bool(sent.astimezone(UTC) == read.astimezone(UTC))


def _types(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def _shown(value: Any) -> str:
    return f"{value!r:.100}"
