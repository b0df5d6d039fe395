"""The values of registers, one class for each kind of key, and changes that travel alone.

    key                    value         change
    state   type, entity   StateValue    SaveChange
    table   type           TableValue    HomesChange
    list    type, shard    ListValue     ListChange
    lease   name           LeaseValue    -
    journal kind, name     JournalValue  JournalChange
    block   journal, slot  BlockValue  -
    data    name           DataValue     DataChange, which the replica stamps (`versions`)
    data    type, entity   the same, of a state that merges
    removed bucket         DataValue     the clock of the removed tombstones of a bucket
    node    name           str, or any other plain value of the store itself

A key is a text: the letter of its kind, and its names, separated by a control character that no id
has. A value is immutable. None is the value of a key that nothing was stored under.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from zlib import crc32

from shardbus.ids import NodeId
from shardbus.replication.journal_rows import (
    NO_JOURNAL,
    BlockValue,
    JournalChange,
    JournalValue,
    appended,
)
from shardbus.replication.versions import DataValue, bytes_of

SEPARATOR = "\x1f"
"""Between the parts of a key. Ids have no control characters."""
STATE, TABLE, LIST, LEASE, NODE = "s", "t", "l", "e", "$"
DATA, REMOVED = "d", "r"
JOURNAL, BLOCK = "j", "b"
"""The kinds of keys, as the first letter of a key."""
SPREAD = frozenset({STATE, LIST, DATA, JOURNAL, BLOCK})
"""The kinds whose keys are in all buckets."""

BUCKETS = 4096
"""Parts of the key space that replicas compare and merge."""
PARTITIONS = 256
"""Parts of the key space that have disks of their own. A partition is 16 buckets in a row."""
BUCKETS_EACH = BUCKETS // PARTITIONS


class RemindersValue(NamedTuple):
    """The reminders of an entity, in the row of its state. `due`: when the first is, in
    milliseconds since 1970."""

    shard: str
    due: int
    record: bytes


class StateValue(NamedTuple):
    """The state of an entity. `data` None: removed, by the save `op`, or by the expiry `expiry`."""

    op: int
    """The id of the last save."""
    data: bytes | None
    idle_since: float | None = None
    """The time of the first expiry that found it idle."""
    expiry: int = 0
    """The id of the expiry that removed it, 0 for none."""
    reminders: RemindersValue | None = None


class OpenSave(NamedTuple):
    """A save of reminders that may be under way. `number`: a random one of each intent."""

    fence: int
    number: int


NO_DUE: Mapping[str, int] = {}
NO_SAVES: Mapping[str, OpenSave] = {}


class TableValue(NamedTuple):
    """The shard table of an entity type."""

    epoch: int
    layout: str
    claimer: int
    """The session of the store object that has claimed the epoch."""
    op: int
    """The id of the last write of homes, 0 for none."""
    homes: Mapping[str, tuple[NodeId, int]]
    """Never changed in place."""


class ListValue(NamedTuple):
    """The remembered entities of a shard, and its reminders by time (`reminder_index`). The maps
    are never changed in place."""

    fence: int
    entity_ids: frozenset[str]
    due: Mapping[str, int] = NO_DUE
    """By entity: when its first reminder is due."""
    open: Mapping[str, OpenSave] = NO_SAVES
    """The entities for which only their own rows say it."""


class LeaseValue(NamedTuple):
    """A lease. `owner` None: free."""

    owner: str | None
    counter: int
    renewals: int
    time: float
    """Seconds, from when a replica accepted this value, after which others may take over."""
    request: int
    """The id of the request that acquired it."""


class HomesChange(NamedTuple):
    """New homes in a table; None: no home."""

    op: int
    homes: Mapping[str, tuple[NodeId, int] | None]


class ListChange(NamedTuple):
    """Entities to add to a list, and to remove from it; then when entities are due now (0: not at
    all), and then the saves that begin."""

    fence: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    settled: tuple[tuple[str, int], ...] = ()
    opened: tuple[tuple[str, OpenSave], ...] = ()


class SavedReminders(NamedTuple):
    """The reminders of a save. `record` None: none. `alone`: the state stays as it is."""

    shard: str
    due: int
    record: bytes | None
    alone: bool


class SaveChange(NamedTuple):
    """A save that leaves a part of the row as it is: the reminders, if it has none (None), or the
    state."""

    op: int
    data: bytes | None
    reminders: SavedReminders | None = None


Value = (
    StateValue
    | TableValue
    | ListValue
    | LeaseValue
    | JournalValue
    | BlockValue
    | DataValue
    | str
    | tuple[object, ...]
    | None
)
AnyChange = HomesChange | ListChange | JournalChange | SaveChange


class Written(NamedTuple):
    """A function's answer: store this value. `change`: how it differs, if that is shorter."""

    value: Value
    result: object = None
    change: AnyChange | None = None


class Unchanged(NamedTuple):
    """A function's answer: the value stays."""

    result: object = None


Function = Callable[[Value], Written | Unchanged]
"""Computes a new value of the stored one. It may run several times, and find the value that it has
made: then it answers as the first time."""


class Reading(NamedTuple):
    """A chosen value, and for how many seconds it has been stored: 0 for all but leases."""

    value: Value
    age: float


NO_LIST = ListValue(0, frozenset())
NO_STATE = StateValue(0, None)
ENTRY_BYTES = 100
"""Of memory, about, for an entity in the index of a shard."""


