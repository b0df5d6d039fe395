"""Repair the stored numbers of one entity type, while no node of the cluster runs.

A store may hold a number that no node can have written: after a manual edit, a partial restore, a
failed disk, or from a build that did not bound the numbers it stored. Two such numbers stop a type.
Above the last epoch no coordinator finds a higher one to claim. And an entity whose fence is ahead
of the table's epoch refuses its own home, because the store takes that home for an earlier one.

A fence only keeps an earlier process from writing after a later one. If no process runs, there is
none to keep out, so each fence may be lowered. The rules, in this order:

    epoch    unreadable, or above EPOCH_HIGH       the highest epoch of the readable fences
    layout   unreadable                            removed with all homes
    home     an invalid row, or its fence is       removed: the shard gets a new home
             of an epoch above the table's
    fence    of an entity, or of a shard's list:   the last fence of the table's epoch
             unreadable, or of such an epoch

The next coordinator claims the epoch after the table's, so its fences are above all of these. The
saved states of entities are not touched. Half of the epochs are out of reach of any true cluster,
so an epoch in that half is damage, too; otherwise a repaired cluster might have few epochs left.

The fences of entities are read in pages, because there may be millions.

Source: docs/how-to/operate.md; N.6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from shardbus.bounds import EPOCH_MAX, EPOCH_SHIFT, FENCE_MAX
from shardbus.errors import ConfigError, StoreError
from shardbus.ids import Address
from shardbus.store.protocol import StateStore
from shardbus.store.rows import Row, home_of, layout_of, number_of, shown

EPOCH_HIGH = EPOCH_MAX // 2
LAYOUT_UNKNOWN = "unknown"
"""Stored as the layout of a table whose layout is unreadable. A table without homes takes any."""
NAMED_MAX = 5
"""Entities and shards that a report names; it counts the others."""


class RawTable(msgspec.Struct, frozen=True):
    """A table as the store has it, unchecked."""

    epoch: object
    layout: object
    rows: tuple[Row, ...]

    @property
    def addresses(self) -> set[Address]:
        """Return the addresses of the homes that are readable, whatever their fences are."""
        addresses = set()
        for row in self.rows:
            try:
                addresses.add(home_of((row[0], row[1], 1))[1].address)
            except ConfigError:
                continue
        return addresses


class RawFence(NamedTuple):
    """A stored fence, unchecked. `name` is for people, `key` for the store."""

    name: str
    key: Any
    value: object


@runtime_checkable
class RepairableStore(Protocol):
    """The abilities of a store besides `StateStore` if its numbers can be repaired. Each write is
    one atomic step."""

    async def raw_table(self, entity_type: str) -> RawTable | None:
        """Return the table unchecked, None if there is none."""

    def raw_fences(self, entity_type: str) -> AsyncIterator[list[RawFence]]:
        """Yield the fences of entities and of lists of remembered entities, in pages."""
        ...

    async def mend_table(
        self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]
    ) -> None:
        """Write the table's epoch and layout, and remove the homes of the shards in `gone`."""

    async def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        """Write `fence` in place of these fences."""


class Damage(msgspec.Struct):
    """The faults in the numbers of a type. `epoch` is the table's epoch after a repair."""

    epoch: int = 0
    table: str = ""
    """Why the table's epoch is wrong, empty if it is right."""
    layout: str = ""
    homes: tuple[str, ...] = ()
    fences: int = 0
    named: tuple[str, ...] = ()
    """The first of the fences."""

    def lines(self) -> list[str]:
        """Return the findings, one line each; none if nothing is wrong."""
        lines = []
        if self.table:
            lines.append(f"{self.table}: {self.epoch} is the highest true one")
        if self.layout:
            lines.append(f"{self.layout}: all homes are removed with it")
        lines += [f"{home}: the row is removed" for home in self.homes]
        if self.fences:
            more = self.fences - len(self.named)
            names = ", ".join(self.named) + (f" and {more} more" if more else "")
            lines.append(f"{names}: ahead of epoch {self.epoch}, lowered to its last fence")
        return lines


