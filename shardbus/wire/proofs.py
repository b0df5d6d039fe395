"""Values that are shown by their classes alone to come back as they are.

To read a stored value back takes four times as long as to write it. For the most common states it
is not needed: a dataclass or a Struct without code of its own, whose fields are None, bool, int,
float, str or bytes without a constraint, or collections of these, comes back as it is if each value
has the very class that is declared. A proof looks at the classes. Where there is none, or it does
not hold, the value is read back.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import inspect as m

from shardbus.wire.round_trip import names_of, values_of
from shardbus.wire.shapes import class_of, runs_code

Proof = Callable[[Any], bool]
"""True for a value that comes back as it is; False if that is not known."""

_SCALARS: dict[type, type] = {
    m.NoneType: type(None),
    m.BoolType: bool,
    m.IntType: int,
    m.FloatType: float,
    m.StrType: str,
    m.BytesType: bytes,
}
_COLLECTIONS: dict[type, type] = {
    m.ListType: list,
    m.VarTupleType: tuple,
    m.SetType: set,
    m.FrozenSetType: frozenset,
}
_KINDS_MAX = 64
"""Combinations of classes of one object's fields that are remembered."""


def proof_of(declared: Any) -> Proof | None:
    """Return the proof for a declared type; None if its values must be read back."""
    try:
        return _proof(m.type_info(declared), frozenset())
    except (TypeError, ValueError):
        return None


def _classes(info: Any) -> frozenset[type] | None:
    """Return the classes of a type without parts; None for any other type."""
    if isinstance(info, m.UnionType):
        members = [_classes(member) for member in info.types]
        classes = [member for member in members if member is not None]
        return frozenset().union(*classes) if len(classes) == len(members) else None
    cls = _SCALARS.get(type(info))
    if cls is None or any(getattr(info, name, None) is not None for name in _CONSTRAINTS):
        return None
    return frozenset((cls,))


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def _proof(info: Any, around: frozenset[int]) -> Proof | None:
    if id(info) in around or any(getattr(info, name, None) is not None for name in _CONSTRAINTS):
        return None
    around |= {id(info)}
    classes = _classes(info)
    if classes is not None:
        return lambda value: type(value) in classes
    match info:
        case m.StructType(cls=cls) | m.DataclassType(cls=cls) if not runs_code(class_of(cls)):
            return _fields_proof(class_of(cls), info, around)
        case m.DictType(key_type=key, value_type=value):
            return _dict_proof(_classes(key), _all_proof(value, around))
    kind = _COLLECTIONS.get(type(info))
    return None if kind is None else _elements_proof(kind, info.item_type, around)


def _elements_proof(kind: type, item: Any, around: frozenset[int]) -> Proof | None:
    are_proven = _all_proof(item, around)
    if are_proven is None:
        return None
    return lambda value: type(value) is kind and are_proven(value)


def _all_proof(item: Any, around: frozenset[int]) -> Proof | None:
    """Return the proof for all values of an iterable."""
    classes, each = _classes(item), _proof(item, around)
    if classes is not None:
        are_known = classes.issuperset
        return lambda values: are_known(map(type, values))
    if each is None:
        return None
    proof = each
    return lambda values: all(map(proof, values))


def _dict_proof(keys: frozenset[type] | None, are_proven: Proof | None) -> Proof | None:
    if keys is None or are_proven is None:
        return None
    are_keys = keys.issuperset
    return lambda value: (
        type(value) is dict and are_keys(map(type, value)) and are_proven(value.values())
    )


def _fields_proof(cls: Any, info: Any, around: frozenset[int]) -> Proof | None:
    declared = {f.name: f.type for f in info.fields}
    names = names_of(cls)
    if names is None or set(names) != set(declared):
        return None
    parts: list[tuple[int, Proof]] = []
    for n, name in enumerate(names):
        each = _proof(declared[name], around)
        if each is None:
            return None
        parts.append((n, each))
    deep = [(n, each) for n, each in parts if _classes(declared[names[n]]) is None]
    values, proven = values_of(cls), set[tuple[type, ...]]()

    def proof(value: Any) -> bool:
        if type(value) is not cls:
            return False
        try:
            fields = values(value)
        except AttributeError:
            return False
        kinds = tuple(map(type, fields))
        if kinds in proven:
            return all(each(fields[n]) for n, each in deep) if deep else True
        if not all(each(fields[n]) for n, each in parts):
            return False
        if len(proven) < _KINDS_MAX:
            proven.add(kinds)
        return True

    return proof