def length_of(value: Value) -> int:
    """Return the bytes of a state, of entries, of reminders or of a replicated value, 0 for any
    other value."""
    if type(value) is StateValue:
        _, data, _, _, reminders = value
        size = 0 if data is None else len(data)
        return size if reminders is None else size + len(reminders.record) + len(reminders.shard)
    match value:
        case ListValue(due=due, open=saves):
            return ENTRY_BYTES * (len(due) + len(saves))
        case JournalValue(size=size):
            return size
        case BlockValue(entries=entries):
            return sum(map(len, entries))
        case DataValue():
            return bytes_of(value)
        case _:
            return 0


def growth_of(value: Value, change: AnyChange) -> int:
    """Return by how many bytes `length_of` grows with a change."""
    match change, value:
        case SaveChange(), StateValue() | None:
            return length_of(saved(value, change)) - length_of(value)
        case JournalChange(entries=entries), _:
            return sum(map(len, entries))
        case ListChange(settled=settled, opened=opened), ListValue() | None:
            before = NO_LIST if value is None else value
            after = {entity_id: moment > 0 for entity_id, moment in settled}
            after |= dict.fromkeys((entity_id for entity_id, _ in opened), True)
            there = (entity_id in before.due or entity_id in before.open for entity_id in after)
            return ENTRY_BYTES * (sum(after.values()) - sum(there))
        case _:
            return 0


def changed(value: Value, change: AnyChange) -> Value:
    """Return the value with the change. A change fits the kind of its key."""
    match change, value:
        case HomesChange(op, homes), TableValue():
            merged = {**value.homes, **homes}
            kept = {shard: home for shard, home in merged.items() if home is not None}
            return value._replace(op=op, homes=kept)
        case ListChange(), ListValue() | None:
            return _changed_list(value or NO_LIST, change)
        case SaveChange(), StateValue() | None:
            return saved(value, change)
        case JournalChange(), JournalValue() | None:
            return appended(NO_JOURNAL if value is None else value, change)
        case _:
            raise TypeError(f"{type(change).__name__} of {type(value).__name__}")


def _changed_list(value: ListValue, change: ListChange) -> ListValue:
    fence, added, removed, settled, opened = change
    ids = value.entity_ids
    if added or removed:
        ids = ids.union(added).difference(removed)
    if not settled and not opened:
        return ListValue(fence, ids, value.due, value.open)
    due, saves = dict(value.due), dict(value.open)
    for entity_id, moment in settled:
        saves.pop(entity_id, None)
        due.pop(entity_id, None)
        if moment:
            due[entity_id] = moment
    for entity_id, save in opened:
        due.pop(entity_id, None)
        saves[entity_id] = save
    return ListValue(fence, ids, due, saves)


def saved(value: StateValue | None, save: SaveChange) -> StateValue:
    """Return the state after a save. Reminders of an entity that belongs to another shard now stay
    if the former one saves that it has none."""
    former = NO_STATE if value is None else value
    reminders = save.reminders
    if reminders is None:
        return StateValue(save.op, save.data, reminders=former.reminders)
    after: RemindersValue | None = None
    if reminders.record is not None:
        after = RemindersValue(reminders.shard, reminders.due, reminders.record)
    elif reminders.alone and former.reminders and former.reminders.shard != reminders.shard:
        after = former.reminders
    if reminders.alone:
        return former._replace(op=save.op, idle_since=None, reminders=after)
    return StateValue(save.op, save.data, reminders=after)


def state_key(entity_type: str, entity_id: str) -> str:
    return f"{STATE}{SEPARATOR}{entity_type}{SEPARATOR}{entity_id}"


def table_key(entity_type: str) -> str:
    return f"{TABLE}{SEPARATOR}{entity_type}"


def list_key(entity_type: str, shard: str) -> str:
    return f"{LIST}{SEPARATOR}{entity_type}{SEPARATOR}{shard}"


def journal_key(kind: str, name: str) -> str:
    return f"{JOURNAL}{SEPARATOR}{kind}{SEPARATOR}{name}"


def block_key(kind: str, name: str, slot: int) -> str:
    return f"{BLOCK}{SEPARATOR}{kind}{SEPARATOR}{name}{SEPARATOR}{slot}"


def lease_key(name: str) -> str:
    return f"{LEASE}{SEPARATOR}{name}"


def data_key(name: str) -> str:
    return f"{DATA}{SEPARATOR}{name}"


def state_name(entity_type: str, entity_id: str) -> str:
    """Return the name of the replicated value that is the state of all instances of an entity. No
    key of an application has a separator."""
    return f"{entity_type}{SEPARATOR}{entity_id}"


def removed_key(bucket: int) -> str:
    """Return the key of the clock of a bucket's removed tombstones. It is in that bucket, and comes
    after the bucket's values in the order of keys."""
    return f"{REMOVED}{SEPARATOR}{bucket:04d}"


def node_key(name: str) -> str:
    return f"{NODE}{SEPARATOR}{name}"


def bucket_of(key: str) -> int:
    """Return the bucket of a key, 0 to 4095. Tables, leases and the keys of the store itself are in
    the first partition, whose disks are the voters."""
    return bucket_at(key, crc32(key.encode()))


def bucket_at(key: str, number: int) -> int:
    """Return the bucket of a key with this CRC-32."""
    if key[0] == REMOVED:
        return int(key[2:]) % BUCKETS
    return number % (BUCKETS if key[0] in SPREAD else BUCKETS_EACH)


def partition_of(key: str) -> int:
    """Return the partition of a key, 0 to 255."""
    return bucket_of(key) // BUCKETS_EACH
