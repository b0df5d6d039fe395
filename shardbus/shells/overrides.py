"""The store of an entity type's overrides: the settings of operators for its coordinator.

They are kept as the state of an entity of a reserved type, with the coordinator's epoch as the
fence. Reading them raises the fence, so that a replaced coordinator is refused. So any store that
keeps entities can keep overrides.

Source: docs/architecture.md.
"""

from __future__ import annotations

import msgspec

from shardbus.entities.supervision import StateLoader
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.sharding.overrides import Overrides

log = GuardedLog("shardbus.coordinator")

RESERVED = "$directions"
"""The entity type under which they are kept; names of applications cannot begin with $."""


SHARD = "all"


class _Stored(msgspec.Struct, omit_defaults=True):
    places: dict[str, str] = {}
    paused: bool = False
    moves: int = 0


class OverridesStore:
    """Reads and writes the overrides of one entity type."""

    def __init__(self, entity_type: str, states: StateLoader) -> None:
        self._name, self._states = entity_type, states

    async def load(self, epoch: int) -> Overrides:
        """The stored overrides, for the coordinator of this epoch.

        Raises:
            StaleFence: a coordinator with a higher epoch has read or written them.
            StoreUnavailable: the store does not answer.
        """
        data = await self._states.load(RESERVED, SHARD, self._name, epoch)
        if data is None:
            return Overrides()
        try:
            stored = msgspec.msgpack.decode(data, type=_Stored)
            places = {shard: Address.parse(at) for shard, at in stored.places.items()}
            return Overrides(places, stored.paused, max(0, stored.moves))
        except (msgspec.DecodeError, ConfigError) as e:
            log.error("the overrides of %r cannot be read and are ignored: %s", self._name, e)
            return Overrides()

    async def save(self, epoch: int, overrides: Overrides) -> None:
        """Store the overrides. Raises as `load`; after StoreUnavailable either the old or the new
        ones are stored."""
        places = {shard: str(place) for shard, place in overrides.places.items()}
        stored = _Stored(places, overrides.paused, overrides.moves)
        data = msgspec.msgpack.encode(stored)
        await self._states.save(RESERVED, SHARD, self._name, epoch, data)
