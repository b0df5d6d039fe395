"""The calls of a state store as functions on one value, for `ChangeValue`.

They have the rules of the store in memory (`store/memory.py`), with one addition each, because a
function may run again on the value that it has made: it recognises an operation id, a claimer, a
request. Errors are results, not raised: a function decides, and the store object raises them when
the decision is chosen.

**Leases** compare no clocks of two machines. A row has an age: the seconds since its disk stored
the value. The holder counts from when it asked, so each disk counts from later. A contender takes
over once the age is `TAKE_OVER` times the lease's time, which covers clocks of which one is 3 %
slow and the other 3 % fast. A renewal never shortens a lease: the rest of the former time is a
lower bound of the new one, because the holder may rely on it until its renewal is answered.

Source: docs/architecture.md; S2.30, B.59.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardbus.errors import LayoutDiffers, StaleEpoch, StaleFence
from shardbus.ids import NodeId
from shardbus.replication.values import (
    Function,
    HomesChange,
    LeaseValue,
    ListChange,
    ListValue,
    Reading,
    StateValue,
    TableValue,
    Unchanged,
    Value,
    Written,
    changed,
)

TAKE_OVER = 1.1
"""The part of a lease's time at whose age others take it over."""


# -- tables --------------------------------------------------------------------------------------


def claim(entity_type: str, epoch: int, layout: str, claimer: int) -> Function:
    """Claim a table. Result: TableValue, StaleEpoch or LayoutDiffers."""

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, TableValue):
            table = TableValue(epoch, layout, claimer, 0, {})
            return Written(table, table)
        if (value.epoch, value.layout, value.claimer) == (epoch, layout, claimer):
            return Unchanged(value)
        if value.epoch >= epoch:
            return Unchanged(StaleEpoch(entity_type, epoch, value.epoch))
        if value.layout != layout and value.homes:
            return Unchanged(LayoutDiffers(entity_type, layout, value.layout))
        table = value._replace(epoch=epoch, layout=layout, claimer=claimer)
        return Written(table, table)

    return function


def write_homes(
    entity_type: str,
    epoch: int,
    claimer: int,
    homes: Mapping[str, tuple[NodeId, int] | None],
    op: int,
) -> Function:
    """Set homes. Result: None or StaleEpoch."""
    change = HomesChange(op, homes)

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, TableValue):
            return Unchanged(StaleEpoch(entity_type, epoch, 0))
        if value.op == op:
            return Unchanged()
        if (value.epoch, value.claimer) != (epoch, claimer):
            return Unchanged(StaleEpoch(entity_type, epoch, value.epoch))
        return Written(changed(value, change), None, change)

    return function


def remove_homes(op: int) -> Function:
    """Remove every home. Result: True if there was one. `op`: a random id."""

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, TableValue) or not (value.homes or value.op == op):
            return Unchanged(result=False)
        if value.op == op:
            return Unchanged(result=True)
        return Written(value._replace(homes={}, op=op), result=True)

    return function


# -- states and lists ----------------------------------------------------------------------------


def expire(now: float, since: float, expiry: int) -> Function:
    """Remove a state that is idle since `since`, or note that it is idle. Result: True if this
    removed it. `expiry`: a random id, not 0."""

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, StateValue):
            return Unchanged(result=False)
        if value.data is None:
            return Unchanged(result=value.expiry == expiry)
        idle_since = now if value.idle_since is None else min(now, value.idle_since)
        if idle_since <= since:
            gone = StateValue(value.op, None, None, expiry, value.reminders)
            return Written(gone, result=True)
        if idle_since == value.idle_since:
            return Unchanged(result=False)
        return Written(value._replace(idle_since=idle_since), result=False)

    return function


def change_list(
    entity_type: str, shard: str, added: Iterable[str], removed: Iterable[str], fence: int
) -> Function:
    """Add entities to a list, and remove entities from it. Result: None or StaleFence."""
    change = ListChange(fence, tuple(added), tuple(removed))

    def function(value: Value) -> Written | Unchanged:
        if isinstance(value, ListValue) and value.fence > fence:
            return Unchanged(StaleFence(entity_type, shard, fence, value.fence))
        after = changed(value, change)
        return Unchanged() if after == value else Written(after, None, change)

    return function


# -- the store itself ----------------------------------------------------------------------------


def identify(chosen: str, fresh: str) -> Function:
    """Name the store `chosen`; without it, keep the stored name, or write `fresh`. Result: the
    name."""

    def function(value: Value) -> Written | Unchanged:
        name = chosen or value or fresh
        return Unchanged(value) if name == value else Written(name, name)

    return function


def decide_once(proposed: Value) -> Function:
    """Write a value where there is none. Result: the stored value."""

    def function(value: Value) -> Written | Unchanged:
        return Written(proposed, proposed) if value is None else Unchanged(value)

    return function


# -- leases --------------------------------------------------------------------------------------


def acquire(owner: str, time: float, seen: Reading, request: int) -> Function | None:
    """Take a lease for `time` seconds, of which `seen` was read just before. None: another owner
    holds it. `request`: a random id, not 0.

    Result: its counter; None if the lease has changed since it was read, so read again. The owner
    holds it until `time` seconds after it sent this request, by its own clock."""
    before = seen.value if isinstance(seen.value, LeaseValue) else LeaseValue(None, 0, 0, 0.0, 0)
    ours = before.owner == owner
    if before.owner is not None and not ours and seen.age < before.time * TAKE_OVER:
        return None
    live = ours and seen.age < before.time
    counter = before.counter if live else before.counter + 1
    lasts = max(time, left_of(before, seen.age)) if live else time
    after = LeaseValue(owner, counter, 0, lasts, request)

    def function(value: Value) -> Written | Unchanged:
        if isinstance(value, LeaseValue) and value.request == request:
            return Unchanged(value.counter)
        return Written(after, counter) if value == seen.value else Unchanged()

    return function


def renew(owner: str, counter: int, time: float, seen: Reading | None = None) -> Function:
    """Extend a lease to `time` seconds from now. Result: False if it is lost.

    A store object that acquired the lease itself has the time at which it ends, and calls this
    before that, without `seen`. Otherwise it reads first, and a lease whose time is over is lost.
    """

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, LeaseValue) or (value.owner, value.counter) != (owner, counter):
            return Unchanged(result=False)
        age = seen.age if seen is not None and seen.value == value else 0.0
        if age >= value.time:
            return Unchanged(result=False)
        lasts = max(time, left_of(value, age))
        return Written(value._replace(renewals=value.renewals + 1, time=lasts), result=True)

    return function


def release(owner: str, counter: int) -> Function:
    """Free a lease if it is still held under this counter. Result: None."""

    def function(value: Value) -> Written | Unchanged:
        if not isinstance(value, LeaseValue) or (value.owner, value.counter) != (owner, counter):
            return Unchanged()
        return Written(LeaseValue(None, counter, 0, 0.0, 0))

    return function


def left_of(lease: LeaseValue, age: float) -> float:
    """Return how long a holder may still rely on a lease, at most, as a time from now on."""
    return lease.time - age / TAKE_OVER
