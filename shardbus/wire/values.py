"""Any value as MessagePack, pydantic models included.

msgspec writes all classes but pydantic's by itself. A model travels as the map of its fields, by
their names and with the values that it has in memory: aliases, serializers, `exclude` and computed
fields shape the look of a model elsewhere, and lose or change something here. A model is read by
its own validators, by the names of the fields or by their aliases, and as from JSON where it is
strict, because a set or a Decimal is a list or a text by then.

Only the model itself shows whether its validators give back their input. So each model is read back
when it is written, and compared. One that would not come back as it is, for its private attributes,
a validator that changes it twice, an assignment that no validator saw, is refused.

Two ways of writing differ in the fields that were never set: an argument leaves out those that have
their default, so that `model_fields_set` arrives; an answer and a state have all fields, because
callers without the class and later releases read them.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from shardbus.tasks.interrupts import raise_signalled
from shardbus.wire.misfit import Misfit, described
from shardbus.wire.places import Unsendable, located
from shardbus.wire.round_trip import check_same

Pack = Callable[[Any], bytes]
_decode_any = msgspec.msgpack.Decoder().decode
_FRESH = (list, dict, set, frozenset, tuple)


def is_model(cls: object) -> bool:
    """True for a class of pydantic models."""
    return hasattr(cls, "model_validate")


class _Model:
    """The parts of a model class that are needed to write and read its objects."""

    def __init__(self, cls: Any) -> None:
        fields = cls.model_fields
        self.names = tuple(fields)
        self.keys = _keys_of(cls)
        """The keys of fields that travel by their aliases, by name."""
        self.is_root = bool(getattr(cls, "__pydantic_root_model__", False))
        self.computed = frozenset(cls.model_computed_fields)
        self.types = {name: field.annotation for name, field in fields.items()}
        self.types |= {key: self.types[name] for name, key in self.keys.items()}
        self.defaults = {name: _defaults_of(field) for name, field in fields.items()}
        takes_names = "by_name" in inspect.signature(cls.model_validate).parameters
        self.by_name = {"by_name": True, "by_alias": True} if takes_names else {}
        """Arguments that make pydantic, since 2.11, read fields by name and by alias."""

    def whole(self, model: Any) -> Any:
        """Return the fields by name; the value itself of a root model."""
        plain = self._fields(model)
        return plain["root"] if self.is_root else self._keyed(model, plain)

    def _fields(self, model: Any) -> dict[str, Any]:
        values = model.__dict__
        try:
            return {name: values[name] for name in self.names}
        except KeyError as e:
            raise Misfit(f"has no value in its field {e.args[0]}") from None

    def _keyed(self, model: Any, plain: dict[str, Any]) -> dict[str, Any]:
        """Return fields by the keys that they travel under, with the extra values."""
        if self.keys:
            plain = {self.keys.get(name, name): value for name, value in plain.items()}
        for name, value in (model.__pydantic_extra__ or {}).items():
            if name in plain:
                raise Misfit("is an extra value with the name of a field", f".{name}")
            plain[name] = value
        return plain

    def without_defaults(self, model: Any) -> Any:
        """Return the fields, but for those that were not set and have their default."""
        plain = self._fields(model)
        if not self.is_root:
            for name in self.defaults.keys() - model.__pydantic_fields_set__:
                if _is_default(self.defaults[name], plain[name]):
                    del plain[name]
        return plain["root"] if self.is_root else self._keyed(model, plain)

    def read(self, cls: Any, value: object) -> object:
        """Return the model that a plain value stands for. Raises as its class does."""
        if isinstance(value, dict) and not self.computed.isdisjoint(value):
            # Earlier builds have written computed fields.
            value = {key: field for key, field in value.items() if key not in self.computed}
        try:
            return cls.model_validate(value, **self.by_name)
        except ValueError:
            with contextlib.suppress(ValueError):
                return cls.model_validate(self._typed(value), **self.by_name)
            with contextlib.suppress(ValueError):
                return cls.model_validate_json(_as_json(value), **self.by_name)
            raise

    def _typed(self, value: object) -> object:
        """Return the value with fields of their declared types, which a strict model requires."""
        if self.is_root:
            return _converted(value, self.types["root"])
        if not isinstance(value, dict):
            raise ValueError("not the fields of a model")
        types = self.types
        return {k: _converted(v, types[k]) if k in types else v for k, v in value.items()}


_model_of = lru_cache(1024)(_Model)


def _keys_of(cls: Any) -> dict[str, str]:
    """Return the aliases of fields by name, if the model dumps itself by them: earlier builds have
    sent them, and read nothing else."""
    if not cls.model_config.get("serialize_by_alias"):
        return {}
    fields = cls.model_fields.items()
    aliases = {
        name: field.serialization_alias
        for name, field in fields
        if field.serialization_alias and field.serialization_alias == field.validation_alias
    }
    others = set(cls.model_fields) - set(aliases)
    unique = len(set(aliases.values())) == len(aliases) and others.isdisjoint(aliases.values())
    return aliases if unique else {}


def _as_json(value: object) -> bytes:
    """Return a plain value as JSON, for a model that is strict with objects only."""
    from pydantic_core import to_json  # with a model there is pydantic

    return to_json(value, inf_nan_mode="constants")


def _converted(value: object, declared: Any) -> object:
    """Return a plain value as one of a declared type, or as it is."""
    try:
        converted: object = msgspec.convert(value, declared, dec_hook=from_wire)
    except (TypeError, ValueError):
        return value
    return converted


def _defaults_of(field: Any) -> tuple[Any, ...]:
    """Return the default of a field, if it is known without calling the application."""
    factory = field.default_factory
    if factory is not None:
        return (factory(),) if factory in _FRESH else ()
    return (field.default,)


def _is_default(defaults: tuple[Any, ...], value: object) -> bool:
    for default in defaults:
        fresh = type(value) in _FRESH and type(value) is type(default)
        return value is default or (fresh and not value and not default)
    return False


def from_wire(cls: Any, value: object) -> object:
    """Read a value of a class that is unknown to msgspec.

    Raises:
        ValueError: it does not fit. msgspec adds its place.
    """
    if cls is object:
        return value
    try:
        return _model_of(cls).read(cls, value)
    except BaseException as e:  # a validator may raise anything
        raise_signalled(e)
        raise ValueError(described(e)) from None


def _whole(value: Any) -> Any:
    return _model_of(_checked(value)).whole(value)


def _without_defaults(value: Any) -> Any:
    return _model_of(_checked(value)).without_defaults(value)


def _checked(value: Any) -> Any:
    cls = type(value)
    if not is_model(cls):
        raise Unsendable(value)
    return cls


def _packer(*ways: Callable[[Any], Any]) -> Pack:
    """Return the function that encodes any value, its models in the first of the ways in which they
    come back as they are."""
    packs = [msgspec.msgpack.Encoder(enc_hook=way).encode for way in ways]

    def hook(value: Any) -> msgspec.Raw:
        cls = type(value)
        misfit = Unsendable(value)
        for pack in packs if is_model(cls) else ():
            try:
                payload = pack(value)
                check_same(value, from_wire(cls, _decode_any(payload)))
            except Misfit as e:
                misfit = Unsendable(value, f": {located(e, value)}")
            except BaseException as e:  # a class may raise anything when it is read
                raise_signalled(e)
                misfit = Unsendable(value, f": {described(e)}")
            else:
                return msgspec.Raw(payload)
        raise misfit

    return msgspec.msgpack.Encoder(enc_hook=hook).encode


pack_sent: Pack = _packer(_without_defaults, _whole)
"""Encode an argument or a message. Raises anything, for callers that handle it."""
pack_whole: Pack = _packer(_whole)
"""Encode an answer, a rejection or a state, with all fields. Raises anything."""
