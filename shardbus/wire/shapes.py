"""Declared types: which types cannot be declared, and the checks of a value before it is sent.

The receiver decodes by the declared types, and refuses a value that does not fit. That is enough
for texts, numbers and the like. It is not for values that look the same on the wire: there a list,
a tuple and a set are one array, and a dict, a dataclass and its subclass one map, and the receiver
ignores an unknown field. So each declared type gets a *shape*, once, with a check for these:

    a dataclass, a Struct, an attrs class, a model   the very class, else fields would be lost
    a list, tuple, set, dict, TypedDict              the kind of collection, then its elements
    a union                                          one of its classes
    nothing, or Any                                  `plain_values`
    a class with code of its own where it is read    it is read back and compared

A shape also says whether its values nest without a bound (`nesting`), and whether reading one runs
code of the application, which may raise anything.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import inspect as m

from shardbus.errors import ConfigError
from shardbus.tasks.interrupts import raise_signalled
from shardbus.wire.misfit import Misfit, described
from shardbus.wire.plain_values import SCALARS, check_plain, check_plain_keys
from shardbus.wire.round_trip import check_same
from shardbus.wire.values import from_wire, is_model, pack_whole

Check = Callable[[Any], None]
"""Raises Misfit for a value that would not arrive as it is."""


class Shape(msgspec.Struct, frozen=True):
    """The facts about a declared type."""

    check: Check | None
    """None: the receiver's decoder decides alone."""
    nests: bool
    """Its values may nest in themselves, or in values without a declared type."""
    runs_code: bool
    """Reading a value runs code of the application."""


UNTYPED = Shape(check_plain, nests=True, runs_code=False)
NO_CHECK = Shape(None, nests=False, runs_code=False)


def shape_of(where: str, declared: Any) -> Shape:
    """Return the shape of a declared type.

    Raises:
        ConfigError: it cannot be declared; the message has `where` and the path below it.
    """
    if declared is Any or declared is object or declared is inspect.Parameter.empty:
        return UNTYPED
    try:
        info = m.type_info(declared)
        survey = _Survey()
        survey.look(where, info)
        msgspec.msgpack.Decoder(declared, dec_hook=from_wire)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{where} cannot be a message type: {described(e)}") from None
    except RecursionError:
        raise ConfigError(
            f"{where} cannot be a message type: an alias contains itself",
            hint="give the type that contains itself a class, such as a dataclass with a field",
        ) from None
    return Shape(_Checks().of(info), survey.nests, survey.runs_code)


class _Survey:
    """Looks at every part of a declared type, and refuses the parts that cannot be declared."""

    def __init__(self) -> None:
        self.nests = self.runs_code = False
        self._visited: dict[int, Any] = {}
        self._around: set[int] = set()

    def look(self, where: str, info: Any) -> None:
        if id(info) in self._around:
            self.nests = True
        if id(info) in self._visited:
            return
        self._visited[id(info)] = info
        self._around.add(id(info))
        match info:
            case m.AnyType():
                self.nests = True
            case m.CustomType(cls=cls):
                self._look_at_custom(where, cls)
            case m.EnumType(cls=cls):
                missing: Any = cls._missing_
                self.runs_code |= missing.__func__.__module__ != "enum"
            case m.DictType(key_type=key) if not _is_hashable(key):
                raise ConfigError(f"{where} key cannot be a message type: it is not hashable")
            case m.SetType(item_type=item) | m.FrozenSetType(item_type=item) if not _is_hashable(
                item
            ):
                raise ConfigError(f"{where}[...] cannot be a message type: it is not hashable")
            case m.StructType(cls=cls) | m.DataclassType(cls=cls):
                self.runs_code |= runs_code(class_of(cls))
                _check_class(where, class_of(cls))
            case _:
                pass
        for place, part in _parts(info):
            self.look(where + place, part)
        self._around.discard(id(info))

    def _look_at_custom(self, where: str, cls: type) -> None:
        if cls is not object and not is_model(cls):
            raise ConfigError(
                f"{where} cannot be a message type: {cls.__name__} does not travel",
                hint="use plain values, dataclasses, msgspec.Struct or pydantic models",
            )
        self.nests = True
        self.runs_code |= cls is not object


