"""Replicated values that many write: versions, and how they merge.

A value (`DataValue`) is a set of *dots* and a vector clock. A dot is one addition, stamped
`(disk, counter)` by the replica that took the write. The clock has, for each disk, the highest
counter of an event that the value contains. A write is one event or several in a row: it drops
dots, and adds dots. Eight kinds (`kinds`) are readings of the dots, and one merge serves all:

    a dot that both have                                           stays
    a dot that one has, and the other's clock does not cover       stays: the other has not seen it
    a dot that one has, and the other's clock covers               goes: the other has dropped it

So nothing that was added without the knowledge of a removal is lost: an addition wins over a
concurrent removal, and of two concurrent puts both stay. Merging is commutative, associative and
idempotent, because a value is decided by the events that its clock covers:

    the dots of all these events, without those that one of these events has dropped

Therefore equal clocks mean equal values, and a clock that covers another one is of a value that
contains the other's changes. Three rules keep that true:

- A replica takes a write into its own newest value, and one after the other. So its events of a
  key are in one order, and no clock has a gap.
- Each write raises the counter, also one that only drops.
- Counters never go back. A disk stamps above every counter that is in one of its rows; a disk that
  was set back or wiped gets another id (`disk_life`).

A write that drops dots by their stamps carries the value that it was computed of (`base`), because
the replica that takes it may not have seen these dots yet. A put or a deletion after a version
drops all that the version's clock covers, and takes that clock along.

**Counters** have one dot a disk, with the sum of what this disk has taken. To take the same
addition twice would count twice: see `quorum`.

**Time.** A dot of a register, or of a field of a map, has the time of its write, in microseconds.
It is the writer's clock, raised above the times of the dots that the write drops: a hybrid clock.
It only chooses which of several concurrent values is shown first.

**Tombstones.** A value without dots is a tombstone: it must stay as long as a disk has dots that it
dropped. Then its clock goes over to a clock of the whole bucket (`registers`).

Source: docs/how-to/replicated-values.md; Almeida, Baquero, Gonçalves, Preguiça and Fonte, "Scalable
and accurate causality tracking for eventually consistent stores" (dotted version vectors); Shapiro,
Preguiça, Baquero and Zawirski, "Conflict-free replicated data types"; Kulkarni et al., "Logical
physical clocks"; S3.84, B.133.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

Clock = tuple[tuple[int, int], ...]
"""The highest counter of each disk, in the order of the disks' ids."""
Stamp = tuple[int, int]
"""A disk and its counter."""

REGISTER, COUNTER, PN_COUNTER, GROW_SET = "r", "c", "p", "g"
SET, MAP, MULTI_MAP, FLAG = "s", "m", "u", "f"
"""The kinds, as dots have them."""
KIND_NAMES = {
    REGISTER: "register",
    COUNTER: "counter",
    PN_COUNTER: "pncounter",
    GROW_SET: "growset",
    SET: "set",
    MAP: "map",
    MULTI_MAP: "multimap",
    FLAG: "flag",
}
COUNTERS = frozenset((COUNTER, PN_COUNTER))
TIMED = frozenset((REGISTER, MAP))
AMOUNT_MAX = 2**63 - 1
DOT_BYTES = 24
"""Bytes of a dot beside its name and its data, about."""
HASH_BYTES = 8


class Dot(NamedTuple):
    """One addition, with its stamp. `name`: the field of a map. `data`: an encoded plain value.
    `amount`: the sum of a counter's additions, or the time of a register's write. `minus`: the sum
    of a counter's subtractions."""

    disk: int
    counter: int
    kind: str
    name: str = ""
    data: bytes = b""
    amount: int = 0
    minus: int = 0

    @property
    def stamp(self) -> Stamp:
        return self.disk, self.counter


class DataValue(NamedTuple):
    """A replicated value: its clock, and its dots in the order of their stamps."""

    clock: Clock
    dots: tuple[Dot, ...]


NOTHING = DataValue((), ())
"""The value of a key that was never written."""


class Addition(NamedTuple):
    """A dot without a stamp."""

    name: str = ""
    data: bytes = b""
    amount: int = 0
    minus: int = 0


class DataChange(NamedTuple):
    """A write. The kind "" is a deletion."""

    kind: str
    adds: tuple[Addition, ...] = ()
    drops: tuple[Stamp, ...] = ()
    base: DataValue | None = None
    """The value of which `drops` was computed."""
    seen: Clock | None = None
    """All dots that this clock covers go."""
    time: int = 0
    """The writer's clock, in microseconds."""
    limit: int = 0
    """Bytes that the value may have after it; 0 for any number."""


