"""Compares the shards that an application declares with the stored tables, before its node joins.

A table is a map of shards, so a type with another number of shards, or another shard function, has
no use for it. The coordinator refuses such a table, and without a coordinator no message of the
type is handled. So a node does not start with it, and the error names the remedy.

A table without homes, as an orderly stop of the cluster leaves it, has nothing to lose: the change
is logged. Entities keep their ids and their states. But a store that places states by their shards,
as Redis does, looks for them elsewhere from then on. If it has states of the type, the node does
not start, and the error names the command that moves them.

A store that does not answer, or has a damaged table, is a matter of the coordinator: it tries
again, and says so.

Source: S2.4; docs/how-to/define-entities.md.
"""

from __future__ import annotations

from shardbus.entities.entity_type import EntityTypes
from shardbus.errors import LayoutDiffers, StatesElsewhere, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.routing.paths import place_function_of
from shardbus.store.placement import placing
from shardbus.store.protocol import StateStore

log = GuardedLog("shardbus.node")


async def check_layouts(store: StateStore, types: EntityTypes) -> None:
    """Compare the layout of each type with its stored table.

    Raises:
        LayoutDiffers: a table that has homes is for another layout.
        StatesElsewhere: the stored states of a type are placed by another layout.
    """
    await _check_tables(store, types)
    places = placing(store)
    if places is None:
        return
    for name, entity_type in types.items():
        if entity_type.states is None:
            continue
        interface = entity_type.interface
        shard_of = place_function_of(interface)
        placed = await places.placed(name, interface.layout, shard_of)
        if placed != interface.layout:
            raise StatesElsewhere(name, interface.layout, placed)


async def _check_tables(store: StateStore, types: EntityTypes) -> None:
    for name, entity_type in types.items():
        if entity_type.interface.within is not None:
            continue
        try:
            table = await store.load_table(name)
        except StoreError as e:
            log.warning("the stored table of %r was not compared: %s", name, e)
            continue
        layout = entity_type.interface.layout
        if table is None or table.layout == layout:
            continue
        if table.homes:
            raise LayoutDiffers(name, layout, table.layout)
        log.warning("the shards of %r change from %r to %r", name, table.layout, layout)