def _parts(info: Any) -> Iterable[tuple[str, Any]]:
    """Return the types within a type, each with its place."""
    match info:
        case (
            m.StructType(fields=members)
            | m.DataclassType(fields=members)
            | m.TypedDictType(fields=members)
            | m.NamedTupleType(fields=members)
        ):
            return [(f".{f.name}", f.type) for f in members]
        case (
            m.ListType(item_type=item)
            | m.VarTupleType(item_type=item)
            | m.SetType(item_type=item)
            | m.FrozenSetType(item_type=item)
        ):
            return [("[...]", item)]
        case m.TupleType(item_types=items):
            return [(f"[{i}]", item) for i, item in enumerate(items)]
        case m.DictType(key_type=key, value_type=value):
            return [(" key", key), ("[...]", value)]
        case m.UnionType(types=members):
            return [("", member) for member in members]
    return ()


def _is_hashable(info: Any) -> bool:
    match info:
        case m.ListType() | m.SetType() | m.DictType() | m.TypedDictType() | m.ByteArrayType():
            return False
        case m.StructType(cls=cls) | m.DataclassType(cls=cls) | m.CustomType(cls=cls):
            return class_of(cls).__hash__ is not None
        case m.UnionType() | m.TupleType() | m.NamedTupleType():
            return all(_is_hashable(part) for _, part in _parts(info))
    return True


def class_of(declared: Any) -> Any:
    """Return the class of the objects of a declared class: `Page` of the generic `Page[int]`."""
    return typing.get_origin(declared) or declared


def runs_code(cls: Any) -> bool:
    """True if code of the class runs when msgspec reads its fields or makes an object."""
    hooks = ("__post_init__", "__attrs_post_init__", "__attrs_pre_init__")
    validated = any(a.validator is not None for a in getattr(cls, "__attrs_attrs__", ()))
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    plain = cls.__setattr__ in (object.__setattr__, msgspec.Struct.__setattr__)
    intercepts = not plain and not frozen and not hasattr(cls, "__attrs_attrs__")
    intercepts |= cls.__getattribute__ is not object.__getattribute__ or hasattr(cls, "__getattr__")
    return validated or intercepts or any(hasattr(cls, hook) for hook in hooks)


def _check_class(where: str, cls: Any) -> None:
    """Check that the fields of a class are values that it holds itself.

    Raises:
        ConfigError: they are not.
    """

    def refuse(why: str, hint: str = "") -> ConfigError:
        return ConfigError(f"{where} cannot be a message type: {cls.__name__} {why}", hint=hint)

    if issubclass(cls, BaseException):
        # Decoding would make an exception without calling its class, which Python cannot print.
        raise refuse("is an exception", "raise it in a handler, if it is a shardbus.Rejection")
    if hasattr(cls, "__mapper__") or hasattr(cls, "_sa_class_manager"):
        raise refuse("is a row of a database", "send a dataclass with the values that are needed")
    for attribute in getattr(cls, "__attrs_attrs__", ()):
        if attribute.name.startswith("_"):
            raise refuse(
                f"has the private attribute {attribute.name}, which does not travel",
                "give it a public name, or use a dataclass",
            )
    for f in fields(cls) if is_dataclass(cls) else ():
        held = inspect.getattr_static(cls, f.name, None)
        if hasattr(type(held), "__set__") and not isinstance(held, types.MemberDescriptorType):
            raise refuse(f"does not hold its field {f.name}, which is a {type(held).__name__}")
        if type(f.default).__module__.startswith("pydantic."):
            raise refuse(
                f"has a default of pydantic's in its field {f.name}, which only models can have",
                "use dataclasses.field, or a pydantic.BaseModel",
            )


