"""Bounds in annotations that nothing would check.

`Annotated[int, Gt(0)]` of annotated-types and `Annotated[int, Field(gt=0)]` of pydantic are bounds
for the library that reads them. Values are decoded by msgspec, which knows the bounds of its own
`Meta` alone and ignores the others, so an amount below zero would reach its handler. Such an
annotation is refused where it is declared. A pydantic model is not looked into: it checks itself. A
dataclass of pydantic does not, because msgspec makes its objects without its validators.

Neither library is imported here: an object of one is known by the module of its class.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from shardbus.errors import ConfigError
from shardbus.wire.values import is_model

VALIDATORS = ("validators", "field_validators", "root_validators", "model_validators")
"""The attributes of pydantic's record of a class that have methods which check values."""
NO_BOUNDS = frozenset({"DocInfo", "Unit", "Strict", "FailFast"})
"""Classes of annotations that allow each value of the type; types are always strict here."""
META = {
    **{name: name.lower() for name in ("Gt", "Ge", "Lt", "Le")},
    "MultipleOf": "multiple_of",
    "MinLen": "min_length",
    "MaxLen": "max_length",
}
"""Bounds of annotated-types that `msgspec.Meta` has, too, by the names of their classes."""


def check_bounds(where: str, declared: Any) -> None:
    """Check that a declared type has no bound which is not checked.

    Raises:
        ConfigError: it has one; the message has `where` and the path below it.
    """
    if "annotated_types" in sys.modules:  # pydantic imports it, too
        _look(where, declared, set())


def _look(where: str, declared: Any, seen: set[Any]) -> None:
    if typing.get_origin(declared) is Annotated:
        kind, *marks = typing.get_args(declared)
        if not any(isinstance(mark, msgspec.Meta) for mark in marks):
            for mark in marks:
                _refuse_bounds(where, mark)
        _look(where, kind, seen)
        return
    for part in typing.get_args(declared):
        _look(where, part, seen)
    cls = typing.get_origin(declared) or declared
    if type(cls).__name__ == "TypeAliasType":  # of Python 3.12, or of typing_extensions
        _look(where, cls.__value__, seen)
    if isinstance(cls, typing.NewType):
        _look(where, cls.__supertype__, seen)
    if not isinstance(cls, type) or cls in seen or cls.__module__ == "builtins" or is_model(cls):
        return
    seen.add(cls)
    _check_validators(where, cls)
    for name, hint in _hints(cls).items():
        _look(f"{where}.{name}", hint, seen)


def _hints(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a class."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError):  # msgspec has read those of its fields
        return {}


def _refuse_bounds(where: str, mark: Any) -> None:
    for bound in _bounds_of(mark):
        name = META.get(type(bound).__name__)
        value = getattr(bound, name, None) if name else None
        raise ConfigError(
            f"{where} cannot be a message type: nothing would check {bound!r:.80}",
            hint=f"write msgspec.Meta({name}={value!r}) in its place"
            if name
            else "use msgspec.Meta, or a field of a pydantic.BaseModel, or check it in the handler",
        )


def _bounds_of(mark: Any) -> Iterable[Any]:
    """Return the bounds that an annotation stands for."""
    kinds = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(mark).__mro__}
    name = type(mark).__name__
    if name in NO_BOUNDS or getattr(mark, "allow_inf_nan", False):
        return ()
    if ("pydantic", "FieldInfo") in kinds:
        return [bound for part in mark.metadata for bound in _bounds_of(part)]
    if ("annotated_types", "GroupedMetadata") in kinds:
        return [bound for part in mark for bound in _bounds_of(part)]
    is_validator = ("pydantic", name) in kinds and name.endswith(("Validator", "AllowInfNan"))
    return [mark] if is_validator or ("annotated_types", "BaseMetadata") in kinds else ()


def _check_validators(where: str, cls: Any) -> None:
    """Check that a dataclass of pydantic has no validators.

    Raises:
        ConfigError: it has.
    """
    methods = getattr(cls, "__pydantic_decorators__", None)
    config = getattr(cls, "__pydantic_config__", None) or {}
    if any(getattr(methods, name, None) for name in VALIDATORS) or any(
        key.startswith("str_") for key in config
    ):
        raise ConfigError(
            f"{where} cannot be a message type: {cls.__name__} is a dataclass of pydantic with"
            " validators, which would not run where it arrives",
            hint="make it a pydantic.BaseModel",
        )
