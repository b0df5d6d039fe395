"""Fields and changed copies of records, whether dataclasses or Structs (`copy.replace` and one way
to list fields come with Python 3.13)."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(record: T, /, **changes: Any) -> T:
    """Return a copy of a dataclass or Struct with other values of these fields."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or Struct, in order."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
