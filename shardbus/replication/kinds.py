"""The kinds of replicated values, as an application reads and changes them.

    kind       reading                    changes            of two concurrent changes
    Register   its latest value           set                both stay; the later one is shown first
    Counter    a number                   add                both count
    PNCounter  a number                   add, subtract      both count
    GrowSet    a frozenset                add                both stay
    Set        a frozenset                add, remove        an addition wins over a removal
    Map        a dict by text             set, remove        the later value of a field; a set wins
    MultiMap   a dict of frozensets       add, remove        as Set, for each field
    Flag       True or False              enable, disable    enable wins

An object of a kind is made of a value that was read, and collects changes: its methods return the
object itself, and its `value` has the changes already. `change` returns them as one write
(`versions.DataChange`), which the replica that takes it stamps. A removal drops the dots that were
read, so an addition that the reader has not seen stays. An addition of an element that is there
already drops its dots and adds a new one: it must win over a removal that saw only the former.

Contents are plain values: None, bool, int of 64 bits, float, text, bytes, aware datetime, list and
dict. Elements of sets are scalars, or tuples of elements.

Source: docs/how-to/replicated-values.md; Shapiro et al., "Conflict-free replicated data types";
B.133.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from shardbus.errors import ConfigError
from shardbus.ids import check_text
from shardbus.replication import versions

PENDING = -1
"""The disk of a dot that no replica has stamped yet."""
NESTING_MAX = 128
"""Lists and dicts in each other, as in messages."""
SCALARS = (type(None), bool, int, float, str, bytes)
Element = None | bool | int | float | str | bytes | tuple[Any, ...]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class Versioned(NamedTuple):
    """A value that was read, with its version."""

    hash: int
    """A number for the version: equal if the versions are."""
    version: versions.Clock
    """The vector clock: pairs of a disk and its counter."""
    data: Any
    """The value, as its kind reads it."""
    kind: str = "register"
    conflicts: tuple[Any, ...] = ()
    """Register: the values that were put at the same time, the latest first."""

    def contains(self, other: Versioned) -> bool:
        """True if this version has all changes of the other one."""
        return versions.covers(self.version, other.version)


def encoded(value: object) -> bytes:
    """Return the bytes of a plain value.

    Raises:
        ConfigError: it would not be read as it is.
    """
    try:
        data = _pack(value)
        if _same(_unpack(data), value, NESTING_MAX):
            return data
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"a replicated value cannot be stored: {error}") from None
    raise ConfigError(
        f"a replicated value has a {type(value).__name__} that would not be read as it is",
        hint="use None, bool, int, float, str, bytes, lists and dicts, at most 128 in each other",
    )


def _same(read: object, value: object, room: int) -> bool:
    """True if the value that is read is of the same types and contents, and at most `room` levels
    deep."""
    if type(read) is not type(value) or room < 0:
        return False
    left = room - 1
    match read, value:
        case list(), list():
            pairs = zip(read, value, strict=True)
            return all(_same(part, each, left) for part, each in pairs)
        case dict(), dict():
            fields = zip(read.items(), value.items(), strict=True)
            return all(
                _same(name, key, left) and _same(part, each, left)
                for (name, part), (key, each) in fields
            )
        case datetime(), datetime():
            return read == value.astimezone(UTC)  # of two zones, == is False in a repeated hour
        case _:
            return read == value or (read != read and value != value)  # NaN differs from itself


def encoded_element(element: object) -> bytes:
    """Return the bytes of an element of a set.

    Raises:
        ConfigError: it is none.
    """
    if not _is_element(element):
        raise ConfigError(
            f"a {type(element).__name__} is no element of a replicated set",
            hint="use None, bool, int, float, str, bytes, or a tuple of such elements",
        )
    try:
        return _pack(element)
    except (OverflowError, ValueError, TypeError) as error:
        raise ConfigError(f"an element of a replicated set cannot be stored: {error}") from None


def _is_element(element: object, room: int = NESTING_MAX) -> bool:
    if isinstance(element, tuple):
        return room > 0 and all(_is_element(each, room - 1) for each in element)
    return type(element) in SCALARS


def _element(data: bytes) -> Any:
    return _tupled(_unpack(data))


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(
            f"a {type(name).__name__} is no name: a field of a replicated map has a text"
        )
    return check_text("the name of a field", name)


def _amount(amount: object) -> int:
    if type(amount) is not int or not 0 <= amount <= versions.AMOUNT_MAX:
        raise ConfigError(
            f"a counter takes a whole number from 0 to {versions.AMOUNT_MAX},"
            f" no {type(amount).__name__}"
        )
    return amount


class Dots:
    """The dots of one kind that were read, and the changes since."""

    def __init__(self, kind: str, value: versions.DataValue) -> None:
        self._kind, self._read = kind, value
        self.dots = [dot for dot in value.dots if dot.kind == kind]

    def add(self, name: str = "", data: bytes = b"", amount: int = 0, minus: int = 0) -> None:
        """Add a dot."""
        self.dots.append(versions.Dot(PENDING, 0, self._kind, name, data, amount, minus))

    def drop(self, goes: Callable[[versions.Dot], bool]) -> None:
        """Drop dots."""
        self.dots = [dot for dot in self.dots if not goes(dot)]

    def renew(self, name: str, data: bytes) -> None:
        """Drop the dots of an element, and add it."""
        self.drop(lambda dot: (dot.name, dot.data) == (name, data))
        self.add(name, data)

    @property
    def pending(self) -> list[versions.Dot]:
        """The additions."""
        return [dot for dot in self.dots if dot.disk == PENDING]

    def change(self) -> versions.DataChange | None:
        """Return the changes as one write, None if there are none."""
        pending = self.pending
        kept = {dot.stamp for dot in self.dots if dot.disk != PENDING}
        drops = tuple(
            dot.stamp for dot in self._read.dots if dot.kind == self._kind and dot.stamp not in kept
        )
        if not pending and not drops:
            return None
        adds = tuple(
            versions.Addition(dot.name, dot.data, dot.amount, dot.minus) for dot in pending
        )
        return versions.DataChange(self._kind, adds, drops, self._read if drops else None)


class LWWRegister:
    """One value; the latest by a hybrid clock is shown."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.REGISTER, value)

    @property
    def value(self) -> Any:
        """The latest value, None if there is none."""
        contents = _latest_first(self.changes.dots)
        return contents[0] if contents else None

    @property
    def conflicts(self) -> tuple[Any, ...]:
        """The other values that were put at the same time, the latest first."""
        return tuple(_latest_first(self.changes.dots)[1:])

    def set(self, value: object) -> LWWRegister:
        """Put a value in place of all that were read."""
        data = encoded(value)
        self.changes.drop(lambda dot: True)
        self.changes.add(data=data)
        return self