def repairable(store: StateStore) -> RepairableStore:
    """Return the store as one whose numbers can be repaired.

    Raises:
        StoreError: it offers no repair.
    """
    if not isinstance(store, RepairableStore):
        raise StoreError("this store cannot be repaired by shardbus", hint="restore it from a copy")
    return store


async def repair(store: RepairableStore, entity_type: str, *, write: bool) -> Damage:
    """Find the faults in the numbers of a type, and repair them if `write` is set. Only for a
    cluster that is stopped; a repair that was cut short can be repeated.

    Raises:
        StoreUnavailable: the store did not answer. Some of the repair may be done.
    """
    table = await store.raw_table(entity_type)
    highest = 0
    if table is not None and _epoch_of(table.epoch) is None:
        highest = _highest(row[2] for row in table.rows)
        async for page in store.raw_fences(entity_type):
            highest = max(highest, _highest(fence.value for fence in page))
    damage, gone = examine(table, highest)
    named: list[str] = []
    async for page in store.raw_fences(entity_type):
        wrong = [fence for fence in page if not _is_within(fence.value, damage.epoch)]
        damage.fences += len(wrong)
        named += [fence.name for fence in wrong[: NAMED_MAX - len(named)]]
        if write and wrong:
            await store.mend_fences(entity_type, wrong, last_fence(damage.epoch))
    damage.named = tuple(named)
    if write and table is not None and (damage.table or damage.layout or gone):
        layout = LAYOUT_UNKNOWN if damage.layout else layout_of(table.layout)
        await store.mend_table(entity_type, damage.epoch, layout, gone)
    return damage


def examine(table: RawTable | None, highest: int) -> tuple[Damage, list[object]]:
    """Return the faults of a table, and the shards whose rows must go. `highest` is the highest
    epoch among the readable fences."""
    damage = Damage()
    if table is None:
        return damage, []
    epoch = _epoch_of(table.epoch)
    damage.epoch = highest if epoch is None else epoch
    if epoch is None:
        damage.table = f"the table's epoch is {table.epoch!r:.40}, no number up to {EPOCH_HIGH}"
    try:
        layout_of(table.layout)
    except ConfigError as wrong:
        damage.layout = wrong.message
    homes: list[str] = []
    gone: list[object] = []
    for row in table.rows:
        try:
            fence = home_of(row)[2]
            ahead = fence >> EPOCH_SHIFT > damage.epoch
            why = f"its fence is of epoch {fence >> EPOCH_SHIFT}" if ahead else ""
        except ConfigError as wrong:
            why = wrong.message
        if why:
            homes.append(f"{shown(row[0])}: {why}")
        if why or damage.layout:
            gone.append(row[0])
    damage.homes = tuple(homes)
    return damage, gone


def last_fence(epoch: int) -> int:
    """Return the last fence of an epoch."""
    return (epoch + 1 << EPOCH_SHIFT) - 1


def _epoch_of(value: object) -> int | None:
    try:
        return number_of("epoch", value, 0, EPOCH_HIGH)
    except ConfigError:
        return None


def _fence_of(value: object) -> int | None:
    try:
        return number_of("fence", value, 0, FENCE_MAX)
    except ConfigError:
        return None


def _is_within(value: object, epoch: int) -> bool:
    fence = _fence_of(value)
    return fence is not None and fence <= last_fence(epoch)


def _highest(values: Iterable[object]) -> int:
    """Return the highest epoch among these fences, of those that a true cluster reaches."""
    fences = (_fence_of(value) or 0 for value in values)
    epochs = (fence >> EPOCH_SHIFT for fence in fences)
    return max((epoch for epoch in epochs if epoch <= EPOCH_HIGH), default=0)