class NotTaken(NamedTuple):
    """A write was refused, and changed nothing. `reason`: `kind`, `size`, `range`, or `memory` of
    the replica. `detail`: the kind that is stored, the bytes that the value would have, or
    nothing."""

    reason: str
    detail: str = ""


# -- clocks --------------------------------------------------------------------------------------


def clock_of(counters: Iterable[Stamp]) -> Clock:
    """Return the clock of the highest of these counters."""
    highest: dict[int, int] = {}
    for disk, counter in counters:
        if counter > highest.get(disk, 0):
            highest[disk] = counter
    return tuple(sorted(highest.items()))


def joined_clock(clock: Clock, other: Clock) -> Clock:
    """Return the smallest clock that covers both."""
    return clock if clock == other else clock_of((*clock, *other))


def covers(clock: Clock, other: Clock) -> bool:
    """True if all that `other` covers is covered by `clock`."""
    if clock == other:
        return True
    counters = dict(clock)
    return all(counters.get(disk, 0) >= counter for disk, counter in other)


def number_of(clock: Clock) -> int:
    """Return a number of 63 bits that stands for a clock."""
    packed = b"".join(part.to_bytes(8, "big") for entry in clock for part in entry)
    return int.from_bytes(blake2b(packed, digest_size=HASH_BYTES).digest(), "big") >> 1


def events_in(clock: Clock) -> int:
    """Return the sum of a clock's counters. A clock that covers another one has a higher sum."""
    return sum(counter for _, counter in clock)


# -- values --------------------------------------------------------------------------------------


def joined(value: DataValue, other: DataValue) -> DataValue:
    """Merge two values, as the module says."""
    if value.clock == other.clock:
        return value
    mine, theirs = dict(value.clock), dict(other.clock)
    both = set(value.dots) & set(other.dots)
    dots = [dot for dot in value.dots if dot in both or theirs.get(dot.disk, 0) < dot.counter]
    dots += [dot for dot in other.dots if dot not in both and mine.get(dot.disk, 0) < dot.counter]
    return DataValue(joined_clock(value.clock, other.clock), tuple(sorted(dots)))


def joined_all(values: Iterable[DataValue]) -> DataValue:
    """Merge values."""
    result = NOTHING
    for value in values:
        result = joined(result, value)
    return result


def bytes_of(value: DataValue) -> int:
    """Return the bytes of a value, about."""
    texts = sum(len(dot.name) + len(dot.data) for dot in value.dots)
    return texts + DOT_BYTES * (len(value.dots) + len(value.clock))


def kinds_of(value: DataValue) -> list[str]:
    """Return the kinds of a value's dots: one, or several if it was created at the same time as
    values of several kinds."""
    return sorted({dot.kind for dot in value.dots})


def taken(
    value: DataValue, disk: int, counter: int, change: DataChange
) -> tuple[DataValue, int] | NotTaken:
    """Return the value of a disk after a write that this disk takes, and the disk's last counter.
    `counter`: the highest that it has stamped or seen."""
    if change.base is not None:
        value = joined(value, change.base)
    kinds = kinds_of(value)
    if change.kind and kinds and change.kind not in kinds:
        return NotTaken("kind", KIND_NAMES.get(kinds[0], kinds[0]))
    kept, dropped = _parted(value, change)
    time = max([change.time, *(dot.amount + 1 for dot in dropped if dot.kind in TIMED)])
    for addition in change.adds:
        counter += 1
        amount, minus = addition.amount, addition.minus
        if change.kind in COUNTERS:
            former = [dot for dot in kept if dot.disk == disk and dot.kind == change.kind]
            kept = [dot for dot in kept if dot not in former]
            amount += sum(dot.amount for dot in former)
            minus += sum(dot.minus for dot in former)
            if max(amount, minus) > AMOUNT_MAX:
                return NotTaken("range")
        elif change.kind in TIMED:
            amount = time
        kept.append(Dot(disk, counter, change.kind, addition.name, addition.data, amount, minus))
    if not change.adds:
        counter += 1
    clock = clock_of((*value.clock, *(change.seen or ()), (disk, counter)))
    after = DataValue(clock, tuple(sorted(kept)))
    size = bytes_of(after)
    if change.limit and size > change.limit and size > bytes_of(value):
        return NotTaken("size", str(size))
    return after, counter


def _parted(value: DataValue, change: DataChange) -> tuple[list[Dot], list[Dot]]:
    """Return the dots that a write keeps, and the dots that it drops."""
    drops, seen = frozenset(change.drops), dict(change.seen or ())
    kept, dropped = list[Dot](), list[Dot]()
    for dot in value.dots:
        goes = dot.stamp in drops or seen.get(dot.disk, 0) >= dot.counter
        (dropped if goes else kept).append(dot)
    return kept, dropped
