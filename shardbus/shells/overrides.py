"""The directions of one entity type in the store.

They are kept as the state of an entity of a reserved type, under the coordinator's epoch in place
of a fence: reading them raises it, and a coordinator that was replaced is refused. So every store
that can keep an entity can keep them.

Source: B.69, B.77, C.35; docs/architecture.md.
"""

from __future__ import annotations

import logging

import msgspec

from shardbus.entities.supervision import StateLoader
from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.sharding.overrides import Overrides

log = logging.getLogger("shardbus.coordinator")

RESERVED = "$directions"
"""The entity type under which they are kept; no application can have one of that name."""


class _Stored(msgspec.Struct, omit_defaults=True):
    places: dict[str, str] = {}
    paused: bool = False
    moves: int = 0


class OverridesStore:
    """Reads and writes them."""

    def __init__(self, entity_type: str, keeper: StateLoader) -> None:
        self._name, self._keeper = entity_type, keeper

    async def load(self, epoch: int) -> Overrides:
        """What was told, by whoever coordinates under this epoch.

        Raises:
            StaleFence: one with a higher epoch has read or written them. StoreUnavailable.
        """
        data = await self._keeper.load(RESERVED, self._name, epoch)
        if data is None:
            return Overrides()
        try:
            found = msgspec.msgpack.decode(data, type=_Stored)
            places = {shard: Address.parse(at) for shard, at in found.places.items()}
            return Overrides(places, found.paused, max(0, found.moves))
        except (msgspec.DecodeError, ConfigError) as e:
            log.error("the directions for %r cannot be read, and count as none: %s", self._name, e)
            return Overrides()

    async def save(self, epoch: int, told: Overrides) -> None:
        """Keep them. Raises as `load`; after StoreUnavailable either the old or the new ones are
        kept."""
        places = {shard: str(place) for shard, place in told.places.items()}
        stored = _Stored(places, told.paused, told.moves)
        await self._keeper.save(RESERVED, self._name, epoch, msgspec.msgpack.encode(stored))
