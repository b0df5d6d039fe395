"""Where stored states are: the shard of an entity as its layout has it.

A store that keeps the states of a shard together, as in one slot of a Redis Cluster, finds a state
only by the shard of its entity. So it records, for each type, the *layout* by which its states are
placed: the name of the shard function. Nodes of another layout would look in the wrong places,
where there is nothing, and begin anew. They are refused, and `shardbus data migrate` moves the
states to their new places while no node runs.

Most layouts say everything: `crc32/100` is the default function with 100 shards, `crc32/100~N` the
same for a type with instances, whose ids and shards end in `~1`, `~2` and so on, and
`crc32/100 within cart` is the default function of the part of the id that names the parent. Another
function is known to the application alone.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from shardbus.ids import shard_of
from shardbus.sharding.instances import INSTANCE_MARK, split_row
from shardbus.store.protocol import StateStore

UNRECORDED = "unknown"
"""Stands for the layout of states that are somewhere else, without a record."""
UNFINISHED = "on the way to "
"""Begins the recorded layout of a type whose states are being moved. No layout begins so."""
_LAYOUT = re.compile(r"crc32/([1-9][0-9]{0,9})(~N)?((?: within .+)?)", re.DOTALL)


@runtime_checkable
class PlacingStore(Protocol):
    """The abilities of a store besides `StateStore` if it places states by their shards."""

    async def placed(
        self, entity_type: str, layout: str, shard_of: Callable[[str], str] | None = None
    ) -> str:
        """Return the layout by which the states of a type are placed. If there is no state, record
        `layout`; so too if there is no record, and the states are where it has them. `shard_of` is
        the function of that layout, by which the store finds a state whose shard it is not
        given."""
        ...


@runtime_checkable
class RecordingStore(Protocol):
    """A `PlacingStore` that also shows its records."""

    async def placement(self, entity_type: str) -> str:
        """Return the recorded layout, empty if there is none."""
        ...


def placing(store: StateStore) -> PlacingStore | None:
    """Return the store as one that places states by their shards, None if it does not."""
    return store if isinstance(store, PlacingStore) else None


def shard_function(layout: str) -> Callable[[str], str] | None:
    """Return the function from an entity's id to its shard, None if the layout does not say it."""
    match = _LAYOUT.fullmatch(layout)
    if match is None:
        return None
    shards, instances = int(match[1]), match[2] is not None
    depth = match[3].count(" within ")

    def place(entity_id: str) -> str:
        base, number = split_row(entity_id) if instances else (entity_id, 0)
        shard = shard_of(base.rsplit("/", depth)[0] if depth else base, shards)
        return f"{shard}{INSTANCE_MARK}{number}" if number else shard

    return place
