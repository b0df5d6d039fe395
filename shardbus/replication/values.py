"""The values of registers, one class for each kind of key, and changes that travel alone.

    key                    value         change
    state   type, entity   StateValue    -
    table   type           TableValue    HomesChange
    list    type, shard    ListValue     ListChange
    lease   name           LeaseValue    -
    journal kind, name     JournalValue  JournalChange
    block   journal, slot  BlockValue  -
    data    name           DataValue     DataChange, which the replica stamps (`versions`)
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


class StateValue(NamedTuple):
    """The state of an entity. `data` None: removed, by the save `op`, or by the expiry `expiry`."""

    op: int
    """The id of the last save."""
    data: bytes | None
    idle_since: float | None = None
    """The time of the first expiry that found it idle."""
    expiry: int = 0
    """The id of the expiry that removed it, 0 for none."""


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
    """The remembered entities of a shard."""

    fence: int
    entity_ids: frozenset[str]


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
    """Entities to add to a list, and to remove from it."""

    fence: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


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
AnyChange = HomesChange | ListChange | JournalChange


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


def length_of(value: Value) -> int:
    """Return the bytes of a state, of entries or of a replicated value, 0 for any other value."""
    match value:
        case StateValue(data=bytes() as data):
            return len(data)
        case JournalValue(size=size):
            return size
        case BlockValue(entries=entries):
            return sum(map(len, entries))
        case DataValue():
            return bytes_of(value)
        case _:
            return 0


def changed(value: Value, change: AnyChange) -> Value:
    """Return the value with the change. A change fits the kind of its key."""
    match change, value:
        case HomesChange(op, homes), TableValue():
            merged = {**value.homes, **homes}
            kept = {shard: home for shard, home in merged.items() if home is not None}
            return value._replace(op=op, homes=kept)
        case ListChange(fence, added, removed), ListValue() | None:
            ids = frozenset[str]() if value is None else value.entity_ids
            return ListValue(fence, ids.union(added).difference(removed))
        case JournalChange(), JournalValue() | None:
            return appended(NO_JOURNAL if value is None else value, change)
        case _:
            raise TypeError(f"{type(change).__name__} of {type(value).__name__}")


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


def removed_key(bucket: int) -> str:
    """Return the key of the clock of a bucket's removed tombstones. It is in that bucket, and comes
    after the bucket's values in the order of keys."""
    return f"{REMOVED}{SEPARATOR}{bucket:04d}"


def node_key(name: str) -> str:
    return f"{NODE}{SEPARATOR}{name}"


def bucket_of(key: str) -> int:
    """Return the bucket of a key, 0 to 4095. Tables, leases and the keys of the store itself are in
    the first partition, whose disks are the voters."""
    if key[0] == REMOVED:
        return int(key[2:]) % BUCKETS
    number = crc32(key.encode())
    return number % (BUCKETS if key[0] in SPREAD else BUCKETS_EACH)


def partition_of(key: str) -> int:
    """Return the partition of a key, 0 to 255."""
    return bucket_of(key) // BUCKETS_EACH
