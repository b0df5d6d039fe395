"""The stored state of one entity type, through the versions of its class.

    version 1          the value in MessagePack
    version n above 1  the byte 0xC1, which begins no value; n in two bytes; the value
    compressed         the same with 65535 as n; 1, which is zlib; one of the above, compressed
    with a record      the same with 65535 as n; 2; the record's length in four bytes; the record;
                       one of the above, or nothing if the entity has no state

A record is shardbus's own data, kept with the state and written by the same save: the deliveries
that are in the state (`deliveries.record`). It is opaque here.

A class declares its version (`state_version`). A value of an older version goes, as plain dicts and
lists, through one migration for each version between (`bus.migrate`), and is then decoded as the
class of today. It is written in the version of the class with its next save, not before.

A field that is added with a default, or removed, needs no version: the decoder fills in missing
fields and ignores unknown ones.

A reader without compression, or without records, takes such a state for one of a newer version, and
refuses it. An inflated value has a bound, for a few bytes may stand for gigabytes.

A state that cannot be read is StateUnreadable, with the entity, the version and the field: it has a
newer version, or needs a migration that is not declared or raises, or does not fit the class.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardbus.error_text import type_name
from shardbus.errors import ConfigError, RemoteProtocolError, SchemaError, StateUnreadable
from shardbus.inflate import inflate
from shardbus.tasks.interrupts import raise_interrupt, raise_signalled
from shardbus.wire.misfit import Misfit, described, text_of
from shardbus.wire.places import located
from shardbus.wire.proofs import Proof, proof_of
from shardbus.wire.round_trip import check_same
from shardbus.wire.schema import Decode, decode_value, encode_value, packer
from shardbus.wire.shapes import shape_of
from shardbus.wire.values import Pack, pack_whole

VERSIONED = 0xC1
VERSION_MAX = 65_534
COMPRESSED = VERSION_MAX + 1
"""Stands in the place of a version."""
ZLIB = 1
"""The one way of compressing, after which others may come."""
WITH_RECORD = 2
"""Stands in the place of a way of compressing."""
NO_FIELDS = encode_value({})
"""The value of a state whose fields have their defaults."""
COMPRESSED_MIN = 1024
"""Bytes of a state that are worth the time."""
INFLATED_MAX = 64 * 2**20
"""Bytes of a state, at most, before it is compressed and after it is inflated."""
NUMBERED = 3
"""Behind the head of a compressed state: a number of 8 bytes, and the stored form of a state. It is
the snapshot of an event-sourced entity, with the number of its last event."""
NO_STATE = "none"
"""The revision of an entity without a stored state."""
Migration = Callable[[Any], Any]
"""Turns the plain value of one version into the plain value of the next."""

_HEAD = struct.Struct(">BH")
_COMPRESSED_HEAD = _HEAD.pack(VERSIONED, COMPRESSED) + bytes((ZLIB,))
_RECORD_HEAD = _HEAD.pack(VERSIONED, COMPRESSED) + bytes((WITH_RECORD,))
_LENGTH = struct.Struct(">I")
_RECORD_AT = len(_RECORD_HEAD) + _LENGTH.size
_NUMBERED_HEAD = _HEAD.pack(VERSIONED, COMPRESSED) + bytes((NUMBERED,))
_NUMBER = struct.Struct(">Q")
_FIELD = re.compile(r"at `\$\.?([^`]*)`")


class NoStates:
    """Stands in the place of a codec where a class declares no state: a save raises an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def write(self) -> Any:  # so that it comes before an error about `self.state`
        raise ConfigError(
            f"{self._name} declares no state, so there is nothing to save",
            hint="write `state: SomeClass` in the class; a default for each field of SomeClass",
        )