class GrowCounter:
    """A number that only grows."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.COUNTER, value)

    @property
    def value(self) -> int:
        return sum(dot.amount for dot in self.changes.dots)

    def add(self, amount: int = 1) -> GrowCounter:
        """Add a whole number, 0 or more."""
        self.changes.add(amount=_amount(amount))
        return self


class PNCounter:
    """A number that grows and falls."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.PN_COUNTER, value)

    @property
    def value(self) -> int:
        return sum(dot.amount - dot.minus for dot in self.changes.dots)

    def add(self, amount: int = 1) -> PNCounter:
        """Add a whole number, 0 or more."""
        self.changes.add(amount=_amount(amount))
        return self

    def subtract(self, amount: int = 1) -> PNCounter:
        """Subtract a whole number, 0 or more."""
        self.changes.add(minus=_amount(amount))
        return self


class GrowSet:
    """A set of which nothing is removed."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.GROW_SET, value)

    @property
    def value(self) -> frozenset[Any]:
        return frozenset(_element(dot.data) for dot in self.changes.dots)

    def add(self, *elements: Element) -> GrowSet:
        """Add elements; those that are there change nothing."""
        for data in map(encoded_element, elements):
            if all(dot.data != data for dot in self.changes.dots):
                self.changes.add(data=data)
        return self


class Set:
    """A set. An element that is added and removed at the same time stays."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.SET, value)

    @property
    def value(self) -> frozenset[Any]:
        return frozenset(_element(dot.data) for dot in self.changes.dots)

    def add(self, *elements: Element) -> Set:
        """Add elements."""
        for data in map(encoded_element, elements):
            self.changes.renew("", data)
        return self

    def remove(self, *elements: Element) -> Set:
        """Remove elements as they were read; an element that is not there changes nothing."""
        gone = set(map(encoded_element, elements))
        self.changes.drop(lambda dot: dot.data in gone)
        return self


