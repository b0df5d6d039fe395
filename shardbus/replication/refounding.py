"""Founding a store anew: from the disks that are left, or from a backup. Pure.

A majority of the disks is gone, and with it the writes that it alone had acknowledged. The operator
decides that the store goes on without it. The rows of the disks that are left merge as in a repair,
into the rows of one new disk, alone in a ring of the next era (`ring.renewed_ring`).

The lost writes may include the claim of an epoch, and fences of that epoch are in use. So each
table skips `EPOCHS_SKIPPED` epochs (`skip_epochs`): the next coordinator's are above all of them,
also above the fences of states whose table was behind them.

The rows that are left may be of different times. So the index of reminders by time is compared with
the states, whose rows have the reminders, and is corrected (`reopen_reminders`).

**Who goes on.** After a recovery the store is the same one. Nodes that run take the new ring, raise
the fences of the entities that they have, and refuse a former owner again. A disk of a former ring
that comes back finds that it is left out. After a restore the store is another one: a node, a store
object or a disk of the former one never speaks to it, so nothing that was in memory before can
write over the restored rows.

`remains` says whether the disks that are left are a majority: then every acknowledged save is on
one of them. `differences` compares disks that stand still.

Not here: files (`shardbus.replica.disk_copies`, `backup_file`), and reading from replicas that run.

Source: docs/how-to/keep-state.md; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from shardbus.bounds import EPOCH_MAX, EPOCH_SHIFT
from shardbus.replication import values
from shardbus.replication.journal_rows import JournalValue
from shardbus.replication.messages import Ballot, Row
from shardbus.replication.moves import RingDisk
from shardbus.replication.registers import Registers
from shardbus.replication.reminder_index import list_of, reopened
from shardbus.replication.ring import (
    NO_RING,
    ReplicaRing,
    RingMember,
    is_related,
    majority,
    places_of,
)

EPOCHS_SKIPPED = 1000
OWN_KIND = "$"
"""The first letter of a kind of journals that is no entity type."""
IDENTITY_KEY = values.node_key("identity")
"""The register with the name of the store."""
LAYOUT_UNKNOWN = "unknown"
"""Layout of a table that was gone. A table without homes takes any."""
EPOCH_TRUE = EPOCH_MAX // 2
"""No cluster comes to a higher epoch: such a number is damage, and nothing follows it."""
_WORDS = {
    values.STATE: "state",
    values.TABLE: "table",
    values.LIST: "list",
    values.LEASE: "lease",
    values.JOURNAL: "journal",
    values.BLOCK: "block of a journal",
    values.DATA: "value",
    values.REMOVED: "removed values of bucket",
    values.NODE: "register",
}


def merge_rows(into: Registers, others: Iterable[Registers]) -> None:
    """Merge the rows of other disks. Ages of leases are not known."""
    for other in others:
        for key, row in other.rows.items():
            into.merge(key, row, 0.0)


def skip_epochs(registers: Registers, session: int) -> dict[str, int]:
    """Raise the epoch of each table above all that may have been claimed. Returns the epochs, by
    entity type. `session`: random, as of a store object."""
    highest = dict[str, int]()
    for key, row in registers.rows.items():
        if key[0] in FENCED and key[2] != OWN_KIND:
            entity_type = key.split(values.SEPARATOR)[1]
            highest[entity_type] = max(highest.get(entity_type, 0), _epoch_of(key, row))
    skipped = dict[str, int]()
    for entity_type, epoch in highest.items():
        if epoch > EPOCH_TRUE:
            continue
        key, after = values.table_key(entity_type), epoch + EPOCHS_SKIPPED
        value = registers.row(key).value
        if not isinstance(value, values.TableValue):
            value = values.TableValue(0, LAYOUT_UNKNOWN, 0, 0, {})
        ballot = Ballot(after, 0, session, 1)
        table = value._replace(epoch=after, claimer=session)
        registers.merge(key, Row(ballot, ballot, table), 0.0)
        skipped[entity_type] = after
    return skipped


def reopen_reminders(registers: Registers, session: int) -> int:
    """Let the lists of shards say nothing else about reminders than the states (`reminder_index`).
    Returns the number of lists that did. `session`: as in `skip_epochs`."""
    reminders = dict[str, dict[str, values.RemindersValue]]()
    for key, row in registers.rows.items():
        if (
            key[0] == values.STATE
            and isinstance(row.value, values.StateValue)
            and row.value.reminders
        ):
            _, entity_type, entity_id = key.split(values.SEPARATOR, 2)
            place = values.list_key(entity_type, row.value.reminders.shard)
            reminders.setdefault(place, {})[entity_id] = row.value.reminders
    lists = {key for key, row in registers.rows.items() if isinstance(row.value, values.ListValue)}
    corrected = 0
    for number, key in enumerate(sorted(lists | reminders.keys()), start=1):
        row = registers.row(key)
        after = reopened(list_of(row.value), reminders.get(key, {}), session)
        if after is not None:
            ballot = Ballot(max(row.promise.fence, 0), row.promise.round + 1, session, number)
            registers.merge(key, Row(ballot, ballot, after), 0.0)
            corrected += 1
    return corrected


def rename(registers: Registers, name: str, session: int) -> None:
    """Name the store of these rows anew: nodes of two restored stores refuse each other.
    `session`: as in `skip_epochs`."""
    promise = registers.row(IDENTITY_KEY).promise
    ballot = Ballot(max(promise.fence, 0), promise.round + 1, session, 1)
    registers.merge(IDENTITY_KEY, Row(ballot, ballot, name), 0.0)


def _epoch_of(key: str, row: Row) -> int:
    """Return the highest epoch that a row shows."""
    fence = max(row.promise.fence, row.ballot.fence, 0)
    if isinstance(row.value, values.ListValue | JournalValue):
        fence = max(fence, row.value.fence)
    if key[0] != values.TABLE:
        return fence >> EPOCH_SHIFT
    return max(fence, row.value.epoch if isinstance(row.value, values.TableValue) else 0)


FENCED = (values.STATE, values.LIST, values.TABLE, values.JOURNAL)
"""The kinds of keys whose ballots have fences or epochs."""


class Remains(NamedTuple):
    """The part of a store that is left."""

    ring: ReplicaRing
    """The newest one that a disk has."""
    lost: tuple[RingMember, ...]
    """Its members that are not among the disks, or do not vote in it, or are spoiled."""
    suffices: bool
    """The others are a majority of each partition: every acknowledged save is left."""


def remains(disks: Collection[RingDisk], spoiled: Collection[int]) -> Remains:
    """Return which part of their store these disks are. `spoiled`: the ids of the disks that cannot
    be read whole.

    Raises:
        ValueError: none is of a store, or they are of two.
    """
    ring = max((disk.ring for disk in disks), key=lambda ring: ring.number, default=NO_RING)
    if not ring.members:
        raise ValueError("no disk of a founded store")
    if not all(is_related(disk.ring, ring) for disk in disks if disk.ring.members):
        raise ValueError("the disks are of two stores")
    voting = {
        disk.disk: disk.voting for disk in disks if disk.ring == ring and disk.disk not in spoiled
    }
    suffices = all(
        sum(partition in voting.get(disk, ()) for disk in places) >= majority(len(places))
        for partition, places in enumerate(places_of(ring))
    )
    lost = tuple(member for member in ring.members if member.disk not in voting)
    return Remains(ring, lost, suffices)


class Difference(NamedTuple):
    """A key of which a disk has an older row than another one, or another value under one
    ballot. The disks are numbers in the order of the comparison."""

    key: str
    disk: int
    newer: int
    contradicts: bool = False
    """Both have the same ballot, and other values: one of them is spoiled."""


def differences(disks: Mapping[int, Registers]) -> Iterator[Difference]:
    """Yield the rows in which disks differ, in the order of their keys."""
    keys = set[str]().union(*(registers.rows for registers in disks.values()))
    for key in sorted(keys):
        yield from row_differences(key, {n: each.row(key) for n, each in disks.items()})


def row_differences(key: str, rows: Mapping[int, Row]) -> Iterator[Difference]:
    """Yield the disks' rows of one key that are not the newest row."""
    newest = max(rows, key=lambda disk: rows[disk].ballot)
    ballot, value = rows[newest].ballot, rows[newest].value
    for disk, row in rows.items():
        if row.ballot < ballot:
            yield Difference(key, disk, newest)
        elif row.value != value:
            yield Difference(key, disk, newest, contradicts=True)


def shown_key(key: str) -> str:
    """Return a key for people: `state cart/c-1`, `table cart`."""
    kind, *names = key.split(values.SEPARATOR)
    return f"{_WORDS.get(kind, kind)} {'/'.join(names)}"
