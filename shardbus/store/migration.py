"""Move stored states to the places where this release, or this application, looks for them.

A store may keep a state under a key that depends on its entity's shard (`placement`). Two things
change that key: a release with another layout of the keys, and an application whose type has
another shard function, or another number of shards. Nodes refuse such a store at their start. This
moves the states, while no node runs:

    survey     count the keys that are in the wrong place, by type
    mark       record of each such type that its states are on the way; nodes refuse it from now on
    lists      copy each list of remembered entities of an earlier release, then remove it there
    entities   slice by slice: copy to the right place unless it has a newer one, with its place in
               the index of reminders, then remove the old one unless it has changed
    again      until one pass over all keys finds nothing in the wrong place
    record     the layout of each type, and the version of the keys

A copy comes before its removal, and both can be repeated. So the command may end at any point, by a
crash too, and the next run goes on. The number of keys in memory is bounded.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from shardbus.errors import StoreError
from shardbus.store.placement import UNFINISHED, shard_function
from shardbus.store.protocol import StateStore

RESERVED_SHARD = "all"
"""The shard of everything of the types whose names begin with $."""
PASSES_MAX = 10

ShardFunction = Callable[[str], str]


class Declared(NamedTuple):
    """The layout of a type as an application declares it, and its function from id to shard."""

    layout: str
    shard_of: ShardFunction


class TypeStates(msgspec.Struct):
    """The results of a survey of one type. `layout` is where its states belong."""

    layout: str = ""
    shard_of: ShardFunction | None = None
    entities: int = 0
    misplaced: int = 0
    lists: int = 0
    """Lists of remembered entities under keys of an earlier release."""
    was: str = ""
    """The recorded layout, empty if there is none."""


class Migration(msgspec.Struct):
    """The states found, and the states moved."""

    types: dict[str, TypeStates] = msgspec.field(default_factory=dict)
    moved: int = 0
    lists: int = 0
    version: str = ""
    """The version of the store's keys before."""

    @property
    def misplaced(self) -> int:
        """Entities and lists in the wrong place."""
        return sum(states.misplaced + states.lists for states in self.types.values())

    @property
    def is_done(self) -> bool:
        """True if there is nothing to move, and nothing to record."""
        same = all(states.was == states.layout for states in self.types.values() if states.entities)
        return self.misplaced == 0 and same and self.version in ("", CURRENT)


CURRENT = "2"


@runtime_checkable
class MigratableStore(Protocol):
    """The abilities of a store besides `StateStore` if its states have places."""

    def accept_older(self) -> None:
        """Have `start` accept keys as an earlier release left them. Before `start`."""

    async def older_nodes(self) -> list[str]:
        """Return the addresses of nodes that an earlier release has registered."""
        ...

    async def survey(self, declared: Mapping[str, Declared]) -> Migration:
        """Count the states in the wrong place. Writes nothing.

        Raises:
            StoreError: only the application knows the shards of some types.
        """
        ...

    async def migrate(
        self, declared: Mapping[str, Declared], progress: Callable[[int, int], None]
    ) -> Migration:
        """Move all states to their places. `progress` receives how many are moved, and of how many.
        Only for a cluster that is stopped; may be repeated. Raises as `survey`."""
        ...


def migratable(store: StateStore) -> MigratableStore | None:
    """Return the store as one whose states have places, None if they have none."""
    return store if isinstance(store, MigratableStore) else None


def settle(entity_type: str, states: TypeStates, table: str, declared: Declared | None) -> bool:
    """Decide where the states of a type belong: by the declaration, else as recorded, else by the
    layout of its stored `table`. Returns False if only its application knows the function."""
    if entity_type.startswith("$"):
        states.layout, states.shard_of = RESERVED_SHARD, lambda entity_id: RESERVED_SHARD
        states.was = states.layout
    elif declared is not None:
        states.layout, states.shard_of = declared
    else:
        states.layout = states.was.removeprefix(UNFINISHED) or table
        states.shard_of = shard_function(states.layout)
    return states.shard_of is not None


def unknown(types: list[str]) -> StoreError:
    """Return the error for types whose shards only an application knows."""
    named = ", ".join(repr(name) for name in sorted(types))
    return StoreError(
        f"the shards of {named} are known to the application alone",
        hint="name it: `shardbus data migrate APP --store URL`",
    )