class Map:
    """Values by name; the latest value of a name is shown."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.MAP, value)

    @property
    def value(self) -> dict[str, Any]:
        fields: dict[str, list[versions.Dot]] = {}
        for dot in self.changes.dots:
            fields.setdefault(dot.name, []).append(dot)
        return {name: _latest_first(fields[name])[0] for name in sorted(fields)}

    def set(self, name: str, value: object) -> Map:
        """Put the value of a name."""
        name, data = _name(name), encoded(value)
        self.remove(name)
        self.changes.add(name, data)
        return self

    def remove(self, name: str) -> Map:
        """Remove a name, with the value that was read."""
        gone = _name(name)
        self.changes.drop(lambda dot: dot.name == gone)
        return self


class MultiMap:
    """A set by name."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.MULTI_MAP, value)

    @property
    def value(self) -> dict[str, frozenset[Any]]:
        fields: dict[str, set[Any]] = {}
        for dot in self.changes.dots:
            fields.setdefault(dot.name, set()).add(_element(dot.data))
        return {name: frozenset(fields[name]) for name in sorted(fields)}

    def add(self, name: str, *elements: Element) -> MultiMap:
        """Add elements to the set of a name."""
        name = _name(name)
        for data in map(encoded_element, elements):
            self.changes.renew(name, data)
        return self

    def remove(self, name: str, *elements: Element) -> MultiMap:
        """Remove elements from the set of a name; without elements, the name."""
        name, gone = _name(name), set(map(encoded_element, elements))
        self.changes.drop(lambda dot: dot.name == name and (not gone or dot.data in gone))
        return self


class EnableWinsFlag:
    """True once it is enabled, until it is disabled."""

    def __init__(self, value: versions.DataValue = versions.NOTHING) -> None:
        self.changes = Dots(versions.FLAG, value)

    @property
    def value(self) -> bool:
        return bool(self.changes.dots)

    def enable(self) -> EnableWinsFlag:
        self.changes.renew("", b"")
        return self

    def disable(self) -> EnableWinsFlag:
        self.changes.drop(lambda dot: True)
        return self


Register = LWWRegister
Counter = GrowCounter
Flag = EnableWinsFlag
"""As applications name them."""

AnyKind = Register | Counter | PNCounter | GrowSet | Set | Map | MultiMap | Flag
KindT = TypeVar("KindT", Register, Counter, PNCounter, GrowSet, Set, Map, MultiMap, Flag)

KINDS: Mapping[str, type[AnyKind]] = {
    versions.REGISTER: Register,
    versions.COUNTER: Counter,
    versions.PN_COUNTER: PNCounter,
    versions.GROW_SET: GrowSet,
    versions.SET: Set,
    versions.MAP: Map,
    versions.MULTI_MAP: MultiMap,
    versions.FLAG: Flag,
}


def rebased(view: KindT, value: versions.DataValue, sent: Sequence[versions.Dot] = ()) -> KindT:
    """Return an object of the same kind that reads `value`, with the changes of `view`. `sent`: the
    additions of `view` that `value` has already, or that are to be given up."""
    former, fresh = view.changes, type(view)(value)
    change, there = former.change(), {id(dot) for dot in former.dots}
    dropped = set(change.drops) if change is not None else set[versions.Stamp]()
    gone = {(dot.name, dot.data) for dot in sent if id(dot) not in there}
    left = {id(dot) for dot in sent}
    fresh.changes.drop(lambda dot: dot.stamp in dropped or (dot.name, dot.data) in gone)
    fresh.changes.dots += [dot for dot in former.pending if id(dot) not in left]
    return fresh


def versioned(value: versions.DataValue, kind: str = "") -> Versioned | None:
    """Return a value as applications get it; None if it has no dots. `kind`: how to read it, if it
    was written as that; by default as the first kind that it has. Values of an unknown kind, of a
    later release, are read as None."""
    kinds = versions.kinds_of(value)
    if not kinds and not kind:
        return None
    kind = kind or kinds[0]
    view = KINDS[kind](value) if kind in KINDS else None
    return Versioned(
        versions.number_of(value.clock),
        value.clock,
        None if view is None else view.value,
        versions.KIND_NAMES.get(kind, kind),
        view.conflicts if isinstance(view, Register) else (),
    )


def _latest_first(dots: Iterable[versions.Dot]) -> list[Any]:
    """Return the different contents of dots, the latest first. A dot without a stamp is last of
    all written, so latest."""
    ranked = sorted(dots, key=lambda dot: (dot.disk == PENDING, dot.amount, dot.stamp))
    contents = dict.fromkeys(dot.data for dot in reversed(ranked))
    return [_unpack(data) for data in contents]