class _Checks:
    """Makes the checks of one declared type, each part of it once."""

    def __init__(self) -> None:
        self._made: dict[int, Check | None] = {}
        self._under_way: dict[int, Any] = {}

    def of(self, info: Any) -> Check | None:
        """Return the check of a type; None if the receiver decides alone."""
        key = id(info)
        if key in self._made:
            return self._made[key]
        if key in self._under_way:  # it holds itself
            return lambda value: self._made[key](value)  # type: ignore[misc]
        self._under_way[key] = info
        check = self._made[key] = self._make(info)
        return check

    def _make(self, info: Any) -> Check | None:
        match info:
            case m.AnyType():
                return check_plain
            case m.CustomType(cls=cls):
                return check_plain if cls is object else _instance(cls)
            case m.StructType(cls=cls) | m.DataclassType(cls=cls):
                return self._record(cls, info)
            case m.NamedTupleType(cls=cls):
                return _each_field(class_of(cls), self._checked_parts(info), ())
            case m.TypedDictType(cls=cls, fields=members):
                return _typed_dict(cls, {f.name: self.of(f.type) for f in members})
            case m.ListType(item_type=item) | m.VarTupleType(item_type=item):
                kinds = (list, tuple) if isinstance(info, m.ListType) else tuple
                return _sequence(kinds, self.of(item))
            case m.SetType(item_type=item) | m.FrozenSetType(item_type=item):
                return _sequence((set, frozenset), self.of(item))
            case m.TupleType(item_types=items):
                return _fixed_tuple([self.of(item) for item in items])
            case m.DictType(key_type=key, value_type=value):
                return _dict(self.of(key), self.of(value))
            case m.UnionType(types=members):
                return self._union(members)
        return None

    def _checked_parts(self, info: Any) -> list[tuple[str, Check]]:
        made = [(f.name, self.of(f.type)) for f in info.fields]
        return [(name, check) for name, check in made if check is not None]

    def _record(self, declared: Any, info: Any) -> Check:
        cls, parts = class_of(declared), self._checked_parts(info)
        looked_at = {name for name, _ in parts}
        unset = tuple(name for name in _may_be_unset(cls) if name not in looked_at)
        check = _each_field(cls, parts, unset)
        return _read_back(declared, check) if runs_code(cls) else check

    def _union(self, members: Iterable[Any]) -> Check | None:
        by_class: dict[type, Check] = {}
        rest: list[Check] = []
        for member in members:
            check = self.of(member)
            match member:
                case m.StructType(cls=cls) | m.DataclassType(cls=cls) | m.CustomType(cls=cls):
                    by_class[class_of(cls)] = check or _nothing
                case _ if check is not None:
                    rest.append(check)
        return _one_of(by_class, rest) if by_class or rest else None


def _nothing(value: Any) -> None:
    return None


def _may_be_unset(cls: Any) -> tuple[str, ...]:
    """Return the fields of an object that may have no value, without an error at the receiver: it
    would make one."""
    if not is_dataclass(cls):
        attributes = getattr(cls, "__attrs_attrs__", ())
        return tuple(a.name for a in attributes if not a.init or hasattr(a.default, "factory"))
    params = vars(cls).get("__dataclass_params__")
    made = params is not None and params.init
    return tuple(
        f.name for f in fields(cls) if not made or not f.init or f.default_factory is not MISSING
    )


_COLLECTIONS = (dict, list, tuple, set, frozenset)


def _is_flat(value: Any) -> bool:
    """True if a value is neither an array nor a map on the wire."""
    cls: Any = type(value)
    return not (
        isinstance(value, _COLLECTIONS)
        or is_dataclass(cls)
        or isinstance(value, msgspec.Struct)
        or is_model(cls)
        or hasattr(cls, "__attrs_attrs__")
    )


def _one_of(by_class: dict[type, Check], rest: list[Check]) -> Check:
    """Return the check of a union: by the class of the value, else by one of the other members."""

    def check(value: Any) -> None:
        kind = type(value)
        member = by_class.get(kind)
        if member is not None:
            member(value)
        elif check_plain in rest or not (kind in SCALARS or _is_flat(value)):
            misfit = Misfit(f"is a {kind.__name__}, not a {_names_of(by_class)}")
            for other in rest:
                try:
                    other(value)
                except Misfit as e:
                    misfit = e
                else:
                    return
            raise misfit

    return check


def _names_of(classes: Iterable[type]) -> str:
    return " or ".join(cls.__name__ for cls in classes)


def _instance(cls: Any) -> Check:
    generic = getattr(cls, "__pydantic_generic_metadata__", None) or {}
    origin = generic.get("origin")

    def check(value: Any) -> None:
        if type(value) is not cls and (origin is None or type(value) is not origin):
            raise _other_class(value, cls)

    return check


