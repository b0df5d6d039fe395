"""The names of the keys in Redis, and the slots of a cluster that they are in.

A Redis Cluster puts a key into one of 16,384 slots by its *hash tag*, the part in braces, and each
slot has one master. Keys with one tag are in one slot, so one script may use them together.

The states and the list of remembered entities of a shard have the tag `<type>/<shard>`, so that a
cluster spreads them, and the many states of one shard still share a script. The table of a type has
the tag `<type>`, and each lease one of its own. Within a key, type, shard and id are
percent-encoded, so a `/`, `:` or brace in them does not end the part; `redis_scripts` lists the
keys.

Version 1 of this layout had the tag `<type>` for everything of a type; `redis_migration` moves its
remains.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

T = TypeVar("T")

VERSION = 2
"""The layout of the keys that this module names."""
PLAIN = re.compile(r"[A-Za-z0-9_.~-]*", re.ASCII).fullmatch
"""Names that percent-encoding leaves as they are."""
PLACES_MAX = 10_000
"""Shards whose keys' beginnings are kept."""


class EntityKey(NamedTuple):
    """The parts of the key of an entity. `shard` is None in version 1."""

    entity_type: str
    shard: str | None
    entity_id: str
    journal: bool = False
    """It is the key of the journal of that name."""


class JournalKey(NamedTuple):
    """The parts of the key of a journal."""

    kind: str
    shard: str
    name: str


class ByShard(dict[tuple[str, str], T]):
    """A part of keys by type and shard. All are made anew once there are `PLACES_MAX`."""

    def __init__(self, make: Callable[[tuple[str, str]], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, place: tuple[str, str]) -> T:
        if len(self) >= PLACES_MAX:
            self.clear()
        part = self[place] = self._make(place)
        return part


class RedisKeys:
    """The keys of one cluster of nodes, which begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.probe = f"{prefix}:probe"
        self.sync = f"{prefix}:sync"
        self.entity_prefixes = ByShard(lambda place: f"{self._tag(*place)}:entity:")
        """The results of `entities`, by type and shard."""
        self._journals = ByShard(lambda place: f"{self._tag(*place)}:journal:")
        """The beginnings of the keys of journals, by kind and shard."""
        self._slots = ByShard(lambda place: slot_of(self._tag(*place)))
        self._entity = re.compile(rf"{re.escape(prefix)}:{{([^/}}]*)(?:/([^}}]*))?}}:entity:(.*)")
        self._journal = re.compile(rf"{re.escape(prefix)}:{{([^/}}]*)/([^}}]*)}}:journal:(.*)")

    def table(self, entity_type: str) -> tuple[str, str]:
        """Return the keys of a type's table: its numbers, and its homes."""
        return self._of_type(entity_type, "table"), self._of_type(entity_type, "homes")

    def shards(self, entity_type: str) -> str:
        """Return the key that has the shards with lists of remembered entities."""
        return self._of_type(entity_type, "lists")

    def remembered(self, entity_type: str, shard: str) -> tuple[str, str]:
        """Return the keys of a shard's list of remembered entities: its fence, and its ids."""
        tag = self._tag(entity_type, shard)
        return f"{tag}:list", f"{tag}:remembered"

    def due(self, entity_type: str, shard: str) -> str:
        """Return the key of a shard's reminders by time."""
        return f"{self._tag(entity_type, shard)}:due"

    def entities(self, entity_type: str, shard: str) -> str:
        """Return the beginning of the keys of a shard's entities."""
        return self.entity_prefixes[entity_type, shard]

    def slot(self, entity_type: str, shard: str) -> int:
        """Return the slot of a shard's states and list."""
        return self._slots[entity_type, shard]

    def entity(self, entity_type: str, shard: str, entity_id: str) -> str:
        """Return the key of an entity."""
        return self.entities(entity_type, shard) + quoted(entity_id)

    def all_entities(self, entity_type: str, start: str = "") -> str:
        """Return the pattern of the keys of a type's entities whose ids begin with `start`."""
        return f"{self._prefix}:{{{quoted(entity_type)}/*}}:entity:{quoted(start)}*"

    def named(self, entity_type: str, entity_id: str) -> str:
        """Return the pattern of the key of one entity, whose shard is unknown."""
        return f"{self._prefix}:{{{quoted(entity_type)}/*}}:entity:{quoted(entity_id)}"

    def parse(self, key: str) -> EntityKey | None:
        """Return the parts of the key of an entity, None if it is another key."""
        match = self._entity.fullmatch(key)
        if match is None:
            return None
        entity_type, shard, entity_id = match.groups()
        place = None if shard is None else unquote(shard)
        return EntityKey(unquote(entity_type), place, unquote(entity_id))

    def journal(self, kind: str, shard: str, name: str) -> str:
        """Return the key of a journal."""
        return self._journals[kind, shard] + quoted(name)

    def all_journals(self, kind: str) -> str:
        """Return the pattern of the keys of a kind's journals."""
        return f"{self._prefix}:{{{quoted(kind)}/*}}:journal:*"

    def parse_journal(self, key: str) -> JournalKey | None:
        """Return the parts of the key of a journal, None if it is another key."""
        parts = self._journal.fullmatch(key)
        return None if parts is None else JournalKey(*map(unquote, parts.groups()))

    def lease(self, name: str) -> str:
        """Return the key of a lease."""
        return f"{self._prefix}:lease:{{{quote(name, safe='')}}}"

    def mark(self, number: int) -> str:
        """Return a key for a master of a cluster. The numbers are spread over the slots."""
        return f"{self._prefix}:{{probe/{number}}}"

    # The keys of version 1

    def old_shards(self, entity_type: str) -> str:
        """Return the key of the fences of a type's lists."""
        return self._of_type(entity_type, "shards")

    def old_remembered(self, entity_type: str, shard: str) -> str:
        """Return the key of the ids of a shard's list."""
        return f"{self._of_type(entity_type, 'remembered')}:{quoted(shard)}"

    def everything(self) -> str:
        """Return the pattern of the keys of all entities and lists of every type."""
        return f"{self._prefix}:{{*}}:*"

    def old_list_type(self, key: str) -> str | None:
        """Return the type whose fences of lists are under this key, None if it is another key."""
        start, end = f"{self._prefix}:{{", "}:shards"
        if not key.startswith(start) or not key.endswith(end) or "/" in key[len(start) :]:
            return None
        return unquote(key[len(start) : -len(end)])

    def _of_type(self, entity_type: str, what: str) -> str:
        return f"{self._prefix}:{{{quoted(entity_type)}}}:{what}"

    def _tag(self, entity_type: str, shard: str) -> str:
        return f"{self._prefix}:{{{quoted(entity_type)}/{quoted(shard)}}}"


def quoted(name: str) -> str:
    """Return a name as it stands in a key: percent-encoded."""
    if PLAIN(name):
        return name
    if PLAIN(name.replace("/", "")):  # of a mailbox; `quote` takes ten times as long
        return name.replace("/", "%2F")
    return quote(name, safe="")


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    data = key.encode() if isinstance(key, str) else key
    return key_slot(data, REDIS_CLUSTER_HASH_SLOTS)
