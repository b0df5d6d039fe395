"""The steps of a journal in `cluster://`, as functions on one row (`ChangeValue`).

They have the rules of the journals in memory (`store/memory_journals`). A function that runs again
on the value that it has made answers as the first time: an append finds its operation id, the
others compute the same value.

An append may be chosen while its own store object still has no majority: another one that prepares
meanwhile finds it, and appends behind it. So the head keeps the ids of the last appends. Once more
than these have come since, the append is in doubt, and refused for nothing else. A repeat, which is
another request, is known by the last id alone, as in every store.

    append_to    entries behind a number, under a fence           the head
    raise_fence  an opening                                       the head
    trim         drop entries, or the journal                     the head
    write_block  the entries of a full head, in a row of its own  the block
    seal         name the block in the head                       the head
    clear        drop the entries of a block that is not named    the block

Source: docs/architecture.md; docs/how-to/own-store.md.
"""

from __future__ import annotations

from shardbus.errors import JournalConflict, StaleFence, StoreUnavailable
from shardbus.replication import journal_rows as rows
from shardbus.replication.values import Function, Unchanged, Value, Written


def head_of(value: Value) -> rows.JournalValue:
    """Return the head that is stored, or the one of a journal that is not there."""
    return value if isinstance(value, rows.JournalValue) else rows.NO_JOURNAL


def append_to(
    kind: str, shard: str, name: str, fence: int, entries: tuple[bytes, ...], op: int, after: int
) -> Function:
    """Append. Result: the head, StaleFence, JournalConflict, or StoreUnavailable: in doubt."""
    change = rows.JournalChange(shard, fence, op, entries)
    tried: rows.JournalValue | None = None
    """The head behind which it was written first, which may have been chosen."""

    def function(value: Value) -> Written | Unchanged:
        nonlocal tried
        head = head_of(value)
        if op in (head.ops[-1:] if tried is None else head.ops):
            return Unchanged(head)
        if tried is not None and not _knows_since(head, tried):
            return Unchanged(StoreUnavailable(f"{kind} {name!r:.100} has many writers"))
        if head.there and head.fence > fence:
            return Unchanged(StaleFence(kind, name, fence, head.fence))
        if head.last != after:
            return Unchanged(JournalConflict(kind, name, after, head.last))
        tried = tried or head
        longer = rows.appended(head, change)
        return Written(longer, longer, change if value is not None else None)

    return function


def _knows_since(head: rows.JournalValue, tried: rows.JournalValue) -> bool:
    """True if the ids of the head have each append that came behind another head."""
    return head.life == tried.life and head.appends - tried.appends <= rows.OPS_KEPT


def raise_fence(kind: str, shard: str, name: str, fence: int) -> Function:
    """Open. Result: the head or StaleFence."""

    def function(value: Value) -> Written | Unchanged:
        head = head_of(value)
        if head.there and head.fence > fence:
            return Unchanged(StaleFence(kind, name, fence, head.fence))
        if head.there and head.fence == fence:
            return Unchanged(head)
        placed = head.shard if head.there else shard
        opened = head._replace(shard=placed, fence=fence, there=True)
        return Written(opened, opened)

    return function


def trim(
    kind: str,
    name: str,
    fence: int,
    upto: int,
    cleared: tuple[rows.DroppedBlock, ...] = (),
    *,
    forget: bool = False,
) -> Function:
    """Remove the entries up to this number, and with `forget` a journal without entries. `cleared`:
    dropped blocks whose rows are clear. Result: the head or StaleFence."""

    def function(value: Value) -> Written | Unchanged:
        head = head_of(value)
        if not head.there:
            return Unchanged(head)
        if head.fence > fence:
            return Unchanged(StaleFence(kind, name, fence, head.fence))
        dropped = tuple(place for place in head.dropped if place not in cleared)
        shorter = rows.trimmed(head._replace(fence=fence, dropped=dropped), upto)
        if forget and shorter.last == shorter.trimmed:
            shorter = rows.forgotten(shorter)
        return Unchanged(shorter) if shorter == head else Written(shorter, shorter)

    return function


def write_block(block: rows.BlockValue) -> Function:
    """Write a block unless its slot has this one already, or a later one. Result: the block in
    the slot."""

    def function(value: Value) -> Written | Unchanged:
        if isinstance(value, rows.BlockValue) and value[:2] >= block[:2]:
            return Unchanged(value)
        return Written(block, block)

    return function


def seal(life: int, place: rows.BlockPlace, count: int) -> Function:
    """Name a block that was written, which has the first `count` entries of the head. Result: the
    head; another one if the head has gone on, and this block is not in it."""

    def function(value: Value) -> Written | Unchanged:
        head = head_of(value)
        if (head.life, head.begin) != (life, place.begin) or len(head.entries) < count:
            return Unchanged(head)
        after = rows.sealed(head, place, count)
        return Written(after, after)

    return function


def clear(block: rows.DroppedBlock) -> Function:
    """Drop the entries of a block, unless its slot has another one by now. Result: None."""

    def function(value: Value) -> Written | Unchanged:
        if isinstance(value, rows.BlockValue) and value[:2] == block[:2] and value.entries:
            return Written(value._replace(entries=()))
        return Unchanged()

    return function