def _other_class(value: Any, cls: type) -> Misfit:
    lost = ", so that its own fields would be lost" if isinstance(value, cls) else ""
    return Misfit(f"is a {type(value).__name__}, not a {cls.__name__}{lost}")


def _each_field(cls: Any, parts: list[tuple[str, Check]], unset: tuple[str, ...]) -> Check:
    """Return the check for an object of this very class, with the checks of some fields, and with
    fields that may have no value."""

    def check_class(value: Any) -> None:
        if type(value) is not cls:
            raise _other_class(value, cls)

    def check(value: Any) -> None:
        if type(value) is not cls:
            raise _other_class(value, cls)
        if unset:
            _check_set(value, unset)
        for name, part in parts:
            try:
                part(getattr(value, name))
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
            except AttributeError:
                raise Misfit(f"has no value in its field {name}") from None

    check_class.only = cls  # type: ignore[attr-defined]
    return check if parts or unset else check_class


def taken_classes(check: Check | None) -> frozenset[type]:
    """Return the classes of which a check takes all objects, and which do not nest."""
    if check is check_plain:
        return SCALARS
    only = getattr(check, "only", None)
    return frozenset(() if only is None else (only,))


def _check_set(value: Any, names: tuple[str, ...]) -> None:
    try:
        attrgetter(*names)(value)
    except AttributeError:
        missing = next((name for name in names if not hasattr(value, name)), names[0])
        raise Misfit(f"has no value in its field {missing}") from None


def _read_back(cls: Any, check: Check) -> Check:
    """Return the check for a class whose own code runs when an object is read."""
    read = msgspec.msgpack.Decoder(cls, dec_hook=from_wire).decode

    def check_read_back(value: Any) -> None:
        check(value)
        try:
            check_same(value, read(pack_whole(value)))
        except Misfit:
            raise
        except BaseException as e:  # the class may raise anything
            raise_signalled(e)
            raise Misfit(f"cannot be read by {cls.__name__}: {described(e)}") from None

    return check_read_back


def _sequence(kinds: Any, item: Check | None) -> Check:
    expected = kinds if isinstance(kinds, type) else kinds[0]
    takes_all = taken_classes(item).issuperset

    def check(value: Any) -> None:
        if not isinstance(value, kinds):
            raise Misfit(f"is a {type(value).__name__}, not a {expected.__name__}")
        if item is not None and not takes_all(map(type, value)):
            for n, inner in enumerate(value):
                try:
                    item(inner)
                except Misfit as misfit:
                    raise misfit.within(f"[{n}]") from None

    return check


def _fixed_tuple(items: list[Check | None]) -> Check:
    each = [(n, item) for n, item in enumerate(items) if item is not None]

    def check(value: Any) -> None:
        if not isinstance(value, tuple):
            raise Misfit(f"is a {type(value).__name__}, not a tuple")
        for n, item in each if len(value) == len(items) else ():
            try:
                item(value[n])
            except Misfit as misfit:
                raise misfit.within(f"[{n}]") from None

    return check


def _dict(key: Check | None, value: Check | None) -> Check:
    takes_all = taken_classes(value).issuperset

    def check(mapping: Any) -> None:
        if not isinstance(mapping, dict):
            raise Misfit(f"is a {type(mapping).__name__}, not a dict")
        if key is check_plain:
            check_plain_keys(mapping)
        elif key is not None:
            for name in mapping:
                try:
                    key(name)
                except Misfit as misfit:
                    raise Misfit(f"has a key that {misfit.reason}") from None
        if value is not None and not takes_all(map(type, mapping.values())):
            for name, inner in mapping.items():
                try:
                    value(inner)
                except Misfit as misfit:
                    raise misfit.within(f".{name!s:.60}") from None

    return check


def _typed_dict(cls: type, parts: dict[str, Check | None]) -> Check:
    def check(mapping: Any) -> None:
        if not isinstance(mapping, dict):
            raise Misfit(f"is a {type(mapping).__name__}, not a dict")
        for name, inner in mapping.items():
            if name not in parts:
                raise Misfit(f"has the key {name!s:.60}, which {cls.__name__} does not have")
            part = parts[name]
            if part is not None:
                try:
                    part(inner)
                except Misfit as misfit:
                    raise misfit.within(f".{name}") from None

    return check