@dataclass(slots=True)
class StateCodec:
    """Writes and reads the stored state of one entity type. `cls()` is the state of an entity that
    has none."""

    entity_type: str
    cls: type
    decode: Decode
    version: int = 1
    migrations: dict[int, Migration] = field(default_factory=dict)
    """By the version that they take."""
    pack: Pack = field(init=False, repr=False)
    """Encodes a state, or raises anything."""
    proof: Proof = field(init=False, repr=False)
    """True for a state that need not be read back."""

    def __post_init__(self) -> None:
        self.proof = proof_of(self.cls) or (lambda state: False)
        self.pack = packer(shape_of(f"the state of {self.entity_type}", self.cls), pack_whole)

    def write(self, state: object) -> bytes:
        """Return the stored form of a state that the class reads again as it is: it is read, and
        compared.

        Raises:
            SchemaError: the class would read another state or none; the text has the field's path.
        """
        try:
            if self.proof(state):
                data = pack_whole(state)
            else:
                data = self.pack(state)
                check_same(state, self.decode(data))
        except BaseException as error:  # a class of the application's may raise anything
            raise_signalled(error)
            raise self._unstorable(located(error, state)) from None
        return data if self.version == 1 else joined(self.version, data)

    def _unstorable(self, error: BaseException) -> SchemaError:
        place, why = f"the state of {self.entity_type}", described(error)
        if isinstance(error, Misfit):
            place, why = place + error.path, error.reason
        elif matched := _FIELD.search(why):
            place = f"{place}.{matched.group(1)}"
        return SchemaError(f"cannot store {place}: {why}")

    def of_plain(self, value: object) -> bytes:
        """Return the stored form of a plain value that a person has written for this class.

        Raises:
            ConfigError: it does not fit the class, or has a field that the class does not have; the
                text has the field's path.
        """
        try:
            state = self.decode(encode_value(value))
            data = encode_value(state)
        except BaseException as error:
            raise_interrupt(error)
            raise ConfigError(f"the state of {self.entity_type}: {described(error)}") from None
        if unknown := _unknown(value, decode_value(data), "$"):
            raise ConfigError(f"the state of {self.entity_type} has no field {unknown}")
        return joined(self.version, data)

    def read(self, entity_id: str, data: bytes) -> Any:
        """Return the state that these bytes hold.

        Raises:
            StateUnreadable: they hold none that this class can read.
        """
        version = 0
        try:
            alone = split_record(data)[1]
            if data and not alone:
                return self.cls()
            version, data = _split(alone)
            if version == self.version:
                return self.decode(data)
            return self.decode(encode_value(self._migrated(version, decode_value(data))))
        except BaseException as error:
            raise_interrupt(error)
            raise self.unreadable(entity_id, version, error) from error

    def _migrated(self, version: int, value: Any) -> Any:
        if version > self.version:
            raise LookupError(f"this class reads versions up to {self.version}")
        for older in range(version, self.version):
            if older not in self.migrations:
                raise LookupError(f"there is no migration from version {older}")
            value = self.migrations[older](value)
        return value

    def unreadable(self, entity_id: str, version: int, error: BaseException) -> StateUnreadable:
        """Return the error for a stored state that this error keeps from being read."""
        matched = _FIELD.search(text_of(error))
        named = type(error) is LookupError
        why = text_of(error) if named else f"{type_name(error)}: {text_of(error)}"
        return StateUnreadable(
            f"the stored state of {self.entity_type} {entity_id!r:.100}, version {version}: {why}",
            entity_type=self.entity_type,
            entity_id=entity_id,
            version=version,
            field=matched.group(1) if matched else "",
        )


def _unknown(stored: object, read: object, path: str) -> str:
    """Return the path of the first field that the class has ignored; empty if there is none."""
    if isinstance(stored, dict) and isinstance(read, dict):
        for key, value in stored.items():
            if key not in read:
                return f"{path}.{key}"
            if unknown := _unknown(value, read[key], f"{path}.{key}"):
                return unknown
    elif isinstance(stored, list | tuple) and isinstance(read, list | tuple):
        for n, (value, other) in enumerate(zip(stored, read, strict=False)):
            if unknown := _unknown(value, other, f"{path}[{n}]"):
                return unknown
    return ""


def revision_of(data: bytes | None) -> str:
    """Return a short text for a stored state: another state has another one. An operator who
    changes a state names the revision that was read, so that no save in between is undone."""
    return NO_STATE if data is None else hashlib.sha256(data).hexdigest()[:32]


