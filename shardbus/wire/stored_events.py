"""The stored form of events: the contents of an entry in an entity's journal.

    93 <name> <version> <event>             a msgpack array: text, number, the fields of the event
    94 <name> <version> <event> <delivery>  the same, with the delivery whose handler persisted it

`name` is the event class's, unless its fold names another. A fold (`@event`) takes events of one
class at one version. An older version is read as a plain value, goes through the upcasters from
each version to the next, and is decoded then. A field that is added with a default, or removed,
needs no version.

A fold gets the event that is read from the stored form, also right after it was persisted: so it
makes the same state at each replay, and shares no list with the handler. An exception of a fold is
a failure of any class, also a Rejection: the event is stored, so there is nothing to refuse.

An event whose name no fold has, or that does not fit, is StateUnreadable: a state without it would
be wrong.

The last entry of an append has the number of the delivery that is done with it
(`deliveries.record.DoneDelivery`), as bytes that are opaque here. A replay hands them on in the
order of the entries. Projections pass them over.

Source: docs/how-to/event-sourcing.md; S2.74.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shardbus.error_text import callable_name, is_a, text_of, type_name
from shardbus.errors import ConfigError, Rejection, SchemaError, StateUnreadable, Unhandled
from shardbus.tasks.interrupts import raise_interrupt, raise_signalled
from shardbus.wire.misfit import described
from shardbus.wire.proofs import Proof, proof_of
from shardbus.wire.round_trip import check_same
from shardbus.wire.schema import Decode, decode_value, decoder, encode_value, packer
from shardbus.wire.shapes import shape_of
from shardbus.wire.unchecked_bounds import check_bounds
from shardbus.wire.values import Pack, pack_whole

EVENT_VERSION_MAX = 65_535
Upcaster = Callable[[Any], Any]
"""Turns the plain value of one version of an event into the plain value of the next."""
NUMBERED_HEAD = b"\x94"
"""The first byte of an entry with the number of a delivery."""
_HEAD = msgspec.msgpack.Decoder(tuple[str, int, msgspec.Raw])
_NUMBERED = msgspec.msgpack.Decoder(tuple[str, int, msgspec.Raw, bytes])


class StoredEvent(NamedTuple):
    """An entry, as an operator reads it. `value` is plain: dicts, lists, texts and numbers.
    `delivery`: the stored form of the delivery that is done with it, empty for none."""

    name: str
    version: int
    value: Any
    delivery: bytes = b""


@dataclass(slots=True)
class EventForm:
    """How the events of one class are stored, and folded into the state."""

    name: str
    cls: type
    version: int
    fold: Callable[[Any, Any], Any]
    """The method of the entity's class: called with the entity and the event."""
    decode: Decode = field(init=False, repr=False)
    pack: Pack = field(init=False, repr=False)
    proof: Proof = field(init=False, repr=False)
    head: bytes = field(init=False, repr=False)
    """The part before the fields in the stored form."""

    def __post_init__(self) -> None:
        self.decode = decoder(self.cls)
        self.proof = proof_of(self.cls) or (lambda event: False)
        self.pack = packer(shape_of(f"the event {self.name}", self.cls), pack_whole)
        check_bounds(f"the event {self.name}", self.cls)
        encode = msgspec.msgpack.encode
        self.head = b"\x93" + encode(self.name) + encode(self.version)

    def write(self, event: object) -> WrittenEvent:
        """Write an event. Raises SchemaError if its class would read another one."""
        try:
            if self.proof(event):
                data = pack_whole(event)
                read = self.decode(data)
            else:
                data = self.pack(event)
                read = self.decode(data)
                check_same(event, read)
        except BaseException as error:  # a class of the application's may raise anything
            raise_signalled(error)
            raise SchemaError(f"cannot store the event {self.name}: {described(error)}") from None
        return WrittenEvent(self.head + data, self, read)


class WrittenEvent(NamedTuple):
    """An event that is about to be stored."""

    entry: bytes
    """The stored form."""
    form: EventForm
    read: object
    """The event, as it is read from the stored form."""


