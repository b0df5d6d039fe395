"""Rejections as bytes: the subclasses of `Rejection` that handlers raise.

The host sends the name of the class as `module:qualified name`, the text of the error, and the
fields of the dataclass as a map. The receiver looks for the class among the subclasses of
`Rejection` that its process has imported:

    the class of that module and qualified name ──> else the only one with that last name ──> none

The second step serves a module with two names, as `__main__` has. A class that was defined again,
as in a notebook, replaces its predecessor. The receiver reads the fields with their declared types
and calls the class. An unknown field is ignored, and one that is missing gets its default, so a
class may change as a message may.

Without a class, and where the fields do not fit, the receiver makes a plain `Rejection` with the
last name and the text. It keeps the received fields, so that a process which passes it on loses
nothing. No other class is ever called, and nothing is imported for a name that arrives.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from shardbus.error_text import TEXT_MAX, class_name, plain
from shardbus.errors import ConfigError, Rejection, SchemaError, ShardBusError
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.wire.batch import REJECTION_BYTES_MAX
from shardbus.wire.misfit import Misfit, described
from shardbus.wire.round_trip import check_same
from shardbus.wire.schema import decoder, encode_value
from shardbus.wire.shapes import shape_of

NAME_MAX = 1024
"""Characters of the name of a class that travel."""


def check_rejection(cls: type[Rejection]) -> None:
    """Check that a rejection can travel.

    Raises:
        ConfigError: it is no dataclass, the type of a field cannot be sent, or it has a `definite`
            of its own.
    """
    if not _has_fields(cls):
        raise ConfigError(f"{cls.__name__} is not a dataclass", hint="decorate it with @dataclass")
    if "definite" in _types(cls) or cls.definite is not False:
        raise ConfigError(
            f"{cls.__name__} has a `definite` of its own, and no rejection is: its handler ran",
            hint="give it another name",
        )
    _Form(cls)


def encode_rejection(error: Rejection) -> tuple[str, str, bytes]:
    """Return the name of the class, the text and the fields of a rejection.

    Raises:
        SchemaError: a field cannot be sent, or the fields are too large together.
    """
    cls, payload = type(error), b""
    try:
        if error.wire_form is not None:
            name, payload = error.wire_form
            return name, error.message, payload
        text = error.message if cls.__str__ is Rejection.__str__ else str(error)
        text = plain(text if type(text) is str else str(text), TEXT_MAX)
        name = error.type if cls is Rejection else f"{cls.__module__}:{cls.__qualname__}"
        name.encode()
        if _has_fields(cls):
            payload = _form_of(cls).write(error)
    except BaseException as e:  # code of the class may raise anything
        raise_interrupt(e)
        why = e.message if isinstance(e, ShardBusError) else described(e)
        raise SchemaError(f"rejection {class_name(cls)} cannot be sent: {why}") from None
    if len(payload) > REJECTION_BYTES_MAX or len(name) > NAME_MAX:
        raise SchemaError(
            f"rejection {class_name(cls):.100} is too large: {len(payload)} bytes of fields, at"
            f" most {REJECTION_BYTES_MAX}, and {len(name)} characters of its name, at most"
            f" {NAME_MAX}"
        )
    return name, text, payload


def decode_rejection(name: str, text: str, payload: bytes) -> Rejection:
    """Return the rejection that another process sent: of the class with that name, or a plain
    one."""
    cls = _class_named(name)
    if cls is not None:
        try:
            return _read(cls, text, payload)
        except BaseException as e:  # they do not fit, or the class's own checks raise anything
            raise_interrupt(e)
            return plain_rejection(name, text, payload)
    return plain_rejection(name, text, payload)


def plain_rejection(name: str, text: str, payload: bytes) -> Rejection:
    """Return a rejection without its class, which can be passed on."""
    error = Rejection(text, type=_last(name))
    error.wire_form = (name, payload)
    return error


def _last(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]


def _subclasses(cls: type[Rejection]) -> Iterator[type[Rejection]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)


def _class_named(name: str) -> type[Rejection] | None:
    last = _last(name)
    alike = {f"{c.__module__}:{c.__qualname__}": c for c in _subclasses(Rejection)}
    if name in alike:
        return alike[name]
    classes = [cls for cls in alike.values() if cls.__name__ == last]
    return classes[0] if len(classes) == 1 else None


def _has_fields(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


def _types(cls: type[Rejection]) -> dict[str, Any]:
    """Return the types of the fields.

    Raises:
        ConfigError: an annotation is not known.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as e:
        raise ConfigError(f"rejection {cls.__name__}: an annotation is not known: {e}") from None
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _read(cls: type[Rejection], text: str, payload: bytes) -> Rejection:
    """Return the rejection of a class. Raises anything if the fields do not fit."""
    if _has_fields(cls):
        return _form_of(cls).read(cls, payload)
    if cls.__init__ is Rejection.__init__:
        return cls(text)
    raise ConfigError(f"{cls.__name__} is not a dataclass")


class _Form:
    """How the fields of one class travel. It does not hold the class, which may be forgotten."""

    def __init__(self, cls: type[Rejection]) -> None:
        where = f"rejection {cls.__name__}"
        types, rows = _types(cls), list[Any]()
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if not field.init:
                continue
            kind: Any = Any if types[field.name] is object else types[field.name]
            if field.default_factory is not dataclasses.MISSING:
                default: Any = msgspec.field(default_factory=field.default_factory)
                rows.append((field.name, kind, default))
            elif field.default is not dataclasses.MISSING:
                rows.append((field.name, kind, msgspec.field(default=field.default)))
            else:
                rows.append((field.name, kind))
        shapes = {name: shape_of(f"{where}.{name}", kind) for name, kind, *_ in rows}
        self._checks = [(name, s.check) for name, s in shapes.items() if s.check is not None]
        self._names = list(shapes)
        self._decode = decoder(msgspec.defstruct("Fields", rows, kw_only=True))

    def write(self, error: Rejection) -> bytes:
        """Return the fields. They are read again and compared: a field that `__init__` does not
        take, or that it changes, would arrive as something else. Raises anything."""
        for name, check in self._checks:
            try:
                check(getattr(error, name))
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
        payload = encode_value({name: getattr(error, name) for name in self._names})
        check_same(error, self.read(type(error), payload))
        return payload

    def read(self, cls: Callable[..., Rejection], payload: bytes) -> Rejection:
        """Return a rejection of the class. Raises anything."""
        values = self._decode(payload)
        return cls(**{name: getattr(values, name) for name in self._names})


_forms: WeakKeyDictionary[type[Rejection], _Form] = WeakKeyDictionary()


def _form_of(cls: type[Rejection]) -> _Form:
    form = _forms.get(cls)
    if form is None:
        form = _forms[cls] = _Form(cls)
    return form