def with_record(record: bytes, data: bytes | None) -> bytes:
    """Return the stored form of a state with this record. `data`: the state alone, None without
    one."""
    return b"".join((_RECORD_HEAD, _LENGTH.pack(len(record)), record, data or b""))


def split_record(data: bytes) -> tuple[bytes, bytes]:
    """Return the record of a stored state, empty without one, and the state alone, empty if there
    is only a record.

    Raises:
        ValueError: the record is cut off.
    """
    if not data.startswith(_RECORD_HEAD):
        return b"", data
    if len(data) < _RECORD_AT:
        raise ValueError("the length of its record is cut off")
    end = _RECORD_AT + _LENGTH.unpack_from(data, len(_RECORD_HEAD))[0]
    if len(data) < end:
        raise ValueError("its record is cut off")
    return data[_RECORD_AT:end], data[end:]


def split(data: bytes) -> tuple[int, bytes]:
    """Return the version of a stored state and its value, without its record; a value without
    fields if there is only a record.

    Raises:
        ValueError: the version or the record is cut off, or the state is compressed in a way that
            is not known, or inflates to more than `INFLATED_MAX` bytes.
    """
    alone = split_record(data)[1]
    return (1, NO_FIELDS) if data and not alone else _split(alone)


def _split(data: bytes) -> tuple[int, bytes]:
    """Split a stored state without a record."""
    version, value = _head(_without_number(data))
    if version == COMPRESSED:
        if value[:1] != bytes((ZLIB,)):
            raise ValueError(f"it is compressed in way {value[:1].hex() or 'none'}, not in way 01")
        try:
            inflated = inflate(value[1:], INFLATED_MAX, "compressed state")
            version, value = _head(_without_number(inflated))
        except RemoteProtocolError as error:
            raise ValueError(error.message) from None
        if version == COMPRESSED:
            raise ValueError("it is compressed twice")
    return version, value


def numbered(number: int, data: bytes) -> bytes:
    """Return the stored form of a state that has a number: of its last event."""
    return _NUMBERED_HEAD + _NUMBER.pack(number) + data


def split_numbered(data: bytes) -> tuple[int, bytes]:
    """Return the number and the stored form of a state; 0 if it has no number.

    Raises:
        ValueError: it is cut off, or inflates to more than `INFLATED_MAX` bytes.
    """
    if is_compressed(data):
        try:
            inner = inflate(data[len(_COMPRESSED_HEAD) :], INFLATED_MAX, "compressed state")
        except RemoteProtocolError as error:
            raise ValueError(error.message) from None
        if inner.startswith(_NUMBERED_HEAD):
            data = inner
    if not data.startswith(_NUMBERED_HEAD):
        return 0, data
    start = len(_NUMBERED_HEAD)
    if len(data) < start + _NUMBER.size:
        raise ValueError("its number is cut off")
    return _NUMBER.unpack_from(data, start)[0], data[start + _NUMBER.size :]


def _without_number(data: bytes) -> bytes:
    return split_numbered(data)[1] if data.startswith(_NUMBERED_HEAD) else data


def _head(data: bytes) -> tuple[int, bytes]:
    if data[:1] != bytes((VERSIONED,)):
        return 1, data
    if len(data) < _HEAD.size:
        raise ValueError("the version is cut off")
    return _HEAD.unpack_from(data)[1], data[_HEAD.size :]


def joined(version: int, value: bytes) -> bytes:
    """Return the stored form of a value of this version."""
    return value if version == 1 else _HEAD.pack(VERSIONED, version) + value


def is_compressed(data: bytes) -> bool:
    """True if the stored form is compressed."""
    return data.startswith(_COMPRESSED_HEAD)


def compressed(data: bytes) -> bytes:
    """Return the stored form of a state, compressed if it is long enough, and shorter then."""
    if not COMPRESSED_MIN <= len(data) <= INFLATED_MAX:
        return data
    short = _COMPRESSED_HEAD + zlib.compress(data, 1)
    return short if len(short) < len(data) else data