class EventCodec:
    """Writes, reads and folds the events of one entity type."""

    def __init__(self, entity_type: str, forms: Iterable[EventForm]) -> None:
        self.entity_type = entity_type
        self._by_class: dict[type, EventForm] = {}
        self._by_name: dict[str, EventForm] = {}
        self.upcasters: dict[tuple[str, int], Upcaster] = {}
        """By the name and the version that they take."""
        self.state_class: type = object
        """The class of the state."""
        for form in forms:
            for earlier in (self._by_class.get(form.cls), self._by_name.get(form.name)):
                if earlier is not None:
                    raise ConfigError(f"{entity_type!r} has two folds of the event {form.name!r}")
            self._by_class[form.cls] = self._by_name[form.name] = form

    @property
    def classes(self) -> Container[type]:
        """Return the classes of the events."""
        return self._by_class

    def has(self, cls: type) -> bool:
        """True if the type has a fold of events of this class."""
        return cls in self._by_class

    def form(self, event: object) -> EventForm:
        """Return the form of an event, given as its class or by its name.

        Raises:
            ConfigError: the type has no fold of it.
        """
        name = event if isinstance(event, str) else getattr(event, "__name__", repr(event))
        form = self._by_name.get(event) if isinstance(event, str) else None
        form = form or (self._by_class.get(event) if isinstance(event, type) else None)
        if form is None:
            raise ConfigError(
                f"{self.entity_type!r} has no fold of the event {name!r:.100}",
                hint="write a method with @event, whose parameter is annotated with its class",
            )
        return form

    def write(self, event: object) -> WrittenEvent:
        """Write an event.

        Raises:
            ConfigError: the type has no fold of it. SchemaError: its class would read another one.
        """
        form = self._by_class.get(type(event)) or self.form(type(event))
        return form.write(event)

    def apply(self, entity: Any, written: Iterable[WrittenEvent]) -> None:
        """Fold events, which are stored now, into the state of an entity. Raises the folds' own
        errors, but none that would be an answer to a message."""
        try:
            for event in written:
                self._fold(event.form, entity, event.read)
        except BaseException as error:
            if is_a(error, Rejection, Unhandled):
                raise RuntimeError(f"a fold raised {described(error)}") from error
            raise

    def _fold(self, form: EventForm, entity: Any, event: object) -> None:
        """Fold an event into the state of an entity.

        Raises:
            TypeError: the fold returned something else than a state. The fold's own errors.
        """
        state = form.fold(entity, event)
        if state is None:
            return
        if not isinstance(state, self.state_class) and not _is_number(state, self.state_class):
            fold, made, cls = callable_name(form.fold), type_name(state), self.state_class.__name__
            raise TypeError(f"{fold} returned {made}; a fold returns a {cls} as the state, or None")
        entity.state = state

    def replay(
        self, entity: Any, entity_id: str, first: int, entries: Iterable[bytes]
    ) -> tuple[int, list[bytes]]:
        """Fold stored events, the first of which has this number, into the state of an entity.
        Returns the number of the last one, and the deliveries that are done with them.

        Raises:
            StateUnreadable: an event cannot be read, or its fold raises.
        """
        number, by_name, head, fold = first - 1, self._by_name, _HEAD.decode, self._fold
        deliveries: list[bytes] = []
        name, version = "", 0
        try:
            for entry in entries:
                number += 1
                if entry.startswith(NUMBERED_HEAD):
                    name, version, raw, delivery = _NUMBERED.decode(entry)
                    deliveries.append(delivery)
                else:
                    name, version, raw = head(entry)
                form = by_name.get(name)
                if form is not None and form.version == version:
                    event = form.decode(bytes(raw))
                else:
                    event, form = self._upcast(name, version, bytes(raw))
                fold(form, entity, event)
        except BaseException as error:
            raise_interrupt(error)
            raise self._unreadable(entity_id, number, name, version, error) from error
        return number, deliveries

    def read(self, entity_id: str, number: int, entry: bytes, classes: Container[type]) -> Any:
        """Return a stored event if it is of one of these classes, else None, without decoding it.

        Raises:
            StateUnreadable: it cannot be read, or no fold takes it.
        """
        name, version = "", 0
        try:
            name, version, raw, _ = _parts(entry)
            form = self._by_name.get(name)
            if form is not None and form.cls not in classes:
                return None
            if form is not None and form.version == version:
                return form.decode(bytes(raw))
            return self._upcast(name, version, bytes(raw))[0]
        except BaseException as error:
            raise_interrupt(error)
            raise self._unreadable(entity_id, number, name, version, error) from error

    def _unreadable(
        self, entity_id: str, number: int, name: str, version: int, error: BaseException
    ) -> StateUnreadable:
        plain = type(error) is LookupError
        why = text_of(error) if plain else f"{type_name(error)}: {text_of(error)}"
        return StateUnreadable(
            f"event {number} of {self.entity_type} {entity_id!r:.100}"
            f" ({name:.100}, version {version}): {why}",
            entity_type=self.entity_type,
            entity_id=entity_id,
            version=version,
            field="",
        )

    def _upcast(self, name: str, version: int, data: bytes) -> tuple[Any, EventForm]:
        form = self._by_name.get(name)
        if form is None:
            raise LookupError("no fold takes this event")
        if version > form.version:
            raise LookupError(f"this class reads versions up to {form.version}")
        value = decode_value(data)
        for older in range(version, form.version):
            if (name, older) not in self.upcasters:
                raise LookupError(f"there is no upcaster from version {older}")
            value = self.upcasters[name, older](value)
        return form.decode(encode_value(value)), form


def _is_number(state: object, cls: type) -> bool:
    """True for an int where the state is a float, as in fields."""
    return cls is float and type(state) is int


def with_delivery(entry: bytes, delivery: bytes) -> bytes:
    """Return an entry with the number of a delivery that is done with it."""
    return b"".join((NUMBERED_HEAD, entry[1:], msgspec.msgpack.encode(delivery)))


def _parts(entry: bytes) -> tuple[str, int, msgspec.Raw, bytes]:
    if entry.startswith(NUMBERED_HEAD):
        return _NUMBERED.decode(entry)
    return (*_HEAD.decode(entry), b"")


def stored_event(entry: bytes) -> StoredEvent:
    """Return an entry for an operator.

    Raises:
        ValueError: it is no event.
    """
    try:
        name, version, raw, delivery = _parts(entry)
        return StoredEvent(name, version, decode_value(bytes(raw)), delivery)
    except Exception as error:
        raise ValueError(f"it is no event: {text_of(error)}") from None
