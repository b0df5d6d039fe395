"""The rows of a journal: a head, which has the newest entries, and blocks of older ones.

    head     fence, operation ids, numbers, the entries from `begin` on, and the list of blocks
    block  the entries of one block, in a row of its own under the number of a *slot*

An append changes the head alone: the change is the new entries. Once the head has `HEAD_ENTRIES`
entries or `HEAD_BYTES`, they move to a block, in two steps: the block is written, then the
head names it and drops the entries. Entries are never changed, so a block that was written and
not named yet has the right entries, however many.

A trim drops blocks from the list, and then clears their rows. Slots are used again, so that a
journal that grows and is trimmed for years keeps few rows. Each block begins with a higher number
than the former one in its slot, in the order of (life, begin): a writer that comes late with a
former block changes nothing. A journal that is forgotten leaves a head without entries, whose
`life` is the next one.

Source: docs/architecture.md; docs/how-to/own-store.md.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_ENTRIES = 512
HEAD_BYTES = 128 * 1024
OPS_KEPT = 16


class BlockPlace(NamedTuple):
    """A block in the head: the number of its first entry, and its slot."""

    begin: int
    slot: int


class DroppedBlock(NamedTuple):
    """A block that is in no journal any more, and may have to be cleared."""

    life: int
    begin: int
    slot: int


class JournalValue(NamedTuple):
    """The head of a journal. The blocks have the entries from `trimmed` + 1 to `begin` - 1."""

    shard: str
    fence: int
    ops: tuple[int, ...]
    """The ids of the last appends, `OPS_KEPT` at most, the newest last."""
    appends: int
    """Appends in this life."""
    life: int
    """How often a journal of this name was forgotten."""
    trimmed: int
    begin: int
    entries: tuple[bytes, ...]
    size: int
    """Bytes of `entries`."""
    blocks: tuple[BlockPlace, ...]
    """By their first numbers."""
    dropped: tuple[DroppedBlock, ...]
    there: bool
    """False: forgotten, or never written."""

    @property
    def last(self) -> int:
        """The number of the last entry, 0 for none."""
        return self.begin - 1 + len(self.entries)

    @property
    def is_full(self) -> bool:
        """True if the entries of the head are worth a block."""
        return len(self.entries) >= HEAD_ENTRIES or self.size >= HEAD_BYTES


NO_JOURNAL = JournalValue("", 0, (), 0, 0, 0, 1, (), 0, (), (), there=False)


class JournalChange(NamedTuple):
    """Entries to append."""

    shard: str
    fence: int
    op: int
    entries: tuple[bytes, ...]


class BlockValue(NamedTuple):
    """A block. Without entries: it was cleared."""

    life: int
    begin: int
    entries: tuple[bytes, ...]


def appended(head: JournalValue, change: JournalChange) -> JournalValue:
    """Return the head with these entries."""
    return head._replace(
        shard=change.shard,
        fence=change.fence,
        ops=(*head.ops[1 - OPS_KEPT :], change.op),
        appends=head.appends + 1,
        entries=head.entries + change.entries,
        size=head.size + sum(map(len, change.entries)),
        there=True,
    )


def trimmed(head: JournalValue, upto: int) -> JournalValue:
    """Return the head without the entries up to this number."""
    upto = min(upto, head.last)
    if upto <= head.trimmed:
        return head
    ends = [place.begin - 1 for place in head.blocks[1:]] + [head.begin - 1]
    gone = tuple(p for p, end in zip(head.blocks, ends, strict=False) if end <= upto)
    count = max(0, upto - head.begin + 1)
    left = head.entries[count:]
    return head._replace(
        trimmed=upto,
        begin=head.begin + count,
        entries=left,
        size=sum(map(len, left)) if count else head.size,
        blocks=head.blocks[len(gone) :],
        dropped=head.dropped + _dropped(head, gone),
    )


def forgotten(head: JournalValue) -> JournalValue:
    """Return what is left of a head without entries."""
    dropped = head.dropped + _dropped(head, head.blocks)
    return NO_JOURNAL._replace(life=head.life + 1, dropped=dropped)


def _dropped(head: JournalValue, places: tuple[BlockPlace, ...]) -> tuple[DroppedBlock, ...]:
    return tuple(DroppedBlock(head.life, *place) for place in places)


def free_slot(head: JournalValue) -> int:
    """Return the lowest slot that no block of the journal has."""
    used = {place.slot for place in head.blocks}
    return next(slot for slot in range(len(used) + 1) if slot not in used)


def sealed(head: JournalValue, place: BlockPlace, count: int) -> JournalValue:
    """Return the head once its first `count` entries are in this block."""
    left = head.entries[count:]
    return head._replace(
        begin=place.begin + count,
        entries=left,
        size=sum(map(len, left)),
        blocks=(*head.blocks, place),
        dropped=tuple(block for block in head.dropped if block.slot != place.slot),
    )


def audit(head: JournalValue) -> None:
    """Check a head. For tests."""
    assert head.size == sum(map(len, head.entries))
    assert 0 <= head.trimmed <= head.last
    begins = [place.begin for place in head.blocks]
    assert begins == sorted(set(begins))
    assert all(begin < head.begin for begin in begins)
    assert begins or head.trimmed >= head.begin - 1
    assert not begins or begins[0] <= head.trimmed + 1
    slots = [place.slot for place in head.blocks]
    assert len(slots) == len(set(slots))
